"""Carrying out what the ladder chose: seats for the newcomers, one order per stage, and who is watched meanwhile.

Owns the one `Recovery` that is under way, if any. What can go wrong here, and what follows:

- *No room for a lost rank*: the attempt is PLACING; survivors park meanwhile, and a node that comes up begins another
  epoch of the same try, with the seats that it has room for.
- *A newcomer of the attempt before is still fine*: it keeps its seat, in the newer epoch.
- *A rank has done its first step before the slowest has resumed*: it is looked at again when REDO begins.

Invariant: every rank that an attempt waits for is watched, so that no report of it is quiet.
Not here: whether to try, and what a failed attempt means (repairs).
"""

from __future__ import annotations

from enum import Enum, auto

from taskd.core import limits
from taskd.core.job import Job
from taskd.core.messages import Seat
from taskd.core.records import RankRecord
from taskd.core.repair import placement
from taskd.core.repair.incident import Incident
from taskd.core.repair.ladder import Decision
from taskd.core.repair.recovery import Recovery, RepairCause, RepairState
from taskd.core.types import RankState, Stage, Strategy
from taskd.core.words import rank_words, verb


class Progress(Enum):
    """What became of an attempt when it was looked at."""

    GOES_ON = auto()
    HEALED = auto()
    STATE_LOST = auto()  # all have parked and nobody holds a whole state


