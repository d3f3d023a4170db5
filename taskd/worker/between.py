"""The work between two loops, as a transaction of its own: `session.between(work, then)`.

`work` may communicate, step schedulers and switch modules. It is over when all ranks have ended it: they meet at its
end. If a rank dies before that, all ranks do the work again, each from the state in which it began. `then` is to be
done once, by each rank for itself: a checkpoint, a line of a log.

Failure modes: a rank dies in the work, or after its own end while others still work; some ranks have met, and others
heard of the death first; a rank dies in `then`; a newcomer reaches work that is over.

Invariants: a rank writes its result to its record before it goes to meet the others. So once any rank has met them all,
every rank's record holds the result. A newcomer takes it from there and never runs that work. `then` begins after the
meeting, and its end is noted. If there is no such note, the newcomer runs `then`. So `then` may run twice, if the rank
died between its end and the note. Its output must be the same after both runs: this is so for a whole file, but not for
a line that is added.

It does NOT undo what the work has written: all ranks may do the work twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from taskd import log
from taskd.core.types import Phase
from taskd.errors import PeerError, StepAbandoned, UsageError
from taskd.state import rng, shards
from taskd.state.ledger import Ledger
from taskd.state.local import Captured, LocalState
from taskd.state.moving import Moving
from taskd.state.strange import Doubts
from taskd.worker import hooks
from taskd.worker.early import BeforeLoops
from taskd.worker.heal import Repair
from taskd.worker.passage import Passage
from taskd.worker.place import Place

MOVED = "parameters moved in the work between two loops that is given up, and no copy of them is"
TALKS = (
    "what follows the work of between() communicates: if a rank dies there, all start over; communicate in the work, "
    "and let only this rank's own files follow"
)
_logger = log.get(__name__)


class Host(Protocol):
    """The methods of the transaction that are used here."""

    def given_up(self) -> bool: ...
    def heal(self) -> None: ...
    def carries_on(self) -> bool: ...
    def pack(self, moment: Captured) -> list[bytes]: ...


class Between:
    """All work between the loops of one session."""

    def __init__(
        self,
        host: Host,
        ledger: Ledger,
        local: LocalState,
        repair: Repair,
        passage: Passage,
        doubts: Doubts,
        place: Place,
    ) -> None:
        self._host, self._ledger, self._local, self._repair, self._passage = host, ledger, local, repair, passage
        self._doubts, self._place = doubts, place
        self.moving = Moving(local.replica)
        self.before_loops = BeforeLoops(ledger, self._follow)
        self._before: Captured | None = None
        self._number = -1
        self._result: Any = None

    @property
    def under_way(self) -> bool:
        """Whether work is running that may have to be done again."""
        return self._before is not None

    def run(self, work: Callable[[], Any], then: Callable[[Any], Any] | None) -> Any:
        """Do the work and `then`, and return the result."""
        number, self._place.works = self._place.works, self._place.works + 1
        if self._doubts.sentence:  # a death makes all start over
            result = work()
            self._repair.together.all_arrived(self._heal)
            self._follow(then, result)
            return result
        ledger = self._ledger
        if number < ledger.passed or (self._repair.newcomer and number < len(ledger)):
            return self._over(number, then)
        if self._repair.newcomer:
            raise PeerError("the life before of this rank has left no result of work that it has ended")
        if self._passage.under_way:
            self._passage.end()
        while number >= ledger.passed:
            self._attempt(number, work)
        result, self._result = self._result, None
        self._then(number, then, result)
        return result

    def _attempt(self, number: int, work: Callable[[], Any]) -> None:
        if self._host.given_up():
            self._heal()
            return
        self._number, self._before = number, self._local.capture(self._host.carries_on())
        self.moving.look()
        self.moving.begin()
        try:
            with self._passage.patched:
                self._result = work()
            after = self._local.capture(self._host.carries_on())
            result = shards.plain(self._result, "the result of between()")
            self._ledger.ended(number, result, self._host.pack(after))
            if self._repair.together.all_arrived(self._heal):
                self._ledger.passed = number + 1
                self._ledger.save()
        except StepAbandoned:
            self._heal()
        finally:
            self._before = None

    def _heal(self) -> None:
        self._host.heal()
        hooks.mark_phase(Phase.BETWEEN)

    def _over(self, number: int, then: Callable[[Any], Any] | None) -> Any:
        """Return the kept result of work that is over, on a newcomer."""
        result = self._local.replica.split(self._ledger.result(number))
        if self._repair.newcomer:
            return result
        if self._passage.under_way:
            self._passage.end()
        if number == len(self._ledger) - 1:
            self._local.adopt(self._ledger.after)
        self._then(number, then, result)
        if self._place.giver_is_ahead:
            self._passage.go_after()
        return result

    def _then(self, number: int, then: Callable[[Any], Any] | None, result: Any) -> None:
        if number < self._ledger.followed:
            return
        self._follow(then, result)
        self._ledger.followed = number + 1
        self._ledger.save()

    def _follow(self, then: Callable[[Any], Any] | None, result: Any) -> None:
        if then is None:
            return
        generators, operations = rng.capture(), self._repair.operations()
        then(result)
        rng.restore(generators)  # if a rank died in it, nobody would know what it had drawn
        if self._repair.operations() != operations:
            log.once(_logger, logging.WARNING, "between-talks", "%s", TALKS)

    # ---- in a repair ------------------------------------------------------------------------------------------

    @property
    def passed(self) -> int:
        """How many pieces of work all ranks have ended, as far as this rank knows."""
        return self._ledger.passed

    def flaw(self) -> str:
        """Return why the current work cannot be done again, or an empty text."""
        if self._before is None:
            return ""
        self.moving.end()
        return MOVED if self.moving.lost else ""

    def settle(self, passed: int) -> None:
        """Note that `passed` pieces of work are over on all ranks. If this rank is in a piece that is not over, put its
        state back to the beginning of that piece."""
        if passed > self._ledger.passed:
            self._ledger.passed = passed
            self._ledger.save()
        if self._before is not None and self._number >= passed:
            self.moving.put_back()
            self._local.restore(self._before)

    def refuse_optimizer(self) -> None:
        """Raise UsageError: an optimizer steps in the work."""
        raise UsageError("an optimizer steps in the work of between(): updates belong into a step, in `with step:`")
