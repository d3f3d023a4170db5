"""Keeps the counters of a script's loop (`global_step += 1`) for as long as its steps may be done again.

Scripts do not register these numbers, but compute gradients from them. So this module looks at the counters
(counters.py) of the frame that asks for a step (script.py), whenever a step is handed out. It keeps the counters of
the last steps.

Lists, deques and dicts of numbers and texts (`losses.append(loss.item())`) are kept in the same way, if steps or what
follows them use their contents. They are called rows here. No other rank can know a rank's rows.

Failure modes: a survivor does a step again and counts it twice; a newcomer counts from where its script begins; a
newcomer has counted in its rehearsal; its record is of the previous step, or a survivor stopped in the middle of that
step (settling.py); its record is of another loop, whose sums the script has reset since.
Invariants: a rank that does a step again finds each counter as the first attempt found it. A newcomer begins its first
step with the counters of its record if it is in the loop of that record. In a later loop it begins with those of its
script. A healthy step sends nothing and keeps nothing of the script alive.

It does NOT see what counters.py does not see, loops in installed packages, and other code that moves a counter. A rank
or its predecessor (the process that a newcomer replaces) may have left a step after the update, before its end. Then
the rank's own sums miss that step.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch

from taskd.state.counters import Counters, Loop, name_of, row_of
from taskd.state.leaves import GENERATOR, GONE
from taskd.state.look import Look, fitting, unpacked
from taskd.state.moves import Moves, settle_moves
from taskd.state.numbering import Asked
from taskd.state.others import AskingLoops, Others, looked_at, spots_of_places
from taskd.state.places import NUMBERS, Place
from taskd.state.plain import is_scalar
from taskd.state.rest import Loops
from taskd.state.rows import Rows, put_rows, rows_at, same_in, shown_rows, used_in
from taskd.state.script import ELSEWHERE, FLOATS, MOST, WHOLE, Script, Values, frame_of
from taskd.state.settling import Settled, Table, alike, settle

KEPT = 12
"""Looks that are kept: enough to recognize a rank's own value, even if it moves only now and then."""
ROWS_KEPT = 2
"""Looks that keep the rows."""
NONE = Counters()


