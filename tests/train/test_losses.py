"""Tests the comparison of a step's losses with those of the attempt that it repeats."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable

import pytest
import torch

from taskd.errors import PeerError
from taskd.state.losses import Difference, Losses


def attempt(losses: Losses, number: int, *tensors: object) -> list[Difference | None]:
    losses.step_begins(number)
    return [losses.backward_begins(one) for one in tensors]


def survivor(losses: Losses, number: int) -> Losses:
    """Let a repair give up the attempt."""
    losses.is_done_again(number)
    return losses


def newcomer(losses: Losses, number: int) -> Losses:
    """Return those of a newcomer that begins with this step."""
    found, other = Losses(), Losses()
    attempt(other, number - 1, torch.tensor(9.0), torch.tensor(9.0), torch.tensor(9.0))
    found.inherit(number, [other.pack(), losses.pack()])
    return found


@pytest.mark.parametrize("of", [survivor, newcomer])
def test_another_loss_is_seen_in_the_step_that_is_done_again(of: Callable[[Losses, int], Losses]) -> None:
    losses = Losses()
    assert attempt(losses, 2, torch.tensor(1.0)) == [None]
    assert attempt(losses, 3, torch.tensor(2.0), torch.tensor([3.0, math.nan])) == [None, None]
    losses = of(losses, 3)
    assert attempt(losses, 3, torch.tensor(2.0)) == [None], "this attempt is given up before its second backward"
    losses = of(losses, 3)
    found = attempt(losses, 3, torch.tensor(2.0), torch.tensor([4.0, math.nan]), torch.tensor(5.0))
    assert found == [None, Difference(3.0, 4.0, is_small=False), None]
    losses = of(losses, 4)
    assert attempt(losses, 4, torch.tensor(7.0)) == [None]


def test_an_attempt_that_no_repair_has_given_up_is_not_compared() -> None:
    losses = Losses()
    attempt(losses, 3, torch.tensor(2.0))
    assert attempt(losses, 3, torch.tensor(1.0)) == [None]
    losses.is_done_again(3)
    losses.forget()
    assert attempt(losses, 3, torch.tensor(3.0)) == [None]


def seen(one: object, other: object) -> Difference | None:
    losses = Losses()
    attempt(losses, 0, one)
    losses.is_done_again(0)
    return attempt(losses, 0, other)[0]


@pytest.mark.parametrize(
    ("was", "now", "small"),
    [
        ([1.0], [1.00001], True),
        ([1.0], [1.001], False),
        ([1e-8], [-1e-8], True),
        ([1.0], [math.nan], False),
        ([math.inf], [1.0], False),
        ([math.inf], [-math.inf], False),
        ([1e6, 1e-3], [1e6 + 1, 1e-3], True),
        ([10.0, 1e-3], [10.0, 0.5], False),
        ([10.0, 1.0], [10.0001, 2.0], False),
        ([1.0] * 9, [1.0] * 10, False),
    ],
)
def test_only_the_last_digits_are_a_small_difference(was: list[float], now: list[float], small: bool) -> None:
    found = seen(torch.tensor(was, dtype=torch.float64), torch.tensor(now, dtype=torch.float64))
    assert found is not None and found.is_small is small


def test_numbers_with_few_digits_differ_by_more() -> None:
    one, other = torch.tensor(1.0, dtype=torch.bfloat16), torch.tensor(1.0078125, dtype=torch.bfloat16)
    found = seen(one, other)
    assert found is not None and found.is_small
    found = seen(one.float(), other.float())
    assert found is not None and not found.is_small


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.tensor(1 + 2j), torch.tensor(1 + 3j)),
        (torch.tensor(1.0, dtype=torch.bfloat16), torch.tensor(1.5, dtype=torch.bfloat16)),
        ([torch.tensor(1.0), torch.tensor(2.0)], (torch.tensor(1.0), torch.tensor(3.0))),
        (torch.ones(3), torch.ones(4)),
        (torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.zeros(2, 2))),
    ],
    ids=["complex", "half", "several", "length", "parameter"],
)
def test_all_kinds_are_compared(one: object, other: object) -> None:
    assert seen(one, one) is None
    found = seen(one, other)
    assert found is not None and not found.is_small


@pytest.mark.parametrize(
    "odd",
    [
        None,
        3,
        torch.ones(1, device="meta"),
        torch.ones(2).to_sparse(),
        torch.ones(2, 2).to_sparse_csr(),
        torch.nested.nested_tensor([torch.ones(2)]),
        [torch.ones(1), 2],
        [],
        torch.ones(1, dtype=torch.int64),
    ],
    ids=str,
)
def test_what_is_no_plain_tensor_of_the_cpu_is_not_looked_at(odd: object) -> None:
    losses = Losses()
    assert attempt(losses, 0, odd, torch.tensor(1.0)) == [None, None]
    losses.is_done_again(0)
    assert attempt(losses, 0, odd, torch.tensor(2.0)) == [None, Difference(1.0, 2.0, is_small=False)]


def test_a_transformed_function_is_left_alone() -> None:
    losses = Losses()
    losses.step_begins(0)
    torch.vmap(lambda x: losses.backward_begins(x) or x)(torch.ones(2))
    assert not losses.now


def test_backwards_of_other_threads_and_processes_are_left_out() -> None:
    losses = Losses()
    losses.step_begins(0)
    thread = threading.Thread(target=losses.backward_begins, args=(torch.tensor(1.0),))
    thread.start()
    thread.join()
    assert not losses.now
    if (child := os.fork()) == 0:
        losses.backward_begins(torch.tensor(1.0))
        os._exit(len(losses.now))
    assert os.waitpid(child, 0)[1] == 0


def test_many_backwards_and_many_values_are_bounded() -> None:
    losses = Losses()
    attempt(losses, 0, *[torch.arange(1000.0)] * 100)
    assert len(losses.pack()) < 4096


@pytest.mark.parametrize("data", [b"", b"\0" * 8 + b"\1", b"\0" * 8 + b"\1\5" + b"\0" * 16])
def test_what_cannot_be_read_is_an_error(data: bytes) -> None:
    with pytest.raises(PeerError):
        Losses().inherit(0, [data])
