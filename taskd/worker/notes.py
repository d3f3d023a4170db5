"""Notes of the values that each loop finds when it begins. A newcomer compares the note of its life before.

state/found.py and state/around.py say what is noted, and why. The note goes into the ledger, which a newcomer has
before it joins the other ranks. When a newcomer reaches the loop of its life before, it takes from the note what the
surrounding loops set. If it finds other tensors there, it refuses and names them. What its own note does not tell is
settled once with all ranks (state/note.py).
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from taskd import log
from taskd.state.around import Around
from taskd.state.coverage import SEALED, listed
from taskd.state.found import Findings, buffers_of, plain_in
from taskd.state.leaves import Thing, leaves_of, moved_between, moved_meanwhile
from taskd.state.ledger import Ledger
from taskd.state.note import Note, Told, as_said, changed_otherwise, to_refuse, to_take
from taskd.state.others import sealed_things
from taskd.state.plain import Noted, can_be_given
from taskd.worker import reads
from taskd.worker.heal import Repair
from taskd.worker.registered import Registered

WHAT = "what the loop finds"
UNLIKE = (
    "the loop uses {names}, and this newcomer has found something else there than its life before: what stands before "
    "the loop has made it from weights that were trained, or at random, and nobody registered it; name it in "
    "taskd.session().register(), or let session.between() give it"
)
OTHERWISE = (
    "the loop uses {names}, and this newcomer has reckoned something else there than all others: what stands before "
    "the loop has it from weights that were trained, or from what was saved meanwhile; let session.between() give it"
)
_logger = log.get(__name__)


class Notes:
    """The notes of one session."""

    def __init__(self, registered: Registered, ledger: Ledger, repair: Repair) -> None:
        self._registered, self._ledger, self._repair = registered, ledger, repair
        self._around = Around()
        registered.local.variables.others.uses = self._around.uses
        self._before = ledger.note
        """The note of the life before."""
        self._mine = Note(ended=ledger.note.ended)
        self._earlier = ledger.note
        """The note of the loop before this one."""
        self._leaves = Noted()
        """All plain values that the loop uses, as they were when the loop began."""
        self._clocks = _clocks()
        """The clocks when the loop began."""
        self._ended: tuple[Noted, Findings, list[float]] | None = None
        """The plain values and the buffers when the previous loop had ended, and the clocks at that moment."""
        self._unsettled = repair.newcomer
        """Whether this is a newcomer that has not heard from the other ranks yet."""
        self._came_late = False
        """Whether it has heard from them at the end of a loop, and has done no step since."""

    def loop_begins(self, loop: int, loader: Any) -> None:
        """Note what the loop finds when it begins."""
        if not self._repair.records:
            return
        look = self._registered.doubts.look
        if (
            loop == self._before.loop
        ):  # even if this newcomer has joined the others already and begins the loop like any other rank
            look(WHAT, self._give, self._before.sets)
        self._earlier = self._mine if self._mine.loop > self._before.loop else self._before
        mine = look(WHAT, self._look, loop, loader) or Note(loop)
        self._mine = replace(mine, left=self._mine.left, ended=self._mine.ended)
        if not self._repair.newcomer:
            self._note()

    def loop_ends(self) -> None:
        """Remember the values: if a value differs when the next loop begins, it was set between the two loops."""
        if self._repair.records:
            self._ended = self._registered.doubts.look(WHAT, self._look_at_the_end)

    @property
    def left(self) -> bytes:
        """The counters of the life before at the end of its last loop, if it came there."""
        return self._before.left

    def leaves(self, counters: bytes, rows: bytes) -> None:
        """Keep what this rank has at the end of this loop, for a newcomer: all that was looked at, and of that the
        counters and the rows."""
        self._mine = self._mine.leaves(counters, rows)
        self._note()

    def ended(self, loop: int) -> bytes:
        """Return what the life before had at the end of this loop. Empty: nobody knows."""
        return self._before.ended.get(loop, b"")

    def _look_at_the_end(self) -> tuple[Noted, Findings, list[float]]:
        return self._look_at_leaves(), buffers_of(self._registered.replica.models), _clocks()

    def _look(self, loop: int, loader: Any) -> Note:
        others = self._registered.local.variables.others
        things, queues = others.finds(), others.queues()
        self._registered.keeps(SEALED, sealed_things(others))
        kept = self._around.kept(self._registered.local.known())
        self._leaves, self._clocks, moved, buffers = self._look_at_leaves(), _clocks(), Noted(), dict[str, list[int]]()
        if self._ended is not None:
            before, left, clocks = self._ended
            moved = moved_between(before, self._leaves, zip(clocks, _clocks(), strict=True))
            now = buffers_of(self._registered.replica.models)
            buffers = {name: [left[name], digest] for name, digest in now.items() if name in left}
        self._ended = None
        return Note(loop, self._registered.found(things, kept, loader, queues), *self._plain(things), moved, buffers)

    def _look_at_leaves(self) -> Noted:
        known = self._registered.local.known()
        return leaves_of([*self._registered.local.variables.others.finds(known), *self._around.uses(known)], known)

    def _unseen(self) -> list[str]:
        """Return the names of what has changed, less what the source shows and what is put back."""
        local = self._registered.local
        looks = local.variables.looks
        if looks and looks[-1].others is not None:
            return []  # all of it is given what it should be
        known, but = local.known(), local.variables.others.written() | local.spots()
        now = leaves_of([*local.variables.others.finds(known), *self._around.uses(known)], known, but)
        return moved_meanwhile(self._leaves, now, zip(self._clocks, _clocks(), strict=True))

    def _plain(self, things: list[Thing]) -> tuple[Noted, Noted]:
        sets = self._around.sets(self._registered.local.known())
        finds = {**plain_in(things, self._around.makes), **self._around.goes_over()}
        return sets, {name: data for name, data in finds.items() if name not in sets}

    def _note(self) -> None:
        self._ledger.note = self._mine
        self._ledger.save()

    def _give(self, sets: Noted) -> None:
        if given := self._around.give(sets, self._registered.local.known()):
            _logger.info("this newcomer takes %s from before", listed(given))
        taken = self._registered.local.variables.others.given
        taken.missed = [name for name in taken.missed if name not in sets or not can_be_given(sets[name])]

    def flaw(self, loop: int) -> str:
        """Return why a newcomer that has reached this loop must not go on there, or an empty text."""
        names = self._before.unlike(self._mine, self._leaves) if loop == self._before.loop else []
        return UNLIKE.format(names=listed(map(as_said, names))) + reads.newer() if names else ""

    # ---- after a repair ---------------------------------------------------------------------------------------

    def told(self, lacks: bool) -> Told:
        """Return what this rank tells all ranks: the values that have not changed since the loop began."""
        note, earlier = replace(self._mine, sets={}, finds={}), self._earlier
        now = self._registered.doubts.look(WHAT, lambda: self._plain(self._registered.local.variables.others.finds()))
        if now is not None:
            sets, finds = map(_same, (self._mine.sets, self._mine.finds), now)
            note = replace(note, sets=sets, finds=finds)
        before = self._before if self._unsettled else Note()
        unseen = [] if self._unsettled else self._registered.doubts.look(WHAT, self._unseen) or []
        earlier = earlier if earlier.loop == note.loop - 1 else Note()
        return Told(lacks, self._unsettled, note, before, earlier, unseen)

    def heard(self, told: list[Told], rank: int, goes_on: bool) -> str:
        """Take what all ranks have told. Return why this rank must not go on, or an empty text. `goes_on`: all ranks
        are at the end of this loop, and will tell each other again what the next one finds."""
        unsettled, self._unsettled, came_late = self._unsettled, False, self._came_late
        self._came_late = unsettled and goes_on
        if not unsettled and not came_late:
            return ""
        names = to_refuse(told, rank, self._leaves) if unsettled else changed_otherwise(told, rank)
        if names:
            return OTHERWISE.format(names=listed(map(as_said, names))) + reads.newer()
        if taken := to_take(told, rank) if unsettled else {}:
            self._registered.doubts.look(WHAT, self._give, taken)
            self._mine = replace(self._mine, sets={**self._mine.sets, **taken})
        self._note()
        return ""


def _clocks() -> list[float]:
    return [time.time(), time.monotonic(), time.perf_counter()]


def _same(noted: Noted, now: Noted) -> Noted:
    return {name: data for name, data in noted.items() if now.get(name) == data}
