"""Tests the gate before an update, on one rank: which jobs have a gate, and how often a step passes it."""

from __future__ import annotations

import struct

import pytest

from taskd.state.parts import UNKNOWN, WHOLE
from taskd.state.replica import Replica
from taskd.worker.gate import MIXED, Gate
from taskd.worker.habits import Habits
from taskd.worker.heal import Repair
from taskd.worker.keeping import Keeping
from taskd.worker.together import Together


class Others(Together):
    """Plays the other ranks, which hold these parts of the model."""

    def __init__(self, parts: list[int], groups: bool = True) -> None:
        self.parts, self.groups = parts, groups
        self.asked = self.met = self.settled = 0

    def has_groups(self, sharded: bool = False) -> bool:
        return self.groups or sharded

    def everyone(self, mine: bytes) -> tuple[list[bytes], int]:
        self.asked += 1
        return [mine, *(struct.pack("<q", part) for part in self.parts)], 0

    def meet(self) -> None:
        assert self.settled > self.met, "the device is waited for before the ranks meet"
        self.met += 1

    def settle(self) -> None:
        self.settled += 1


def gate_with(others: Others, habits: Habits | None = None, newcomer: bool = False) -> Gate:
    repair = Repair()
    repair.together, repair.newcomer = others, newcomer
    return Gate(repair, habits or Habits(), Keeping(Replica(), None, False, pytest.fail, pytest.fail))


def steps(gate: Gate, comes: int) -> None:
    for _ in range(2):
        gate.begin(0)
        for _ in range(comes):
            gate.come()


def test_a_job_without_groups_asks_nobody() -> None:
    others = Others([], groups=False)
    gate = gate_with(others)
    assert not gate.agree(WHOLE, sharded=False)
    steps(gate, 2)
    assert others.asked == others.met == 0
    assert others.settled == 4, "its own device is waited for, before an update and at the end of a step"


@pytest.mark.parametrize("comes", [1, 3])
def test_each_step_comes_to_it_once(comes: int) -> None:
    others = Others([1, 2])
    gate = gate_with(others)
    assert not gate.agree(1, sharded=False) and not gate.agree(1, sharded=False)
    gate.come()  # outside of a step
    steps(gate, comes)
    assert others.asked == 1 and others.met == 2


@pytest.mark.parametrize(
    ("mine", "others"), [(1, [WHOLE]), (2, [2, UNKNOWN]), (UNKNOWN, [1]), (WHOLE, [1]), (WHOLE, [WHOLE])]
)
def test_where_not_all_have_parts_there_is_none(mine: int, others: list[int]) -> None:
    found = Others(others)
    gate = gate_with(found)
    assert gate.agree(mine, sharded=False) == (MIXED if mine > WHOLE else "")
    steps(gate, 1)
    assert found.met == 0


def test_a_newcomer_is_told_by_its_life_before() -> None:
    before, now = Habits(), Habits()
    gate_with(Others([1, 2]), before).agree(1, sharded=False)
    others = Others([1, 2])
    gate = gate_with(others, now, newcomer=True)
    assert not gate.agree(1, sharded=False)
    now.inherit(before.pack())
    steps(gate, 1)
    assert others.asked == 0 and others.met == 2


def test_a_newcomer_does_not_ask_in_its_next_loop() -> None:
    others, habits = Others([1, 2]), Habits()
    before = gate_with(others, habits)
    assert not before.agree(1, sharded=False)
    inherits = Habits()
    after = gate_with(others, inherits, newcomer=True)
    assert not after.agree(1, sharded=False)
    inherits.inherit(habits.pack())
    after._repair.newcomer = False
    assert not after.agree(1, sharded=False) and others.asked == 1
    steps(after, 1)
    assert others.met == 2
