"""Finds which ranks wait for which, in a job that stands still, from their places in their process groups. Pure.

A rank is inside an operation that it has entered and not left. It waits for the members of that group that have not
entered the operation. A rank that waits for others itself is only a link of the chain. The ranks at the end of the
chain are the awaited ones. Failure modes, and what is found then:

- *Two groups are entered in opposite order*: the chain has no end, because each rank waits for the other.
- *All members are inside the same operation*: no rank is awaited. They wait for the network, or have entered different
  operations.
- *Messages* (send, recv) name no partner: a rank in a message waits for some rank. Ranks in no operation are awaited.
- *A rank has never entered a group*: no beat page shows it there. It counts as a member only where the group's number
  tells so.

It judges neither time nor processes (hangs.py does).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache

from taskd.core.messages import Place
from taskd.core.words import join, rank_words, span_words, spans, verb

_KINDS = (
    *("broadcast", "allreduce", "allreduce_coalesced", "reduce", "allgather", "_allgather_base", "allgather_coalesced"),
    *("gather", "scatter", "reduce_scatter", "alltoall_base", "alltoall", "send", "recv", "recvanysource", "barrier"),
    *("_reduce_scatter_base", "coalesced", "_allreduce_sparse", "reduce_scatter_tensor_coalesced"),
)
"""c10d's operations by their number (OpType)."""
_MESSAGES = frozenset(map(_KINDS.index, ("send", "recv", "recvanysource")))
_ORDINALS = 64
"""Groups of the same members that are known by name."""


class Knot(Enum):
    """How the ranks wait."""

    FOR_SOME = auto()  # for ranks that wait for no other rank
    FOR_EACH_OTHER = auto()
    TOGETHER = auto()  # all have entered the same operation
    NOT_AT_ALL = auto()  # no rank is inside an operation


@dataclass(frozen=True, slots=True)
class Waits:
    """What was found."""

    knot: Knot
    awaited: tuple[int, ...]  # only with FOR_SOME
    text: str  # the finding in words
    named: tuple[int, ...] = ()  # the ranks that the text names; each of them may be the cause


@dataclass(slots=True)
class Operation:
    """An operation that at least one rank is inside of."""

    place: Place  # of the first rank inside
    inside: list[int]
    missing: list[int]  # the members that have not entered it
    alike: bool = True  # all have entered the same kind of operation; if not, it never ends


class Groups:
    """The process groups of a job, and where each rank is in them."""

    def __init__(self, places: Mapping[int, Sequence[Place]], size: int) -> None:
        """`places`: by rank, for all ranks. `size`: the number of ranks of the job."""
        self.inside: dict[int, list[Operation]] = {}  # by rank: what the rank has entered and not left
        self.in_message: set[int] = set()
        self.operations: dict[tuple[int, int], Operation] = {}
        self._members: dict[int, dict[int, Place]] = {}
        waiting = list[tuple[int, Place]]()
        for rank, own in places.items():
            for place in own:
                if place.kind not in _MESSAGES:
                    self._members.setdefault(place.group, {})[rank] = place
                    if place.left < place.entered:
                        waiting.append((rank, place))
                elif place.left != place.entered:
                    self.in_message.add(rank)
        self._named = {number: _name(number, tuple(sorted(seen)), size) for number, seen in self._members.items()}
        for rank, place in waiting:
            self._enter(rank, place)

    def _enter(self, rank: int, place: Place) -> None:
        operation = self.operations.get((place.group, place.entered))
        if operation is None:
            there = self._members[place.group]
            members = self._named[place.group][1]
            missing = [one for one in members if one not in there or there[one].entered < place.entered]
            operation = self.operations[place.group, place.entered] = Operation(place, [], missing)
        operation.inside.append(rank)
        operation.alike &= place.kind == operation.place.kind
        self.inside.setdefault(rank, []).append(operation)

    def waits(self, rank: int) -> bool:
        """Whether a rank waits for another one."""
        return any(operation.missing for operation in self.inside.get(rank, ()))

    def awaited_by(self, rank: int) -> dict[int, Place]:
        """Return the ranks that this rank waits for, each with the operation."""
        return {other: operation.place for operation in self.inside.get(rank, ()) for other in operation.missing}

    def words(self, place: Place) -> str:
        """`allreduce #812 of group 0@0-3`."""
        kind = _KINDS[place.kind] if place.kind < len(_KINDS) else "operation"
        return f"{kind} #{place.entered} of group {self._named[place.group][0]}"

    def place_of(self, rank: int, like: Place) -> Place | None:
        """Return where a rank is in the group of this place."""
        return self._members[like.group].get(rank)


@lru_cache(maxsize=4096)
def _name(number: int, seen: tuple[int, ...], size: int) -> tuple[str, tuple[int, ...]]:
    """Return a group's name and members. The number of a group in the beat page is a digest of its name. `seen`: the
    ranks in whose pages it stands."""
    for members in (seen, tuple(range(size))):
        words = ",".join(map(span_words, spans(members)))  # as csrc/c10d/guard.cpp writes them
        for ordinal in range(_ORDINALS):
            if digest(name := f"{ordinal}@{words}") == number:
                return name, members
    return f"{number:#x}", seen


