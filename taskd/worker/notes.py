"""What each loop finds when it begins, noted for whoever replaces this rank, and compared by a newcomer.

What is noted, and why, stands in state/found.py and state/around.py. The note goes into the ledger, which a newcomer
has before it joins anybody. In the loop of its life before it takes what the loops around that one set from the note.
If it finds other tensors there it refuses, with their names. What no note of its own tells is settled once with all
ranks (state/note.py).
"""

from __future__ import annotations

import time
from collections.abc import Set
from dataclasses import replace
from typing import Any

from taskd import log
from taskd.state.around import Around
from taskd.state.coverage import listed
from taskd.state.found import plain_in
from taskd.state.leaves import NONE, Thing, leaves_of, moved_between, moved_meanwhile
from taskd.state.ledger import Ledger
from taskd.state.note import Note, Told, as_said, to_refuse, to_take
from taskd.state.places import Spot
from taskd.state.plain import Noted
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
    """Of one session."""

    def __init__(self, registered: Registered, ledger: Ledger, repair: Repair) -> None:
        self._registered, self._ledger, self._repair = registered, ledger, repair
        self._around = Around()
        self._before = ledger.note
        """What its life before has found."""
        self._mine = Note()
        self._earlier = ledger.note
        """Of the loop before this one."""
        self._leaves = Noted()
        """All that is plain of what the loop uses, as it was when it began."""
        self._clocks = _clocks()
        """What they said then."""
        self._ended: tuple[Noted, list[float]] | None = None
        """The same as it was when the loop before had ended, and what the clocks said."""
        self._unsettled = repair.newcomer
        """It is a newcomer and has not heard the others yet."""

    def loop_begins(self, loop: int, loader: Any) -> None:
        """Note what there is."""
        if not self._repair.records:
            return
        look = self._registered.doubts.look
        if (
            loop == self._before.loop
        ):  # be it one that this newcomer begins like any other rank, since it has joined them
            look(WHAT, self._give, self._before.sets)
        self._earlier = self._mine if self._mine.loop > self._before.loop else self._before
        self._mine = look(WHAT, self._look, loop, loader) or Note(loop)
        if not self._repair.newcomer:
            self._note()

    def loop_ends(self) -> None:
        """Remember what there is: what is otherwise when the next one begins was set between them."""
        leaves = self._registered.doubts.look(WHAT, self._look_at_leaves) if self._repair.records else None
        self._ended = None if leaves is None else (leaves, _clocks())

    def _look(self, loop: int, loader: Any) -> Note:
        things = self._registered.local.variables.finds()
        kept = self._around.kept(self._registered.local.known())
        self._leaves, self._clocks, moved = self._look_at_leaves(), _clocks(), Noted()
        if self._ended is not None:
            before, clocks = self._ended
            moved = moved_between(before, self._leaves, zip(clocks, _clocks(), strict=True))
        self._ended = None
        return Note(loop, self._registered.found(things, kept, loader), *self._plain(things), moved)

    def _look_at_leaves(self, but: Set[int | str | Spot] = NONE) -> Noted:
        local = self._registered.local
        return leaves_of([*local.variables.finds(), *self._around.uses()], local.known(), but)

    def _unseen(self) -> list[str]:
        now = self._look_at_leaves(self._registered.local.variables.written())
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

    def flaw(self, loop: int) -> str:
        """Why a newcomer that has come to this loop must not go on there, or nothing."""
        names = self._before.unlike(self._mine, self._leaves) if loop == self._before.loop else []
        return UNLIKE.format(names=listed(map(as_said, names))) if names else ""

    # ---- after a repair ---------------------------------------------------------------------------------------

    def told(self, lacks: bool) -> Told:
        """What this rank tells all: what has stayed as it was when the loop began."""
        note, earlier = Note(self._mine.loop, self._mine.found, moved=self._mine.moved), self._earlier
        now = self._registered.doubts.look(WHAT, lambda: self._plain(self._registered.local.variables.finds()))
        if now is not None:
            sets, finds = map(_same, (self._mine.sets, self._mine.finds), now)
            note = replace(note, sets=sets, finds=finds)
        before = self._before if self._unsettled else Note()
        unseen = [] if self._unsettled else self._registered.doubts.look(WHAT, self._unseen) or []
        earlier = earlier if earlier.loop == note.loop - 1 else Note()
        return Told(lacks, self._unsettled, note, before, earlier, unseen)

    def heard(self, told: list[Told], rank: int) -> str:
        """What all have told. Why this rank must not go on, or nothing."""
        unsettled, self._unsettled = self._unsettled, False
        if not unsettled:
            return ""
        if names := to_refuse(told, rank, self._leaves):
            return OTHERWISE.format(names=listed(map(as_said, names)))
        if taken := to_take(told, rank):
            self._registered.doubts.look(WHAT, self._give, taken)
            self._mine = replace(self._mine, sets={**self._mine.sets, **taken})
        self._note()
        return ""


def _clocks() -> list[float]:
    return [time.time(), time.monotonic(), time.perf_counter()]


def _same(noted: Noted, now: Noted) -> Noted:
    return {name: data for name, data in noted.items() if now.get(name) == data}
