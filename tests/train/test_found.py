"""Tests what a loop finds when it begins, and uses: the names in the source, and the digests of their values."""

from __future__ import annotations

import collections
import functools
import subprocess
import sys
import threading
import types
from typing import Any

import pytest
import torch
from torch import nn

from taskd.state.found import findings_of
from taskd.state.note import Note
from tests.train.test_counters import found_in

numpy = pytest.importorskip("numpy")


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("self.model(step).sum().backward()", "self.model"),
        ("other(step).backward()", "other"),
        ("loss = self.model(step)\n(loss + other * n).backward()", "n other self.model"),
        ("other = step.loss()\nother.backward()", ""),
        ("print(other - step.time())", ""),
        ("total += other", ""),
        ("if step.loss() > other:\n    step.skip()", "other"),
        ("for one in other:\n    one(step).backward()", "other"),
        ("self.run(*other)", "other"),
    ],
)
def test_names(body: str, names: str) -> None:
    found = {place.text for place in found_in(body).found}
    assert found & {"n", "other", "self.model", "total"} == {*names.split()}, found


def holding(tensor: torch.Tensor) -> dict[str, Any]:
    """Return objects that hold this tensor, each in another way."""

    class Holder:
        def __init__(self) -> None:
            self.deep = [{"a": (tensor,)}]

        def method(self) -> None:
            return None

    def closure() -> torch.Tensor:
        return tensor

    def default(one: torch.Tensor = tensor) -> torch.Tensor:
        return one

    module = nn.Linear(1, 1)
    module.weight = nn.Parameter(tensor)
    return {
        "itself": tensor,
        "array": tensor.numpy(),
        "list": [1, [tensor]],
        "deque": collections.deque([tensor]),
        "object": Holder(),
        "method": Holder().method,
        "closure": closure,
        "lambda": lambda: tensor,
        "default": default,
        "partial": functools.partial(print, tensor),
        "keyword": functools.partial(print, end=tensor),
        "module": module,
        "namespace": types.SimpleNamespace(teacher=module),
        "distribution": torch.distributions.Normal(tensor, tensor.abs() + 1),
    }


@pytest.mark.parametrize("how", holding(torch.ones(1)))
def test_what_is_held_is_seen(how: str) -> None:
    one, same, other = (
        findings_of([("x", holding(torch.full((2, 2), at))[how])], set(), set()) for at in (1.0, 1.0, 2.0)
    )
    if how in ("module", "namespace"):  # nn.Linear draws a random bias
        torch.manual_seed(1)
        one = findings_of([("x", holding(torch.ones(2, 2))[how])], set(), set())
        torch.manual_seed(1)
        same = findings_of([("x", holding(torch.ones(2, 2))[how])], set(), set())
    assert one == same and Note(1, one).unlike(Note(1, same), {}) == []
    assert Note(1, one).unlike(Note(1, other), {}) == ["x"]


def test_what_is_registered_is_left_out() -> None:
    tensor, held = torch.ones(4), {"mine": torch.ones(4)}
    assert findings_of([("x", [tensor, tensor.view(2, 2)])], set(), {tensor.data_ptr()}) == {}
    assert findings_of([("x", [held])], {id(held)}, set()) == {}
    assert findings_of([("x", threading.Thread(args=(tensor,))), ("y", 5), ("z", torch)], set(), set()) == {}


def test_large_and_tangled_things_have_an_end() -> None:
    ring: list[Any] = [torch.ones(1)]
    ring.append(ring)
    many = {at: torch.full((1,), float(at)) for at in range(100_000)}
    found = findings_of([("ring", ring), ("many", many), ("none", torch.empty(0))], set(), set())
    assert {"ring", "many"} <= found.keys()


def test_another_process_finds_the_same() -> None:
    looks = "findings_of([('x', [torch.arange(9.0)])], set(), set())"
    code = f"import torch; from taskd.state.found import findings_of; print({looks})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(findings_of([("x", [torch.arange(9.0)])], set(), set()))
