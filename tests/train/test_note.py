"""Tests what a newcomer takes and refuses, by the note of its life before and by what all ranks tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from taskd.errors import PeerError
from taskd.state.leaves import GONE
from taskd.state.note import Note, Told, to_refuse, to_take
from taskd.state.plain import Noted, packed


class Parts(NamedTuple):
    x: int


class Point(Parts):
    """Has a dict beside its parts, so it cannot be made again."""


def noted(**values: Any) -> Noted:
    return {name: data for name, value in values.items() if (data := packed(value)) is not None}


def rank(loop: int = 2, newcomer: bool = False, before: Noted | None = None, **values: Any) -> Told:
    """Return what a rank tells that sets these values and finds them, too."""
    life = Note() if before is None else Note(loop, sets=before, finds=before)
    earlier = Note(loop - 1, moved=noted(**values))
    return Told(False, newcomer, Note(loop, {}, noted(**values), noted(**values)), life, earlier)


def test_what_a_rank_tells_travels() -> None:
    told = rank(3, True, noted(b=1), a=0.5)
    assert Told.unpack(told.pack()) == told
    with pytest.raises(PeerError):
        Told.unpack(b"\x93\x01\x02\x03")


def test_a_newcomer_takes_what_all_others_have() -> None:
    told = [rank(weight=1.5, time=1.0), rank(newcomer=True, weight=1.0, time=3.0), rank(weight=1.5, time=2.0)]
    assert to_take(told, 1) == noted(weight=1.5)
    assert to_refuse(told, 1, {}) == ["weight"]


def test_what_a_newcomer_has_not_at_all_it_takes_and_does_not_refuse() -> None:
    told = [rank(weight=1.5), rank(newcomer=True)]
    assert to_take(told, 1) == noted(weight=1.5) and to_refuse(told, 1, {}) == []


def test_a_newcomer_keeps_what_it_knows_and_what_is_its_own() -> None:
    told = [rank(weight=1.5), rank(newcomer=True, weight=1.0)]
    for one, earlier in zip(told, (1.0, 2.0), strict=True):
        one.earlier = Note(1, sets=noted(weight=earlier), moved=noted(weight=earlier))
    assert to_take(told, 1) == {}
    told[1].earlier = told[0].earlier
    assert to_take(told, 1) == noted(weight=1.5)
    told[1].before = Note(2)
    assert to_take(told, 1) == {}


def test_one_word_is_not_enough_for_what_has_not_moved_before() -> None:
    told = [rank(weight=1.5), rank(newcomer=True, weight=1.0)]
    told[0].earlier = Note(1, sets=noted(weight=1.0))
    told[1].earlier = Note(1, sets=noted(weight=1.0))
    assert to_take(told, 1) == {}
    assert to_take([*told, told[0]], 1) == noted(weight=1.5)


def test_one_word_is_not_enough_to_refuse() -> None:
    told = [rank(start=1), rank(newcomer=True, start=2)]
    assert to_refuse(told, 1, {}) == []
    told[1].before = Note(2, finds=noted(start=1))
    assert to_refuse(told, 1, {}) == ["start"]
    told[1].before = Note(2, finds=noted(start=3))
    assert to_refuse(told, 1, {}) == []


def test_what_has_never_changed_is_a_rank_s_own() -> None:
    """`is_main = rank == 0` is the same on all others."""
    told = [rank(newcomer=True, main=True), rank(main=False), rank(main=False)]
    assert to_refuse(told, 0, {}) == ["main"]
    for one in told:
        one.note = Note(2, finds=one.note.finds)
        one.earlier = Note(1, finds=one.note.finds)
    assert to_refuse(told, 0, {}) == []
    told[2].earlier = Note(1, finds=noted(main=True))
    assert to_refuse(told, 0, {}) == ["main"]


def test_buffers_that_were_alike_must_stay_alike() -> None:
    def told(*buffers: list[int]) -> list[Told]:
        found = [Told(newcomer=at == 0, note=Note(2, buffers={"mask": one})) for at, one in enumerate(buffers)]
        return [Told.unpack(one.pack()) for one in found]

    assert to_refuse(told([1, 3], [1, 2]), 0, {}) == ["mask"]
    assert to_refuse(told([1, 2], [1, 2]), 0, {}) == []
    assert to_refuse(told([4, 3], [1, 2]), 0, {}) == []  # it was each rank's own before
    assert to_refuse(told([1, 3], [1, 2], [1, 4]), 0, {}) == []  # it is each rank's own now
    assert to_refuse(told([1, 3], [1, 2], [1, 2]), 0, {}) == ["mask"]
    held = told([1, 3], [1, 2])
    held[0].before = Note(2)
    assert to_refuse(held, 0, {}) == []


def test_what_is_too_large_to_be_told_is_refused() -> None:
    told = [rank(history=[0.5] * 600), rank(newcomer=True, history=[0.6] * 600)]
    told = [Told.unpack(one.pack()) for one in told]
    assert to_take(told, 1) == {} and to_refuse(told, 1, {}) == ["history"]
    told[1].earlier = Note(1, sets=noted(history=1))
    assert to_refuse(told, 1, {}) == []


@pytest.mark.parametrize(("mine", "refused"), [(1, []), (2, ["best"])])
def test_other_tensors_than_all_others_are_refused(mine: int, refused: list[str]) -> None:
    told = [Told(False, at == 1, Note(2, {"best": mine if at == 1 else 1})) for at in range(2)]
    assert to_refuse(told, 1, {}) == refused
    told[1].before = Note(2)
    assert to_refuse(told, 1, {}) == []


def test_a_rank_s_own_tensors_are_not_refused() -> None:
    told = [Told(False, at == 1, Note(2, {"noise": at}), earlier=Note(1, {"noise": at + 7})) for at in range(2)]
    assert to_refuse(told, 1, {}) == []


def test_what_was_set_between_two_loops_and_not_seen_to_be() -> None:
    before = Note(2, sets=noted(n=1), moved=noted(n=1, best=0.5, gone=2) | {"left": GONE})
    assert before.unlike(Note(2), noted(n=2, best=0.5)) == ["gone"]
    assert before.unlike(Note(2), noted(best=0.5, gone=2, left=1)) == ["left"]


def test_what_a_newcomer_cannot_be_given_and_has_otherwise() -> None:
    before = Note(2, {"teacher": 1, "gone": 2}, noted(point=Point(1), n=1))
    assert before.unlike(Note(2, {"teacher": 1}, noted(point=Point(1), n=2)), {}) == []
    assert before.unlike(Note(2, {"teacher": 3}, noted(n=1)), {}) == ["point", "teacher"]


def test_other_newcomers_and_other_loops_tell_nothing() -> None:
    told = [rank(weight=1.5), rank(newcomer=True, weight=1.0), rank(newcomer=True, weight=1.0), rank(3, weight=2.0)]
    assert to_take(told, 1) == noted(weight=1.5)
    told[0].note = Note(1)
    assert to_take(told, 1) == {} and to_refuse(told, 1, {}) == []


# ---- values that have moved -----------------------------------------------------------------------------------


def tell(*others: Note, mine: Note) -> list[Told]:
    """Return what all ranks tell. The newcomer is rank 0. All other ranks were equal in the loop before."""
    told = [Told(newcomer=True, note=mine), *(Told(note=one, earlier=Note(1, moved=one.sets)) for one in others)]
    return [Told.unpack(one.pack()) for one in told]


def other(moved: Noted, sets: Noted | None = None) -> Note:
    return Note(2, sets=sets or {}, moved=moved)


@pytest.mark.parametrize(
    ("moved", "leaves", "refused"),
    [
        ([noted(a=1.0)], noted(a=1.0), []),
        ([noted(a=1.0)], noted(a=2.0), ["a"]),
        ([noted(a=1.0)], {}, ["a"]),
        ([noted(a=1.0), noted(a=2.0)], noted(a=1.0), ["a"]),
        ([noted(a=1.0), {}], noted(a=1.0), []),
        ([noted(a=[0.5] * 100)], noted(a=[0.5] * 100), []),
        ([noted(a=[0.5] * 100)], noted(a=[0.5] * 99 + [1.0]), ["a"]),
        ([{}], noted(a=1.0), []),
        ([{"a": GONE}], noted(a=1.0), ["a"]),
        ([{"a": GONE}], {}, []),
    ],
    ids=[
        "alike",
        "unlike",
        "not there",
        "each rank's own",
        "of one alone",
        "long",
        "long and unlike",
        "not moved",
        "to be gone",
        "gone",
    ],
)
def test_what_has_moved_on_others_must_be_alike(moved: list[Noted], leaves: Noted, refused: list[str]) -> None:
    assert to_refuse(tell(*map(other, moved), mine=Note(2)), 0, leaves) == refused


def test_what_is_given_is_not_refused() -> None:
    a = noted(a=1.0)
    told = tell(other(a, a), other(a, a), mine=Note(2))
    assert to_take(told, 0) == a and to_refuse(told, 0, noted(a=2.0)) == []


def test_a_part_of_what_is_given_is_not_refused() -> None:
    sets, moved = {"main: all": b"\xa1a"}, {"all['x'].y": b"\x01", "allowed": b"\x02"}
    assert to_refuse(tell(Note(2, sets=sets, moved=moved), mine=Note(2)), 0, {}) == ["allowed"]


def test_another_newcomer_tells_nothing() -> None:
    told = tell(other({}), mine=Note(2))
    told.append(Told(newcomer=True, note=other(noted(a=1.0))))
    assert to_refuse(told, 0, noted(a=2.0)) == []


def test_its_own_note_goes_first() -> None:
    told = tell(other(noted(a=1.0)), mine=Note(2))
    told[0].before = Note(2)
    assert to_refuse(told, 0, noted(a=2.0)) == []


def test_what_loops_have_left_is_kept_for_the_last_of_them() -> None:
    note = Note()
    for loop in range(1, 5):
        note = replace(note, loop=loop).leaves(b"all", bytes(100_000))
    assert sorted(note.ended) == [3, 4] and Note.of(note.parts()) == note
    assert sorted(note.leaves(b"all", bytes(300_000)).ended) == [4], "the newest is kept whatever its length"