@dataclass(slots=True)
class Variables:
    """The counters of one session's script."""

    looks: deque[Look] = field(default_factory=lambda: deque(maxlen=KEPT))
    """The looks when the last steps were handed out for the first time, the newest last."""
    first: Look | None = None
    """The look before the first attempt at the last step, if the script has done it again by itself since then."""
    newcomer: bool = False
    """This rank has seen nothing of the step before the current one."""
    known: Callable[[], Set[int]] = frozenset
    """Returns the ids of objects that are restored in another way."""
    _settled: int = -1
    """The last step before which all ranks have settled what they lack."""
    inherited: Inherited = field(default_factory=lambda: Inherited())
    _before: Look | None = None
    """A newcomer's predecessor took this look when it began its last step."""
    _aside: Look | None = None
    _loops: AskingLoops = field(default_factory=AskingLoops)
    others: Others = field(init=False)

    def __post_init__(self) -> None:
        self.others = Others(self._loops, lambda: self.known())

    def doubtful(self, known: Set[int] = frozenset(), used: bool = False) -> list[str]:
        """Return the names of counters that cannot be put back. `known`: ids of objects that are put back; `used`:
        return only those that are certainly counted, and that steps use."""
        found, behind = set[str](), False
        for script, loop in self._loops.asking():
            seen_to = set[Any]() if behind else spots_of_places(script, loop, _put_back(loop, self.looks))
            names = {*loop.doubtful.unread, *script.elsewhere(loop.doubtful, known | seen_to)}
            names.update(*script.values(loop.doubtful))
            if behind:
                names |= {name for one in self._values(script, loop) for name in one if loop.moves(name)}
            computes = names & {*map(name_of, (*loop.carried, *loop.computes))}
            names.update(*script.values(loop.handed_on, WHOLE))
            names |= {one[1] for one, value in script.held(loop.counts) if _sums(value)}
            names -= set() if behind else {place.text for place in loop.counts.places}
            there = script.everything(loop.handed_on.places, known)
            names |= {text for text, value in there.items() if type(value) in WHOLE}
            found |= computes & names if used else names
            behind = True
        return sorted(found if not self.looks else self.looks[-1].without_given(found))

    def handed_out(self, number: int, loop: int, whole: bool = True, late: bool = False, raised: bool = False) -> None:
        """The script gets this step: note its counters, or set them to what they were. `whole`: the body of the
        previous step has run to its end. `late`: a newcomer has passed all steps that are done, and may have counted
        them. `raised`: an error of this rank has left the step before, and a marker (`failed = True`) shall stay."""
        script = Script.asking()
        if script is None:
            return
        look = self._look(script, number, loop)
        seen = self.looks[-1] if self.looks else None
        if self.inherited.looks:
            self._begin(script, look, late)
        elif seen is not None and seen.number == number and seen.is_beside(look):
            if self.first is not None and self.first.number == number:
                seen = self.looks[-1] = self.first
            self._put(script, _changes(look.values, seen.values), seen, markers_stay=raised or len(self.looks) == 1)
        else:
            look.lacks = not (whole or self._settled == number)
            if seen is not None:
                look.follows(seen)
            if seen is not None and seen.number == number:  # the same step, in another loop
                self.looks.pop()
            self.looks.append(look)
            self.others.hooks.forget()
            self.newcomer = False
            if len(self.looks) > ROWS_KEPT:
                self.looks[-1 - ROWS_KEPT].forget_rows()

    def at_the_end(self, number: int, loop: int) -> tuple[bytes, bytes]:
        """Return the look where this loop ends, packed like those of a step, and the same without other values."""
        script = Script.asking()
        if script is None:
            return b"", b""
        look = self._look(script, number, loop)
        return look.pack(), look.without_others().pack()

    def used(self) -> tuple[list[str], list[str]]:
        """Return the names of rows, and of counters that the loop moves and uses, as it ends. Return also the names of
        other values that steps of a later loop may use."""
        script, look = Script.asking(), self.looks[-1]
        if script is None:
            return [], []
        loop, others = self._loops.of(script), {*(look.others or {})} & look.moved
        values = [one.values[ELSEWHERE] for one in self.looks if one.place == look.place]
        others |= {name for name in loop.moved_unseen if len({one.get(name) for one in values}) > 1}
        return used_in(loop, look.values, look.rows), sorted(others - self.others.set_before_use(look))

    def _look(self, script: Script, number: int, loop: int) -> Look:
        found = self._loops.of(script)
        self.others.look_inside(number, is_new=not self.looks or self.looks[-1].loop != loop)
        rows, leaves, graphs, self.others.left_out = rows_at(script, found, self.others.beside())
        self.others.graphs.follow(graphs)
        look = Look(number, loop, script.place, self._values(script, found), rows=rows, leaves=leaves)
        look.digests = {name: zlib.crc32(data) for name, data in rows.items()}
        self.others.look(look)
        return look

    def _values(self, script: Script, loop: Loop) -> Values:
        found = script.values(loop.counts)
        if loop.handed_on != NONE:
            for place, more in zip(found, script.values(loop.handed_on, FLOATS), strict=True):
                place.update(more)
        for places, kinds in ((loop.counts.places, NUMBERS), (loop.handed_on.places, FLOATS)):
            there = script.everything(places[:MOST], self.known()) if places else {}
            found[ELSEWHERE].update((text, value) for text, value in there.items() if type(value) in kinds)
        return found

    def _put(self, script: Script, values: Values, look: Look | None = None, markers_stay: bool = False) -> None:
        """`markers_stay`: see Observed.put. It holds for the very first step, and for one that an error has left."""
        loop = self._loops.of(script)
        script.put(values, [*loop.counts.places, *loop.handed_on.places])
        if look is not None:
            put_rows(script, loop, self.others.beside(), look.rows, look.take)
            self.others.put(look, markers_stay)

    def numbered(self) -> Asked:
        """Return the functions of the script that number the steps, and use the numbers."""
        found = [(frame_of(script), loop) for script, loop in self._loops.asking() if loop.numbered.used]
        return Asked([frame for frame, _ in found], all(loop.numbered.settable for _, loop in found))

    def held(self, known: Callable[[], Set[int]] = frozenset, perhaps: bool = False) -> dict[str, Any]:
        """Return, by name, what steps hand on to each other and use, or change in place, except for numbers and rows.
        `known`: ids of objects that are put back; `perhaps`: return only what may be handed on or not."""
        found, rows = dict[str, Any](), self.looks[-1].given() if self.looks else set[str]()
        carried = self.others.carried
        kept = {id(value) for name, value in carried.items() if name in rows}
        if not perhaps:
            found |= {name: value for name, value in carried.items() if name not in rows}
        for script, loop in self._loops.asking():
            places = loop.perhaps if perhaps else loop.carried
            if rows:
                last = self.looks[-1]
                places = tuple(one for one in places if (row := row_of(one)) is None or last.without_given([row.text]))
            if places:
                things = script.things(places, known())
                found.update((name, value) for name, value in things if id(value) not in kept)
            rows = set()
        return found

    def _begin(self, script: Script, look: Look, late: bool) -> None:
        """A newcomer's script gets its first step."""
        last = self.inherited.looks[-1]
        here = last.number == look.number
        if last.is_beside(look) and (here or not late):
            self._put(script, last.values, last, markers_stay=len(self.inherited.looks) == 1)
            self.others.observed.adopt(last.others or {})
            look = self._look(script, look.number, look.loop)
        look.follows(last)
        self.looks.clear()
        self.looks.extend(one for one in self.inherited.looks if one.number < look.number)
        self.looks.append(look)
        self.newcomer = look.lacks = not here
        self._before = last if last.is_beside(look) else None
        self.inherited.looks = []

    def handed_on(self, digests: dict[str, int], put_back: Set[str]) -> list[str]:
        """Note the digests of what the current step finds. Return the names of values that its first attempt found
        different, on this rank or in a newcomer's predecessor. `put_back`: names of what a repair puts back anyway."""
        before, self._before = self._before, None
        if self.looks and self.looks[-1].packed is None:
            self.looks[-1].handed = digests
        elif self.looks:
            before = before or self.looks[-1]
        if before is None:
            return []
        unlike = {name for name, digest in before.handed.items() if digests.get(name, 0) != digest}
        return sorted(before.without_given(unlike) - put_back - self.others.unmade)

    # ---- after a repair ---------------------------------------------------------------------------------------

    def _seen(self, number: int) -> Look | None:
        return self.looks[-1] if self.looks and self.looks[-1].number == number else None

    def lacks(self, number: int) -> bool:
        """Whether this rank has received this step without having seen the end of the previous one."""
        seen = self._seen(number)
        return seen is not None and seen.lacks

    def tell(self, number: int) -> bytes:
        """Return what this rank knows, so that all ranks can settle what each lacks."""
        seen = self._seen(number)
        if seen is None:
            return Table(False, False, []).pack()
        looks = [(look.number, look.place, list(map(fitting, look.values))) for look in self.looks]
        return Table(seen.lacks, self.newcomer, looks, self._moves(seen).told()).pack()

    def _moves(self, seen: Look) -> Moves:
        """Return what this rank knows of rows and other values."""
        beside = [one for one in self.looks if one.place == seen.place]
        if len(beside) < 2:
            return Moves(seen.lacks, None, seen.every)
        last = beside[-2]
        same = same_in(last.every, seen.every) if seen.lacks else set[str]()
        same -= {name for name in same if seen.every[name].startswith(GENERATOR)}  # where it stands is put back
        if len(beside) > 2:  # what no step has changed so far is not gathered, as if an option of the script were off
            same &= seen.moved
        if seen.lacks:  # tensors that steps may set twice
            same |= seen.leaves.keys() & seen.moved
        if same - seen.rows.keys():
            same -= self.others.set_before_use(seen)
        new = seen.moved - last.moved if last.is_beside(seen) else set[str]()
        history = [(one.number, one.digests) for one in self.looks if one.place == seen.place and one is not seen]
        return Moves(seen.lacks, last.every, seen.every, sorted(last.moved), sorted(same), sorted(new), history)

    def hear(self, number: int, told: list[bytes], rank: int) -> Settled:
        """Take what this rank lacks from what all have told."""
        tables = [Table.unpack(one) for one in told]
        settled = settle(tables, rank, number)
        moves = [Moves.heard(table.moves) for table in tables]
        take, unknown = settle_moves(moves, rank)
        unknown -= self.others.observed.has_hooks(unknown, [one.now for one in moves if one and not one.lacks])
        script, seen = Script.asking(), self._seen(number)
        if script is not None and seen is not None:
            loop = self._loops.of(script)
            unknown |= {name for name in seen.rows if take.get(name) == GONE}  # it holds more than values elsewhere
            take = {name: data for name, data in take.items() if name not in unknown}
            settled.judge(
                {*map(name_of, loop.computes), *loop.moved_unseen}, {*map(name_of, (*loop.carried, *loop.perhaps))}
            )
            settled.spare(loop.shown)
            shown = shown_rows(script, loop, self.known())
            settled.refused |= unknown - loop.shown - shown
            settled.shown |= unknown & shown
            if seen.others is None and (lost := take.keys() - seen.rows.keys()):
                settled.refused |= lost
                settled.alone = True
            if seen.lacks:
                settled.unsure |= (
                    _unmoved(script.everything(loop.carried, self.known()), seen) - take.keys() - settled.refused
                )
            self._put(script, settled.take, seen.with_these(take) if take else None)
            if not settled.refused:  # otherwise this rank still lacks them, if it lives on
                self.looks[-1] = self._look(script, number, seen.loop).follows(seen)
                self.newcomer, self._settled = False, number
        return settled

    # ---- a rehearsal ------------------------------------------------------------------------------------------

    def rehearsal_begins(self) -> Loops:
        """A rehearsal begins, of which nothing is to be kept. Return the functions that ask for the step, the innermost
        first, with all that their loops may set."""
        script = Script.asking()
        self._aside = None if script is None else self._look(script, -1, -1)
        return Loops((one.loop[0], (*loop.written, *loop.counts.places)) for one, loop in self._loops.asking())

    def rehearsed(self, passes_loop: bool = False) -> None:
        """The rehearsal is over: undo what it has counted. `passes_loop`: the script goes on behind the loop, where it
        must find rows that are not empty (`sum(losses) / len(losses)`)."""
        script, aside, self._aside = Script.asking(), self._aside, None
        if script is not None and aside is not None and aside.place == script.place:
            aside.others = None  # what the rehearsal has changed there is put back in another way (rest.py)
            kept = None if passes_loop else aside
            self._put(script, _changes(self._look(script, -1, -1).values, aside.values), kept)

    # ---- the record -------------------------------------------------------------------------------------------

    def pack(self) -> list[bytes]:
        """Return the looks of the last steps, for the record."""
        return [look.pack() for look in self.looks]


