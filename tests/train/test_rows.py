"""Lists and dicts of numbers that steps gather: a step that is done again gathers once, and a newcomer has them all."""

from __future__ import annotations

from collections import UserDict, UserList, defaultdict
from typing import Any

import pytest
import torch
from torch import nn

from taskd.state.settling import Settled
from taskd.state.variables import Variables


class Clipper:
    """Gathers numbers in a list, and computes from them."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def limit(self, value: float) -> float:
        """Return the mean of all values."""
        self.seen.append(value)
        return sum(self.seen) / len(self.seen)


def test_rows_of_a_step_that_is_done_again_are_gathered_once() -> None:
    variables, clipper, logs, flags = Variables(), Clipper(), {"loss": [0.5]}, {"warm": False}
    layer = nn.Linear(1, 1)
    found = UserList[Any]()  # no repair looks into it
    for number in (0, 1, 1, 2):
        variables.handed_out(number, 1)
        limit = clipper.limit(number) + sum(logs["loss"]) + flags["warm"]
        layer.weight.grad = torch.full_like(layer.weight, limit)
        found.append((*clipper.seen, *logs["loss"]))
        logs["loss"] = [*logs["loss"], float(number)]
        flags["warm"] = True
    assert found == [(0, 0.5), (0, 1, 0.5, 0), (0, 1, 0.5, 0), (0, 1, 2, 0.5, 0, 1)]


@pytest.mark.parametrize(("lacks", "own"), [(False, True), (True, False), (True, True)])
def test_a_newcomer_gets_the_rows_of_its_record(lacks: bool, own: bool) -> None:
    def train(variables: Variables, clipper: Clipper, numbers: range) -> list[bytes]:
        layer, record = nn.Linear(1, 1), list[bytes]()
        for number in numbers:
            variables.handed_out(number, 1)
            record = variables.pack()
            if number == 8:
                answers[0] = variables.hear(number, [other.tell(number), variables.tell(number)], 1)
            layer.weight.grad = torch.full_like(layer.weight, clipper.limit(number))
        return record

    answers, other, variables, new = UserDict[int, Settled](), Variables(), Variables(), Clipper()
    record = train(Variables(), Clipper(), range(5, 8 if lacks else 9))
    others = Clipper()
    others.seen += [4] * own
    train(other, others, range(5, 9))
    variables.inherited.adopt(record)
    train(variables, new, range(8, 10))
    if lacks and own:  # its predecessor left step 7 behind its update, and nobody knows what it had gathered there
        assert answers[0].refused == {"clipper.seen"}
    else:
        assert answers[0].refused == set() and new.seen == [5, 6, 7, 8, 9]


@pytest.mark.parametrize(("every", "refused"), [(1, True), (2, True), (4, False)])
def test_a_row_that_no_step_has_changed_so_far_lacks_nothing(every: int, refused: bool) -> None:
    variables, other, seen = Variables(), Variables(), list[int]()
    layer = nn.Linear(1, 1)
    for one in (other, variables):
        for number in range(4):
            one.handed_out(number, 1, whole=number < 3)
            answers = one.hear(number, [other.tell(number), one.tell(number)], 1) if number == 3 else None
            layer.weight.grad = torch.full_like(layer.weight, sum(seen) * 0.1)
            if number != 2 and number % every == every - 1:  # step 2 was left before this
                seen.append(number)
    assert answers is not None
    assert answers.refused == ({"seen"} if refused else set())


def gather(variables: Variables, numbers: tuple[int, ...], logs: dict[str, list[float]], curve: list[float]) -> None:
    """Gather in two lists what is only shown."""
    for number in numbers:
        variables.handed_out(number, 1)
        logs["loss"].append(float(number))
        curve.append(float(number))
    print(logs, curve)


def test_rows_that_are_only_shown_are_put_back_as_long_as_they_are_short() -> None:
    variables, held = Variables(), UserDict(logs=defaultdict[str, list[float]](list), curve=list[float]())
    gather(variables, (0, 1, 1, 2), **held)
    assert held["curve"] == held["logs"]["loss"] == [0.0, 1.0, 2.0] and not variables.others.left_out
    held["curve"] += [0.5] * 10_000
    gather(variables, (3, 4), **held)
    assert [*variables.others.left_out] == ["curve"]
    assert "logs['loss']" in variables.looks[-1].rows and "curve" not in variables.looks[-1].rows


def test_a_rank_that_has_not_seen_a_steps_end_shows_less_and_says_so() -> None:
    variables, other, curve = Variables(), Variables(), list[float]()
    for one, rank in ((other, 1.0), (variables, 2.0)):
        curve.clear()
        for number in range(5):
            one.handed_out(number, 1, whole=number < 4)
            answers = one.hear(number, [other.tell(number), one.tell(number)], 1) if number == 4 else None
            if number != 3:  # step 3 was left before this
                curve.append(rank * number)
    assert answers is not None and not answers.refused and answers.shown == {"curve"}


def test_lists_inside_of_a_row_stay_the_same_objects() -> None:
    """Other code may have them, too."""
    variables, curves, layer = Variables(), {"loss": [0.5], "rate": [1.0]}, nn.Linear(1, 1)
    kept, found = UserDict(loss=curves["loss"]), UserList[Any]()
    for number, name in enumerate(("loss", "loss", "rate", "loss")):
        variables.handed_out(min(number, 2), 1)  # step 2 is done again
        layer.weight.grad = torch.full_like(layer.weight, sum(curves["loss"]))
        found.append([*curves["loss"]])
        curves[name].append(float(number))
    assert curves["loss"] is kept["loss"] and curves == {"loss": [0.5, 0.0, 1.0, 2.0], "rate": [1.0]}
