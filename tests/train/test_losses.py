"""Tests the comparison of a step's losses with those of its first attempt."""

from __future__ import annotations

import math

import pytest
import torch

from taskd.errors import PeerError
from taskd.state.losses import Difference, Losses


def attempt(losses: Losses, number: int, *tensors: object) -> list[Difference | None]:
    losses.step_begins(number)
    return [losses.backward_begins(one) for one in tensors]


def heir(losses: Losses, number: int) -> Losses:
    """Return those of a newcomer that begins with this step."""
    found = Losses()
    found.inherit(number, [Losses(number - 1, [[9.0]]).pack(), losses.pack()])
    return found


@pytest.mark.parametrize("of", [lambda losses: losses, lambda losses: heir(losses, 3)], ids=["survivor", "newcomer"])
def test_another_loss_is_seen_in_the_step_that_is_done_again(of: object) -> None:
    losses = Losses()
    assert attempt(losses, 2, torch.tensor(1.0)) == [None]
    assert attempt(losses, 3, torch.tensor(2.0), torch.tensor([3.0, math.nan])) == [None, None]
    losses = of(losses)  # type: ignore[operator]
    assert attempt(losses, 3, torch.tensor(2.0)) == [None], "this attempt is given up before its second backward"
    found = attempt(losses, 3, torch.tensor(2.0), torch.tensor([4.0, math.nan]), torch.tensor(5.0))
    assert found == [None, Difference(3.0, 4.0), None]
    assert attempt(losses, 4, torch.tensor(7.0)) == [None]


def test_only_the_last_digits_are_a_small_difference() -> None:
    assert Difference(1.0, 1.00001).is_small and not Difference(1.0, 1.001).is_small
    assert not Difference(1.0, math.nan).is_small and not Difference(0.0, 1e-30).is_small


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.tensor(1 + 2j), torch.tensor(1 + 3j)),
        (torch.tensor(1.0, dtype=torch.bfloat16), torch.tensor(1.5, dtype=torch.bfloat16)),
        ([torch.tensor(1.0), torch.tensor(2.0)], (torch.tensor(1.0), torch.tensor(3.0))),
        (torch.ones(3), torch.ones(4)),
        (torch.tensor(1.0), torch.tensor(math.nan)),
        (torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.zeros(2, 2))),
    ],
    ids=["complex", "half", "several", "length", "nan", "parameter"],
)
def test_all_kinds_are_compared(one: object, other: object) -> None:
    for first, second, differ in ((one, one, False), (one, other, True)):
        losses = Losses()
        attempt(losses, 0, first)
        assert (attempt(losses, 0, second) != [None]) is differ


@pytest.mark.parametrize("odd", [None, 3, torch.ones(1, device="meta"), torch.ones(2).to_sparse(), [torch.ones(1), 2]])
def test_what_is_no_plain_tensor_of_the_cpu_is_not_looked_at(odd: object) -> None:
    losses = Losses()
    assert attempt(losses, 0, odd, torch.tensor(1.0)) == [None, None]
    assert attempt(losses, 0, odd, torch.tensor(2.0)) == [None, Difference(1.0, 2.0)]


def test_many_backwards_and_many_values_are_bounded() -> None:
    losses = Losses()
    attempt(losses, 0, *[torch.arange(1000.0)] * 100)
    assert len(losses.pack()) < 50_000


def test_what_cannot_be_read_is_an_error() -> None:
    with pytest.raises(PeerError):
        Losses().inherit(0, [b"\x93\x01\x02\x03"])