class Attempts:
    """The attempt under way: `recovery`, or None."""

    def __init__(self, job: Job, spare_wait_ns: int = limits.DEADLINE_SPARE_NS) -> None:
        self.job = job
        self.spare_wait_ns = spare_wait_ns
        self.members = job.members
        self.recovery: Recovery | None = None
        self._told = ""  # to the nodes, with every order of the attempt

    @property
    def placing(self) -> bool:
        """Ranks wait for a node with room."""
        return self.recovery is not None and self.recovery.state is RepairState.PLACING

    def drop(self, incident: Incident, now: int, at: int) -> None:
        """The attempt has failed; its record ends and nobody is waited for. `begin` still looks at its seats."""
        if self.recovery is not None and self.recovery.state is not RepairState.ENDED:
            incident.end_all(now)
            self._watch(self.recovery, False)
            self.recovery.move(RepairCause.FAULT, at)

    def close(self) -> None:
        """Nothing is under way any more."""
        if self.recovery is not None:
            self._watch(self.recovery, False)
        self.recovery = None

    def begin(self, incident: Incident, decision: Decision, same_try: bool, told: str, now: int, at: int) -> None:
        """Another epoch, other seats, and what the nodes are `told` of it. `same_try`: the one before did not fail, it
        was overtaken."""
        assert self.job.epoch < limits.MAX_EPOCH
        old = self.recovery
        self.job.epoch += 1
        incident.attempts += 1
        if not same_try:
            incident.tries[decision.strategy] = incident.tries.get(decision.strategy, 0) + 1
        avoid_home = decision.strategy is Strategy.RECOVER and Strategy.IN_PLACE in incident.exhausted
        chosen, unplaced = placement.choose_nodes(self.members, decision.strategy, avoid_home)
        fresh = decision.strategy is Strategy.RESPAWN
        seats: list[Seat] = []
        if not (fresh and unplaced):
            seats = placement.take_seats(self.members, chosen, self.job.epoch, now)
        if fresh:
            self.members.trained = False
        elif old is not None:
            seats += self._kept_seats(old, {seat.rank for seat in seats})
        ranks = range(self.members.world_size)
        recovery = self.recovery = Recovery(
            incident.id, decision.strategy, self.job.epoch, ranks, seats, at, self.spare_wait_ns
        )
        self._told = told
        if unplaced:
            recovery.move(RepairCause.WAIT, at)
            incident.waits_since = at if incident.waits_since < 0 else incident.waits_since
            recovery.deadline = incident.waits_since + self.spare_wait_ns
            self.job.note(
                "spare", f"{rank_words(unplaced)} {verb(len(unplaced), 'waits', 'wait')} for a node with room"
            )
        else:
            incident.waits_since = -1
            if fresh:
                incident.restarts += 1
                self.job.restarts += 1
                incident.note(told)
            recovery.move(RepairCause.START if fresh else RepairCause.PARK, at)
        self._begin_stage(recovery, incident, now)

    def _kept_seats(self, old: Recovery, reseated: set[int]) -> list[Seat]:
        """Newcomers of the attempt before that are still fine go on with their set-up, or wait where they are."""
        kept = []
        for rank, seat in sorted(old.seats.items()):
            record = self.members.ranks[rank]
            gone = record.state in (RankState.DEAD, RankState.LEFT)
            holds = rank in old.complete or _holds(record)
            if rank not in reseated and not holds and not gone:
                kept.append(Seat(rank, record.incarnation, seat.node))
        return kept

    def _begin_stage(self, recovery: Recovery, incident: Incident, now: int) -> None:
        """Order the stage, and watch everybody until it is reached."""
        if recovery.fresh and recovery.state is RepairState.RESUME:
            incident.begin("set-up", now)
        else:
            incident.begin(recovery.state.value, now)
        if recovery.state is RepairState.QUIESCE and recovery.newcomers:
            incident.begin("set-up", now)
        self._watch(recovery, True)
        if recovery.state is RepairState.REDO or (recovery.fresh and recovery.state is RepairState.PLACING):
            return  # nothing new is asked of anybody
        self.job.publish(recovery.order(self.job.term, self._told))

    def _watch(self, recovery: Recovery, watched: bool) -> None:
        for rank in recovery.ranks:
            self.members.ranks[rank].watched = watched

    # ---- on the way -------------------------------------------------------------------------------------------

    def follow(self, rank: int, at: int) -> str:
        """A watched rank's report was filed. Gives the words of a refusal, or nothing."""
        record, recovery = self.members.ranks[rank], self.recovery
        assert recovery is not None
        if record.report is None:
            return ""
        refusal = recovery.follow(record.report, at)
        # In RESUME the quick ones are watched on: their first step may be done before the slowest has resumed.
        record.watched = rank in recovery.waiting or recovery.state is RepairState.RESUME
        return refusal

    def leave(self, rank: int) -> bool:
        """A rank ended in good order. False: the attempt cannot do without it."""
        report = self.members.ranks[rank].report
        return self.recovery is None or (report is not None and self.recovery.leave(report))

    def advance(self, incident: Incident, now: int, at: int) -> Progress:
        """Everybody has followed: the next stage, or the end."""
        recovery = self.recovery
        assert recovery is not None
        if recovery.state is RepairState.QUIESCE:
            if recovery.waiting.isdisjoint(recovery.newcomers):
                incident.end("set-up", now)
            if recovery.waiting <= recovery.newcomers:
                incident.end("quiesce", now)
            if recovery.state_lost:
                return Progress.STATE_LOST
        while not recovery.waiting and not self.placing:
            incident.end_all(now)
            recovery.move(RepairCause.FOLLOWED, at)
            if self._ended(recovery):
                return Progress.HEALED
            if recovery.state_lost:
                return Progress.STATE_LOST
            self._begin_stage(recovery, incident, now)
            if recovery.state is RepairState.REDO:
                # All have resumed, so the strategy works; what fails from here on counts against the rank that dies.
                incident.tries[recovery.strategy] = 0
                self._look_again(recovery, at)
        return Progress.GOES_ON

    @staticmethod
    def _ended(recovery: Recovery) -> bool:
        return recovery.state is RepairState.ENDED

    def _look_again(self, recovery: Recovery, at: int) -> None:
        """REDO begins when the slowest has resumed; the quickest may be done by then and have nothing new to say."""
        for rank in recovery.ranks:
            record = self.members.ranks[rank]
            if record.report is not None:
                recovery.follow(record.report, at)
                if record.state is RankState.LEFT:
                    recovery.leave(record.report)
            record.watched = rank in recovery.waiting


def _holds(record: RankRecord) -> bool:
    """A newcomer has a state once it is restored, be it by a manager whose journal ends before that."""
    report = record.report
    if report is None:
        return False
    return report.updates >= 0 or (report.stage is Stage.RUNNING and report.state is RankState.ALIVE)
