"""What ranks conclude after an update about values that are no counters, from what each of them tells."""

from __future__ import annotations

import pytest

from taskd.errors import PeerError
from taskd.state.moves import MOST_BYTES, Moves, settle_moves
from taskd.state.plain import mark, packed


def value(of: object) -> bytes:
    """Return a value as it is told."""
    data = packed(of)
    assert data is not None
    return data


def rank(before: object, now: object, *, lacks: bool = False, moved: bool = True, steady: bool = True) -> Moves:
    """Return what a rank tells of the value `n`. None: no step has changed it so far."""
    then, there = ({} if one is None else {"n": value(one)} for one in (before, now))
    unknown = ["n"] if lacks and then == there and there and (moved or not steady) else []
    new = ["n"] if not lacks and then != there and not moved else []
    return Moves(lacks, then, there, ["n"] * moved, unknown, new)


@pytest.mark.parametrize(
    ("ranks", "takes", "refused"),
    [
        ([rank(1, 2), rank(1, 1, lacks=True)], 2, False),  # alike, and it has moved before
        ([rank(1, 2), rank(7, 7, lacks=True)], None, True),  # each rank's own
        ([rank(1, 2), rank(1, 3), rank(1, 1, lacks=True)], None, True),  # own since the last step
        ([rank(1, 2), rank(1, 2), rank(1, 1, lacks=True)], 2, False),
        ([rank(1, 2, moved=False), rank(1, 1, lacks=True, moved=False)], None, True),  # by chance, perhaps
        ([rank(1, 2, moved=False), rank(1, 2, moved=False), rank(1, 1, lacks=True, moved=False)], 2, False),
        ([rank(None, 2, moved=False), rank(None, None, lacks=True, moved=False)], None, True),  # the first change
        ([rank(1, 1), rank(1, 1, lacks=True)], None, False),  # it has not moved in this step
        ([rank(1, 1, lacks=True), rank(1, 1, lacks=True)], None, True),  # nobody has seen the end
        ([rank(1, 2), rank(1, 2, lacks=True)], None, False),  # it has come that far
        ([rank("a", "b"), rank("a", "a", lacks=True)], "b", False),
        ([rank(None, None), rank(5, 5, lacks=True)], None, True),  # only this rank has such a value
        ([None, rank(5, 5, lacks=True)], None, True),  # the other one has not looked
        ([None, rank(1, 2), rank(1, 1, lacks=True)], 2, False),
        ([rank(None, 2, moved=False), rank(None, None), rank(None, None, lacks=True)], None, False),  # of one rank only
    ],
)
def test_what_a_rank_takes(ranks: list[Moves | None], takes: object, refused: bool) -> None:
    found = [settle_moves(ranks, at) for at in range(len(ranks))]
    assert all(names == found[0][1] for _, names in found), "all conclude the same"
    assert found[0][1] == ({"n"} if refused else set())
    for one, (take, _) in zip(ranks, found, strict=True):
        assert take == ({"n": value(takes)} if takes is not None and one and one.lacks and not refused else {})


def test_what_is_told_is_short() -> None:
    long = {"n": value([1.0] * MOST_BYTES)}
    told = Moves.heard(Moves(False, long, long).told())
    assert told is not None and len(told.now["n"]) < 99
    assert told.before == told.now
    assert settle_moves([told, Moves(True, long, long, ["n"], ["n"])], 1)[1] == {"n"}, "a digest cannot be taken"


@pytest.mark.parametrize("told", [[], [1] * 9, 5])
def test_what_is_no_table(told: object) -> None:
    with pytest.raises(PeerError):
        Moves.heard(told)


@pytest.mark.parametrize(
    ("there", "here", "refused"),
    [("code f", "code f", False), ("code f", "code g", True), ("numbers 5", "numbers 5", True)],
)
def test_code_is_never_taken_but_may_be_there_already(there: str, here: str, refused: bool) -> None:
    """The mark of numbers is of a few of them, so others may differ."""
    before = {"n": mark(there)}
    seen, lacks = Moves(False, before, before, ["n"]), Moves(True, before, {"n": mark(here)}, ["n"], ["n"])
    assert settle_moves([seen, lacks], 1) == ({}, {"n"} if refused else set())
