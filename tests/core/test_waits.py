"""Which ranks wait for which: a chain ends at a rank that waits for none, rings are named, groups go by number."""

from __future__ import annotations

import random

import pytest

from taskd.core.messages import Place
from taskd.core.waits import Knot, all_wait_for, digest, find, waits_in

ALLREDUCE, BROADCAST, SEND, RECV = 1, 0, 12, 13


def place(rank: int, group: str, entered: int, left: int | None = None, kind: int = ALLREDUCE) -> Place:
    """Return a place inside operation `entered` of the group with this name, unless the rank has `left` it."""
    return Place(rank, digest(group), kind, entered, entered - 1 if left is None else left)


def found(size: int, *places: Place) -> tuple[Knot, tuple[int, ...], str]:
    own: dict[int, list[Place]] = {rank: [] for rank in range(size)}
    for one in places:
        own[one.rank].append(one)
    waits = find(own, size)
    return waits.knot, waits.awaited, waits.text


def test_one_has_not_entered_what_others_have() -> None:
    all_but_1 = [place(rank, "0@0-3", 812) for rank in (0, 2, 3)]
    text = "rank 1 has not entered allreduce #812 of group 0@0-3, for which ranks 0 and 2-3 wait"
    assert found(4, *all_but_1, place(1, "0@0-3", 811, 811)) == (Knot.FOR_SOME, (1,), text)
    assert found(4, *all_but_1) == (Knot.FOR_SOME, (1,), text)  # it never entered the group; the name lists it


def test_a_chain_ends_at_whom_nobody_holds_up() -> None:
    knot, awaited, text = found(
        4,
        place(0, "0@0-1", 5),
        place(1, "0@0-1", 4, 4),
        place(1, "3@1-2", 7),
        place(2, "3@1-2", 6, 6),
        place(3, "0@0-3", 2, 2),
    )
    assert (knot, awaited) == (Knot.FOR_SOME, (2,))
    assert text == (
        "rank 2 has not entered allreduce #7 of group 3@1-2, for which rank 1 waits; rank 0 waits for those in turn"
    )


def test_several_are_awaited() -> None:
    knot, awaited, text = found(4, place(0, "0@0-3", 9), *[place(rank, "0@0-3", 8, 8) for rank in (1, 2, 3)])
    assert (knot, awaited) == (Knot.FOR_SOME, (1, 2, 3))
    assert text == "ranks 1-3 have not entered allreduce #9 of group 0@0-3, for which rank 0 waits"


def test_one_has_not_come_out_of_what_others_have() -> None:
    knot, awaited, text = found(3, place(0, "0@0-2", 6), place(1, "0@0-2", 6), place(2, "0@0-2", 5))
    assert (knot, awaited) == (Knot.FOR_SOME, (2,))
    assert text.startswith("rank 2 has not come out of allreduce #5 of group 0@0-2, as others have, for which")


def test_groups_in_opposite_order() -> None:
    knot, awaited, text = found(
        2, place(0, "0@0-1", 5), place(0, "1@0-1", 3, 3), place(1, "0@0-1", 4, 4), place(1, "1@0-1", 4, kind=BROADCAST)
    )
    assert (knot, awaited) == (Knot.FOR_EACH_OTHER, ())
    assert text == (
        "ranks 0-1 wait for each other: rank 0 in allreduce #5 of group 0@0-1 and rank 1 in broadcast #4 of group "
        "1@0-1; they have entered these groups in different orders"
    )


def test_all_are_inside() -> None:
    inside = [place(rank, "0@0-3", 7) for rank in range(4)]
    text = "ranks 0-3 are inside allreduce #7 of group 0@0-3, and nobody else is awaited"
    assert found(4, *inside) == (Knot.TOGETHER, (), text)
    other = place(2, "0@0-3", 7, kind=BROADCAST)
    knot, _, text = found(4, *inside[:2], other, inside[3])
    assert knot is Knot.TOGETHER
    assert text == (
        "rank 0 is in allreduce #7 of group 0@0-3, rank 2 in broadcast #7 of group 0@0-3: they have entered different "
        "operations"
    )


def test_of_whom_nobody_tells_who_is_to_blame_all_are_named() -> None:
    ring = {0: [place(0, "0@0-1", 5), place(0, "1@0-1", 3, 3)], 1: [place(1, "0@0-1", 4, 4), place(1, "1@0-1", 4)]}
    assert find(ring, 2).named == (0, 1)
    other = {0: [place(0, "0@0-2", 7)], 1: [place(1, "0@0-2", 7)], 2: [place(2, "0@0-2", 7, kind=BROADCAST)]}
    assert find(other, 3).named == (0, 2)