def restoring(variables: Variables, before: Rows | None = None) -> Rows:
    """Return what a newcomer finds before it takes the state, and after that. `before`: what it has found before; what
    is otherwise now, such as how often a loader was opened, was so when its life before looked first."""
    if (script := Script.asking()) is None:
        return {}
    found = variables._look(script, -1, -1).others or {}
    if before is not None:
        variables.others.observed.keep_restored(before, found)
    return found


def seen_to(variables: Variables) -> set[int]:
    """Return the ids of what is put back, or looked at, where the script asks for a step."""
    script = Script.asking()
    if script is None or not variables.looks:
        return set()
    gathered = rows_at(script, variables._loops.of(script), variables.others.beside())
    rows = {id(one()) for leaves in gathered.leaves.values() for one in leaves}
    return rows | looked_at(variables.others, variables.looks[-1])


def keep_what_is_set(variables: Variables, number: int, loop: int) -> None:
    """The script does this step again by itself, so what it has set stays. If a repair lets all ranks do the step
    again, they all begin where the first attempt has begun, as a newcomer does. If the update counts, a newcomer goes
    on from the last attempt."""
    script, looks = Script.asking(), variables.looks
    if script is None or not looks or looks[-1].number != number:
        return
    look, before = variables._look(script, number, loop), looks.pop()
    if variables.first is None or variables.first.number != number:
        variables.first = before
    look.lacks = before.lacks
    looks.append(look)


