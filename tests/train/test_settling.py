"""Tests what ranks conclude about a script's counters after a repair, from tables of what each rank knows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest

from taskd.errors import PeerError
from taskd.state import tree
from taskd.state.settling import Settled, Table, settle
from taskd.state.variables import Variables

AT = 10
"""The step that is done next."""


def table(*values: Any, lacks: bool = False, newcomer: bool = False, at: int = AT) -> Table:
    """Return what a rank knows of a number `n`: its values at the begin of the last steps and now. None: not there."""
    first = at - len(values) + 1
    looks = [
        (first + n, "train", [{}, {} if value is None else {"n": value}, {}, {}]) for n, value in enumerate(values)
    ]
    return Table(lacks, newcomer, looks)


def whole(*values: Any, at: int = AT) -> Table:
    """Return the table of a rank that has seen the step's end."""
    return table(*values, at=at)


def left(*values: Any, at: int = AT) -> Table:
    """Return the table of a survivor that left the step after its update."""
    return table(*values, lacks=True, at=at)


def new(*values: Any, at: int = AT) -> Table:
    """Return the table of a newcomer whose record is from the step before."""
    return table(*values, lacks=True, newcomer=True, at=at)


def settled(tables: list[Table], at: int = AT) -> tuple[dict[int, Any], set[str], set[str]]:
    """Return what each rank takes, then the names that all refuse and the names of which all are unsure."""
    found = [settle(tables, rank, at) for rank in range(len(tables))]
    taken = {rank: one.take[1]["n"] for rank, one in enumerate(found) if one.take[1]}
    assert len({(*one.refused, "", *one.unsure) for one in found}) == 1, "all conclude the same"
    return taken, found[0].refused, found[0].unsure


@pytest.mark.parametrize(
    ("tables", "wanted"),
    [
        ([whole(1, 2, 3, 4), new(1, 2, 3, 3)], {1: 4}),
        ([whole(1, 2, 3, 4), new(3, 3)], {1: 4}),
        ([whole(3, 4), whole(3, 4), new(3, 3), new(3, 3)], {2: 4, 3: 4}),
        ([whole(1.0, 0.5, 0.25), new(1.0, 0.5, 0.5)], {1: 0.25}),
        ([whole(7, math.nan, 0.5), new(7, math.nan, math.nan)], {1: 0.5}),
        ([whole(2, 3, 4), left(2, 3, 3), new(2, 3, 3)], {1: 4, 2: 4}),
        ([whole(2, 3, 4), left(2, 3, 4), new(2, 3, 3)], {2: 4}),
        ([left(2, 3, 4), new(2, 3, 3), left(2, 3, 4)], {1: 4}),
        ([table(None, None, 4), whole(2, 3, 4), new(2, 3, 3)], {2: 4}),  # the first is a newcomer with a newer record
        ([whole(2, 3, 4), new(2, 3, 0)], {1: 4}),  # the newcomer is in the next loop, and counts there from 0
        ([whole(2, 3, 4), new(2, 3, None)], {1: 4}),
        ([whole(None, 3, 4), new(3, 3)], {1: 4}),  # the first step created it
        ([whole(5, 9, 0), new(5, 9, 0)], {}),  # all have set it to 0 in the next loop
    ],
)
def test_what_ranks_have_alike_is_taken_from_who_knows_it(tables: list[Table], wanted: dict[int, Any]) -> None:
    assert settled(tables) == (wanted, set(), set())


@pytest.mark.parametrize(
    "tables",
    [
        [whole(0.1, 0.5, 0.7), new(0.1, 0.6, 0.6)],  # each rank's own, like a sum of losses
        [whole(4, 9, 0, 3), new(4, 8, 0, 0)],  # different in the loop before, equal at the begin of this one
        [whole(5, 7, 7, 8), left(5, 6, 7, 7)],
        [whole(0, 1, 4), new(0, True, True)],
        [whole(2, 3, 4), whole(2, 3, 5), new(2, 3, 3)],  # it differs from this step on
        [whole(None, 5), whole(None, 5), new(None, None)],
    ],
)
def test_what_is_a_ranks_own_or_does_not_move_is_left_alone(tables: list[Table]) -> None:
    assert settled(tables) == ({}, set(), set())


