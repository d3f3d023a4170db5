"""Tests which errors make a step be done again. tests/trust/test_raising.py tests that all ranks do it again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from taskd.worker.heal import Repair
from taskd.worker.raised import Raised
from taskd.worker.registered import Registered
from taskd.worker.step_state import StepMachine


class Agreed(Repair):
    """A fake repair: all ranks agree to do the step again."""

    def appeal(self, updates: int, error: str) -> bool:
        return True


class Odd(ValueError):
    """An error class of a script."""


def raised(never_retry: tuple[str, ...] = ()) -> Raised:
    repair = Agreed()
    repair.never_retry = never_retry
    registered = Registered(repair, StepMachine())
    registered.add(nn.Linear(2, 2), None, None, None, {}, {})
    return Raised(registered, repair)


def test_each_step_is_tried_again_once() -> None:
    found = raised()
    assert found.is_tried_again(3, Odd("first")) and not found.came_again
    assert not found.is_tried_again(3, Odd("second"))
    found.left = 3
    assert found.came_again
    assert found.is_tried_again(4, Odd("third"))


@pytest.mark.parametrize("name", ["Odd", "ValueError", f"{__name__}.Odd", "builtins.ValueError"])
def test_what_the_user_names_is_not(name: str) -> None:
    found = raised(("KeyError", name))
    assert not found.is_tried_again(3, Odd("meant")) and found.is_tried_again(3, TypeError("not meant"))


@pytest.mark.parametrize(("error", "emptied"), [(torch.OutOfMemoryError("no more"), 1), (RuntimeError("other"), 0)])
def test_what_the_device_had_no_room_for_finds_its_caches_empty(
    monkeypatch: pytest.MonkeyPatch, error: Exception, emptied: int
) -> None:
    asked: list[Any] = []
    module = SimpleNamespace(empty_cache=lambda: asked.append("empty"))
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda"))
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    assert raised().is_tried_again(3, error) and len(asked) == emptied