def test_messages_name_no_partner() -> None:
    waits = place(2, "0@0-2 messages", 4, 3, RECV)
    assert found(3, waits, place(0, "0@0-2 messages", 4, 4, SEND)) == (
        Knot.FOR_SOME,
        (0, 1),
        "rank 2 is in a message, and ranks 0-1 in no operation",
    )
    knot, awaited, _ = found(3, *(place(rank, "0@0-2 messages", 4, 3, RECV) for rank in range(3)))
    assert (knot, awaited) == (Knot.TOGETHER, ())


def test_who_is_in_a_message_may_be_awaited_by_others() -> None:
    message = place(1, "0@0-1 messages", 4, 3, RECV)
    text = "rank 1 has not entered allreduce #5 of group 0@0-1, for which rank 0 waits"
    assert found(2, place(0, "0@0-1", 5), message) == (Knot.FOR_SOME, (1,), text)


@pytest.mark.parametrize("seed", range(200))
def test_whatever_pages_say_something_is_found(seed: int) -> None:
    draw = random.Random(seed)
    size = draw.choice((1, 2, 3, 5))
    groups = ["0@0-4", "1@0-1", "2@1-2", "0@0-2 messages"]
    kinds = (ALLREDUCE, BROADCAST, SEND, RECV, 77)
    places = [
        place(draw.randrange(size), draw.choice(groups), draw.randrange(4), draw.randrange(4), draw.choice(kinds))
        for _ in range(draw.randrange(8))
    ]
    knot, awaited, text = found(size, *places)
    assert text and (knot is Knot.FOR_SOME) == bool(awaited) and set(awaited) <= set(range(size))


def test_nobody_waits() -> None:
    assert found(2, place(0, "0@0-1", 4, 4), place(1, "0@0-1", 4, 4))[:2] == (Knot.NOT_AT_ALL, ())
    assert found(2)[:2] == (Knot.NOT_AT_ALL, ())


@pytest.mark.parametrize("kind", [99, 65_535])
def test_numbers_from_a_page_are_anybody_s(kind: int) -> None:
    strange = Place(0, 2**32 - 1, kind, 2**63 - 1, 0)
    knot, awaited, text = found(2, strange, Place(1, 2**32 - 1, kind, 0, 2**63 - 1))
    assert (knot, awaited) == (Knot.FOR_SOME, (1,))
    assert "operation #9223372036854775807 of group 0xffffffff" in text
    assert waits_in([strange])


STEPS = "0@0-2"


@pytest.mark.parametrize(
    ("where", "all_wait"),
    [
        ([(7, 6), (6, 6), (7, 6)], True),
        ([(7, 6), (7, 6), (7, 6)], True),  # it was stopped inside the operation that all are in
        ([(8, 7), (7, 6), (7, 6)], True),  # and one rank has left that operation already
        ([(7, 6), (6, 6), (6, 6)], False),  # another rank has not entered it, either
        ([(7, 6), (8, 7), (7, 6)], False),  # it waits for the others
    ],
)
def test_whether_all_wait_for_one_and_the_operation_it_is_in(where: list[tuple[int, int]], all_wait: bool) -> None:
    places = {rank: [place(rank, STEPS, entered, left)] for rank, (entered, left) in enumerate(where)}
    assert all_wait_for(1, places, 3) is all_wait


def test_all_wait_for_one_through_others() -> None:
    first, second = "0@0-1", "1@1-2"
    chain = {
        0: [place(0, first, 5)],
        1: [place(1, first, 4, 4), place(1, second, 7)],
        2: [place(2, second, 7)],  # it was stopped in there
    }
    assert all_wait_for(2, chain, 3)


def test_who_does_not_wait_for_it_is_in_the_way() -> None:
    apart = {**{rank: [place(rank, "0@0-2", 7)] for rank in range(3)}, 3: []}
    assert not all_wait_for(3, apart, 4)  # rank 3 is in none of their groups
    different = {0: [place(0, "0@0-1", 7)], 1: [place(1, "0@0-1", 7, kind=BROADCAST)]}
    assert not all_wait_for(1, different, 2)  # another operation: a newcomer would come to this point again
    assert not all_wait_for(1, {0: [], 1: []}, 2)
    messages = {0: [place(0, "0@0-1 messages", 4, 3, RECV)], 1: []}
    assert all_wait_for(1, messages, 2)