@pytest.mark.parametrize(
    "tables",
    [
        [left(2, 3, 4), left(2, 3, 5), new(2, 3, 3)],
        [left(1, 2, 3, 3), new(1, 2, 3, 3)],
        [left(1, 5, 6, 6), new(1, 5, 6, 6)],  # it counts the tokens of each step
        [left(1.0, 0.5, 0.2, 0.2), new(1.0, 0.5, 0.2, 0.2)],
        [whole(1, 3, 5), left(1, 3, 4)],  # the second rank has counted once, the first one twice
    ],
)
def test_what_nobody_can_know_is_refused_by_all(tables: list[Table]) -> None:
    assert settled(tables) == ({}, {"n"}, set())


@pytest.mark.parametrize(
    "tables",
    [
        [left(3, 3, 3), new(3, 3, 3)],
        [left(1, 2, 2, 2), new(1, 2, 2, 2)],  # it moves now and then, as with gradient accumulation
        [left(0, 0, 1), left(0, 0, 0)],
        [whole(3, 3, 3, 4), new(3, 3, 3, 3)],  # it moves for the first time, and only one rank tells so
        [whole(3, 3, 3, 4), left(3, 3, 3, 3)],
    ],
)
def test_what_may_be_right_or_wrong_is_said(tables: list[Table]) -> None:
    assert settled(tables) == ({}, set(), {"n"})


def test_locals_of_another_function_are_other_ones() -> None:
    looks = [
        (8, "one", [{"n": 5}, {}, {}, {}]),
        (9, "two", [{"n": 1}, {}, {}, {}]),
        (AT, "two", [{"n": 2}, {}, {}, {}]),
    ]
    table = Table(False, False, looks)
    assert table.history(0, "n") == {9: 1, AT: 2}
    assert Table(False, False, [(at, of, [{}, values[0], {}, {}]) for at, of, values in looks]).history(1, "n")[8] == 5


def test_what_may_be_either_is_refused_early_and_said_later() -> None:
    """The number has moved for the first time, and only one rank tells so."""
    assert settled([whole(0, 0, 1), new(0, 0, 0)]) == ({}, set(), {"n"})
    assert settled([whole(None, 4), new(3, 3)]) == ({}, set(), {"n"})
    assert settled([whole(0, 1, at=1), new(0, 0, at=1)], 1) == ({}, {"n"}, set())
    assert settled([whole(0, 1, at=1), new(0, 0, at=1), whole(0, 1, at=1)], 1) == ({1: 1}, set(), set())


def test_the_first_step_has_to_be_seen_to_its_end_by_one() -> None:
    for told in ([left(0, 0, at=1), new(0, 0, at=1)], [left(0, 1, at=1), left(0, 1, at=1)]):
        assert settled(told, 1) == ({}, {"n"}, set())
    assert settled([left(None, None, at=1), new(None, None, at=1)], 1) == ({}, set(), set()), "it counts nothing"
    assert settled([left(0, 1, 1, at=2), new(0, 1, 1, at=2)], 2) == ({}, {"n"}, set())
    assert settled([Table(False, False, []), Table(True, True, [])], 1) == ({}, set(), set()), "no frame was seen"


def test_a_table_travels() -> None:
    one = Table(True, True, [(3, "train", [{}, {"n": 1 << 62, "m": math.inf}, {}, {}])])
    assert Table.unpack(one.pack()) == one
    with pytest.raises(PeerError):
        Table.unpack(tree.flatten([1, 2, 3, 4, 5])[0])