def pass_loop(variables: Variables, ended: bytes) -> None:
    """A newcomer passes a loop that is over. What is behind it finds the counters and rows that the life before had
    there: `ended`, as `at_the_end` packed them. Raises PeerError."""
    script, then = Script.asking(), unpacked(ended)
    if script is not None and then.place == script.place:
        variables._put(script, _changes(variables._look(script, -1, -1).values, then.values))
        put_rows(script, variables._loops.of(script), variables.others.beside(), then.rows, then.take)


@dataclass(slots=True)
class Inherited:
    """The looks of a newcomer's predecessor, until the newcomer begins its first step with the last of them."""

    looks: list[Look] = field(default_factory=list)

    def adopt(self, data: list[bytes]) -> None:
        """Take over what a dead rank has packed. Raises PeerError if it is unreadable."""
        self.looks = [unpacked(packed) for packed in data]

    def came_to_the_end(self, left: bytes) -> None:
        """Take over the look at the end of its last loop, too, if the rank came there. Raises PeerError."""
        if left and self.looks:
            end, last = unpacked(left), self.looks[-1]
            self.looks += [end] if end.is_beside(last) and end.number > last.number else []


def _put_back(loop: Loop, looks: Sequence[Look]) -> list[Place]:
    """Return the places in other objects whose numbers the last look knows."""
    there = looks[-1].values[ELSEWHERE] if looks else {}
    return [place for one in (loop.counts, loop.handed_on) for place in one.places if place.text in there]


def _changes(one: Values, other: Values) -> Values:
    """Return the values of `other` that differ from those of `one`."""
    return [
        {name: value for name, value in b.items() if not alike(a.get(name), value)}
        for a, b in zip(one, other, strict=True)
    ]


def _unmoved(there: dict[str, Any], seen: Look) -> set[str]:
    """Return the names of flags, texts and members of Enums that steps hand on and that none has changed: perhaps the
    last one did, and this rank has not seen that."""
    plain = {name for name, value in there.items() if _is_a_mark(value)}
    return plain - seen.moved - seen.every.keys()


def _is_a_mark(value: Any) -> bool:
    """Whether it is a flag, a text or a member of an Enum."""
    return (is_scalar(value) and type(value) not in NUMBERS) or issubclass(type(value), Enum)


def _sums(value: Any) -> bool:
    """Whether it is not a number, but may be added up like one."""
    kind = type(value)
    return issubclass(kind, (torch.Tensor, list)) or kind.__module__ == "numpy"
