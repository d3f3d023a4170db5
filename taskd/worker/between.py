"""What stands between two loops, as a transaction of its own: `session.between(work, then)`.

`work` may communicate, move schedulers and switch modules. It is over when all ranks have ended it: they meet at its
end. A rank that dies before that makes all do it again, from the state in which each found it. `then` is what is to be
done once, by each rank for itself: a checkpoint, a line of a log.

Failure modes: a rank dies in the work, or when it has ended it and others have not; some have met and others were told
of the death first; a rank dies in what follows; a newcomer comes by work that is over. Invariants: a result is in this
rank's record before the rank goes to meet the others, so once anybody has met them all, every rank's record has it; a
newcomer takes it from there and never runs that work. What follows begins after that, is noted when it is done, and is
done by the newcomer if it is not. So it may be done twice, if the rank died between its end and the note: what it
writes must come out the same, as a whole file does and a line that is added does not.

It does NOT undo what the work has written: all ranks may do it twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from taskd import log
from taskd.core.types import Phase
from taskd.errors import PeerError, StepAbandoned, UsageError
from taskd.state import rng
from taskd.state.ledger import Ledger
from taskd.state.local import Captured, LocalState
from taskd.state.moving import Moving
from taskd.state.strange import Doubts
from taskd.worker import hooks
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
    """The transaction, as far as this concerns it."""

    def given_up(self) -> bool: ...
    def heal(self) -> None: ...
    def carries_on(self) -> bool: ...
    def pack(self, moment: Captured) -> list[bytes]: ...


class Between:
    """All of one session."""

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
        self._early = 0
        self._before: Captured | None = None
        self._number = -1
        self._result: Any = None

    @property
    def under_way(self) -> bool:
        """Whether work is being done, which may have to be done again."""
        return self._before is not None

    def before_loops(self, work: Callable[[], Any], then: Callable[[Any], Any] | None) -> Any:
        """Before the first loop it belongs to the set-up, which a newcomer plays back; what follows is done once."""
        result = work()
        self._early += 1
        if self._early > self._ledger.early:
            self._follow(then, result)
            self._ledger.early = self._early
            self._ledger.save()
        return result

    def run(self, work: Callable[[], Any], then: Callable[[Any], Any] | None) -> Any:
        """The result."""
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
            self._ledger.ended(number, self._result, self._host.pack(after))
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
        """A newcomer comes by work that is over."""
        result = self._ledger.result(number)
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
        rng.restore(generators)  # of a rank that dies in it nobody would know what it had drawn
        if self._repair.operations() != operations:
            log.once(_logger, logging.WARNING, "between-talks", "%s", TALKS)

    # ---- in a repair ------------------------------------------------------------------------------------------

    @property
    def passed(self) -> int:
        """How many all ranks have ended, as far as this one knows."""
        return self._ledger.passed

    def flaw(self) -> str:
        """Why the work under way cannot be done again, or nothing."""
        if self._before is None:
            return ""
        self.moving.end()
        return MOVED if self.moving.lost else ""

    def settle(self, passed: int) -> None:
        """All ranks together know that so many are over; whoever is in another one stands where it began."""
        if passed > self._ledger.passed:
            self._ledger.passed = passed
            self._ledger.save()
        if self._before is not None and self._number >= passed:
            self.moving.put_back()
            self._local.restore(self._before)

    def refuse_optimizer(self) -> None:
        """An optimizer steps in the work. Raises UsageError."""
        raise UsageError("an optimizer steps in the work of between(): updates belong into a step, in `with step:`")