class Script:
    """A rank with a loop over steps, whose last step may end after its update. It also plays a newcomer."""

    def __init__(self, variables: Variables) -> None:
        self.variables, self.count, self.own = variables, 0, 0.0

    def run(
        self, numbers: Iterable[int], own: float = 1.0, bodies: bool = True, whole: bool = True, loop: int = 1
    ) -> bytes:
        """Ask for these steps and do them. Returns what goes into the record in the last one."""
        for number in numbers:
            self.variables.handed_out(number, loop, whole)
            if bodies:
                self.count += 1
                self.own += own
        return b"".join(self.variables.pack()[-1:])

    def next(self, at: int, whole: bool = True, loop: int = 1) -> bytes:
        """Return what the rank tells when it gets the first step after a repair."""
        self.run([at], bodies=False, whole=whole, loop=loop)
        return self.variables.tell(at)

    def hear(self, at: int, told: list[bytes], rank: int) -> Settled:
        """Take what all ranks have told, inside a loop. Returns the conclusion."""
        for _ in [at]:
            found = self.variables.hear(at, told, rank)
            if at < 0:
                self.count += 1
                self.own += 1
        return found


@pytest.mark.parametrize("number", [2, 4, 7])
def test_a_newcomer_takes_the_count_and_keeps_what_is_its_own(number: int) -> None:
    one, before, other = Script(Variables()), Script(Variables()), Script(Variables())
    one.run(range(number))
    before.run(range(number), own=2.0)
    other.variables.inherited.adopt(before.variables.pack())
    told = [one.next(number), other.next(number)]
    assert one.variables.lacks(number) is False and other.variables.lacks(number) is True
    assert [one.hear(number, told, 0), other.hear(number, told, 1).refused] == [
        Settled(behind={"own"}, shown={"own"}),
        set(),
    ]
    assert (one.count, other.count) == (number, number)
    # Not one.own: a number that is used after the loop is not each rank's own, to be left alone.
    assert (vars(one)["own"], vars(other)["own"]) == (number, 2 * (number - 1))
    assert not other.variables.lacks(number)


def test_a_newcomer_in_the_next_loop_begins_with_what_its_script_has_set() -> None:
    """A sum from the last loop does not count in this loop. The count is taken from the other ranks."""
    one, before, other = Script(Variables()), Script(Variables()), Script(Variables())
    one.run(range(4))
    before.run(range(4), own=2.0)
    other.variables.inherited.adopt(before.variables.pack())
    one.own = other.own = 0.0
    told = [one.next(4, loop=2), other.next(4, loop=2)]
    other.hear(4, told, 1)
    assert (other.count, other.own) == (4, 0.0)


def test_a_count_that_stands_still_once_is_missing() -> None:
    one = Script(Variables())
    one.run(range(4))
    one.count -= 1
    told = [one.next(4, whole=False)]
    assert one.variables.lacks(4)
    assert one.hear(4, told, 0).refused == {"count"}
    other = Script(Variables())
    other.run(range(4))
    assert other.count == 4
    assert other.hear(4, [other.next(4, whole=False)], 0) == Settled() and not other.variables.lacks(4)


def test_nobody_starts_over_for_what_is_only_shown() -> None:
    found = Settled(refused={"count", "meter.sum"}, unsure={"other"})
    found.spare({"meter.sum", "meter.count"})
    assert found.refused == {"count"} and found.unsure == {"meter.sum", "other"}


@pytest.mark.parametrize(
    ("used", "perhaps", "refused", "unsure"), [(1, 0, 1, 0), (1, 1, 1, 0), (0, 1, 0, 1), (0, 0, 0, 0)]
)
def test_a_ranks_own_number_that_misses_a_step_is_refused_only_if_steps_use_it(
    used: bool, perhaps: bool, refused: bool, unsure: bool
) -> None:
    settled = settle([whole(0.1, 0.5, 0.7, 0.9), new(0.2, 0.6, 0.8, 0.8)], 1, AT)
    assert settled.behind == {"n"}
    settled.judge({"n"} if used else set(), {"n"} if perhaps else set())
    assert (settled.refused, settled.unsure) == ({"n"} if refused else set(), {"n"} if unsure else set())


def test_a_ranks_own_number_that_rests_now_and_then_misses_nothing() -> None:
    assert not settle([whole(0.1, 0.1, 0.5, 0.7), new(0.2, 0.2, 0.6, 0.6)], 1, AT).behind
