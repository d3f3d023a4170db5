"""Objects that are looked at together: a digest shows that one of them has changed."""

from __future__ import annotations

import functools
from collections import UserList
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from taskd.state.crowds import MOST, crowd_of, mark_of_crowd
from taskd.state.inside import inside_of
from taskd.state.variables import Variables


class Record:
    """What is known of one sample."""

    def __init__(self) -> None:
        self.weight = 1.0


@functools.cache
def record_of(name: str) -> Record:
    """Return the record of this name."""
    return Record()


def many(kind: Any) -> Any:
    records = [Record() for _ in range(2 * MOST)]
    return dict(enumerate(records)) if kind is dict else kind(records)


@pytest.mark.parametrize("kind", [list, tuple, dict])
def test_one_of_many_changes(kind: Any) -> None:
    found = many(kind)
    before = crowd_of(found)
    assert before is not None
    mark = mark_of_crowd(before)
    assert mark_of_crowd(before) == mark
    found[2 * MOST - 2].weight = 2.0
    assert mark_of_crowd(before) != mark


@pytest.mark.parametrize("other", [[1.0] * 5000, ["a"] * 5000, [Record()], {"a": Record()}, (), "text" * 1000])
def test_what_is_no_crowd(other: Any) -> None:
    assert crowd_of(other) is None


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("changes", [True, False])
def test_a_step_that_is_done_again_finds_them_otherwise(first: int, changes: bool) -> None:
    """Each of these keeps plain values that only a look at all of them shows."""
    record_of.cache_clear()
    records, variables, layer = many(list), Variables(), nn.Linear(1, 1)
    apply: Callable[[Any, float], None] = lambda one, value: setattr(one, "weight", value)  # noqa: E731
    found = UserList[float]()  # no repair looks into it
    for number in (0, 1, 2, 2):
        variables.handed_out(number, 1)
        found.append(record_of("fit").weight)
        layer.weight.grad = torch.full_like(layer.weight, records[-1].weight * record_of("fit").weight)
        if changes and number >= first:
            apply(records[2 * (number + 400)], 0.3 * number)
            apply(record_of("fit"), 0.25 * number)
    missed = [name for name in variables.others.given.missed if "(all)" in name]
    assert missed == (["records (all)"] if changes else [])
    assert found[-2] == found[-1]


def test_a_dict_by_id_is_only_compared() -> None:
    layer, usual = nn.Linear(1, 1), dict[int, float]()
    variables = Variables()
    variables.others.looks_inside = lambda: inside_of({"layer": layer}, {})
    for number in (0, 1, 2, 2):
        variables.handed_out(number, 1)
        layer.weight.grad = torch.full_like(layer.weight, usual.get(id(layer.weight), 0.0))
        usual[id(layer.weight)] = 0.5 * number + usual.get(id(layer.weight), 0.0)
    assert variables.others.given.missed == ["usual"]