def find(places: Mapping[int, Sequence[Place]], size: int) -> Waits:
    """Find which ranks are awaited, given that all of these ranks stand still."""
    groups = Groups(places, size)
    waiting = {rank for rank in groups.inside if groups.waits(rank)}
    ends: dict[int, Operation] = {}  # by awaited rank: an operation that it is missing in
    in_message: dict[int, Operation] = {}  # the same, for awaited ranks that are in a message themselves
    for operation in groups.operations.values():
        for other in operation.missing:
            if other not in waiting:
                (in_message if other in groups.in_message else ends).setdefault(other, operation)
    idle = [rank for rank in places if rank not in groups.inside and rank not in groups.in_message]
    if not ends and groups.in_message and idle:
        text = f"{_who(groups.in_message)} in a message, and {rank_words(idle)} in no operation"
        return Waits(Knot.FOR_SOME, tuple(sorted(idle)), text)
    if ends := ends or in_message:
        return Waits(Knot.FOR_SOME, tuple(sorted(ends)), _of_some(groups, waiting, ends))
    if waiting:
        return Waits(Knot.FOR_EACH_OTHER, (), *_of_each_other(groups, min(waiting)))
    if groups.inside:
        return Waits(Knot.TOGETHER, (), *_together(groups))
    if groups.in_message:
        return Waits(Knot.TOGETHER, (), f"{_who(groups.in_message)} in messages, and nobody else is awaited")
    return Waits(Knot.NOT_AT_ALL, (), "no rank waits in an operation with others")


def all_wait_for(rank: int, places: Mapping[int, Sequence[Place]], size: int) -> bool:
    """Whether all other ranks wait for this one inside operations, directly or through others. A rank in the same
    operation as a waiting rank counts as waiting. A rank in a message may wait for any rank, so it counts, too."""
    groups = Groups(places, size)
    holds_up: dict[int, list[Operation]] = {}  # by rank: the operations that cannot end before it has done its part
    for operation in groups.operations.values():
        for one in (*operation.inside, *operation.missing) if operation.alike else ():
            holds_up.setdefault(one, []).append(operation)
    waiting = {rank, *groups.in_message.intersection(places)}
    heads, followed = list(waiting), set[int]()
    while heads:
        for operation in holds_up.pop(heads.pop(), ()):
            if id(operation) not in followed:
                followed.add(id(operation))
                heads += (other for other in operation.inside if other not in waiting)
                waiting.update(operation.inside)
    return waiting.issuperset(places)


def waits_in(places: Sequence[Place]) -> bool:
    """Whether a rank in these places is inside an operation."""
    return any(place.left != place.entered for place in places)


def digest(name: str) -> int:
    """FNV-1a, as csrc/c10d/progress.cpp makes a group's number."""
    number = 2166136261
    for letter in name.encode():
        number = (number ^ letter) * 16777619 & 0xFFFFFFFF
    return number


def _of_some(groups: Groups, waiting: Collection[int], ends: Mapping[int, Operation]) -> str:
    """`rank 1 has not entered allreduce #812 of group 0@0-3, for which ranks 0, 2 and 3 wait`."""
    first = min(ends)
    operation = ends[first]
    alike = sorted(end for end, other in ends.items() if other is operation)
    own = groups.place_of(first, operation.place)
    if len(alike) == 1 and own is not None and own.left < own.entered:
        text = f"rank {first} has not come out of {groups.words(own)}, as others have"
    else:
        text = f"{rank_words(alike)} {verb(len(alike), 'has', 'have')} not entered {groups.words(operation.place)}"
    here = operation.inside
    text += f", for which {rank_words(here)} {verb(len(here), 'waits', 'wait')}"
    behind = sorted(set(waiting).difference(here))
    return text + (f"; {rank_words(behind)} {verb(len(behind), 'waits', 'wait')} for those in turn" if behind else "")


def _of_each_other(groups: Groups, first: int) -> tuple[str, tuple[int, ...]]:
    """`ranks 0 and 1 wait for each other: rank 0 is in ..., rank 1 in ...`. `first`: a rank that waits."""
    walk = [first]
    while (following := min(groups.awaited_by(walk[-1]))) not in walk:
        walk.append(following)
    ring = walk[walk.index(following) :]
    ways = [(rank, groups.words(groups.awaited_by(rank)[ring[(at + 1) % len(ring)]])) for at, rank in enumerate(ring)]
    text = join([f"rank {rank} in {words}" for rank, words in ways[:4]])
    text = f"{rank_words(ring)} wait for each other: {text}; they have entered these groups in different orders"
    return text, tuple(ring)


def _together(groups: Groups) -> tuple[str, tuple[int, ...]]:
    """`all of ranks 0-3 are inside allreduce #812 of group 0@0-3`, or what differs."""
    first = min(groups.inside)
    place = groups.inside[first][0].place
    for rank in sorted(groups.inside):
        own = groups.place_of(rank, place)
        if own is not None and own.entered == place.entered and own.kind != place.kind:
            ours, theirs = groups.words(place), groups.words(own)
            text = f"rank {first} is in {ours}, rank {rank} in {theirs}: they have entered different operations"
            return text, (first, rank)
    return f"{_who(groups.inside)} inside {groups.words(place)}, and nobody else is awaited", ()


def _who(ranks: Collection[int]) -> str:
    return f"{rank_words(ranks)} {verb(len(ranks), 'is', 'are')}"
