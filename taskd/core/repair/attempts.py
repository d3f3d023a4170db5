"""Carrying out what the ladder chose: seats for the newcomers, one order per stage, and who is watched meanwhile.

Owns the one `Attempt` that is under way, if any. What can go wrong here, and what follows:

- *No room for a lost rank*: the attempt is PLACING; survivors park meanwhile, and a node that comes up begins another
  epoch of the same try, with the seats that it has room for.
- *A newcomer of the attempt before is still fine*: it keeps its seat, in the newer epoch.
- *A rank has done its first step before the slowest has resumed*: it is looked at again when REDO begins.

Invariant: every rank that an attempt waits for is watched, so that no report of it is quiet.
Not here: whether to try, and what a failed attempt means (decider, course).
"""

from __future__ import annotations

from enum import Enum, auto

from taskd.core import limits
from taskd.core.job import Job
from taskd.core.messages import Seat
from taskd.core.records import RankRecord
from taskd.core.repair import placement
from taskd.core.repair.attempt import Attempt
from taskd.core.repair.incident import Incident
from taskd.core.repair.ladder import Decision
from taskd.core.repair.stages import AttemptCause, AttemptState
from taskd.core.times import Moment
from taskd.core.types import RankState, Stage, Strategy
from taskd.core.words import rank_words, verb


class Progress(Enum):
    """What became of an attempt when it was looked at."""

    GOES_ON = auto()
    HEALED = auto()
    STATE_LOST = auto()  # all have parked and nobody holds a whole state


class Attempts:
    """The attempt under way: `attempt`, or None."""

    def __init__(self, job: Job, spare_wait_ns: int = limits.DEADLINE_SPARE_NS) -> None:
        self.job = job
        self.spare_wait_ns = spare_wait_ns
        self.members = job.members
        self.attempt: Attempt | None = None
        self._told = ""  # to the nodes, with every order of the attempt

    @property
    def placing(self) -> bool:
        """Ranks wait for a node with room."""
        return self.attempt is not None and self.attempt.state is AttemptState.PLACING

    def drop(self, incident: Incident, when: Moment) -> None:
        """The attempt has failed; its record ends and nobody is waited for. `begin` still looks at its seats."""
        if self.attempt is not None and self.attempt.state is not AttemptState.ENDED:
            incident.end_all(when.now)
            self._watch(self.attempt, False)
            self.attempt.move(AttemptCause.FAULT, when.at)

    def close(self) -> None:
        """Nothing is under way any more."""
        if self.attempt is not None:
            self._watch(self.attempt, False)
        self.attempt = None

    def begin(self, incident: Incident, decision: Decision, same_try: bool, told: str, when: Moment) -> None:
        """Another epoch, other seats, and what the nodes are `told` of it. `same_try`: the one before did not fail, it
        was overtaken."""
        assert self.job.epoch < limits.MAX_EPOCH
        old = self.attempt
        self.job.epoch += 1
        incident.attempts += 1
        if not same_try:
            incident.tries[decision.strategy] = incident.tries.get(decision.strategy, 0) + 1
        avoid_home = decision.strategy is Strategy.RECOVER and Strategy.IN_PLACE in incident.exhausted
        chosen, unplaced = placement.choose_nodes(self.members, decision.strategy, avoid_home)
        fresh = decision.strategy is Strategy.RESPAWN
        steps = self.members.steps_done if fresh else 0  # a new seat knows nothing of them
        seats: list[Seat] = []
        if not (fresh and unplaced):
            seats = placement.take_seats(self.members, chosen, self.job.epoch, when.now)
        if fresh:
            self.members.trained = False
        elif old is not None:
            seats += self._kept_seats(old, {seat.rank for seat in seats})
        ranks = range(self.members.world_size)
        attempt = self.attempt = Attempt(
            incident.id, decision.strategy, self.job.epoch, ranks, seats, self.spare_wait_ns
        )
        self._told = told
        if unplaced:
            attempt.move(AttemptCause.WAIT, when.at)
            incident.waits_since = when.at if incident.waits_since is None else incident.waits_since
            attempt.waiting.deadline = incident.waits_since + self.spare_wait_ns
            self.job.note(
                "spare", f"{rank_words(unplaced)} {verb(len(unplaced), 'waits', 'wait')} for a node with room"
            )
        else:
            incident.waits_since = None
            if fresh:
                incident.start_over(steps, told)
                self.job.start_over(steps)
            attempt.move(AttemptCause.START if fresh else AttemptCause.PARK, when.at)
        self._begin_stage(attempt, incident, when.now)

    def _kept_seats(self, old: Attempt, reseated: set[int]) -> list[Seat]:
        """Newcomers of the attempt before that are still fine go on with their set-up, or wait where they are."""
        kept = []
        for rank, seat in sorted(old.seats.items()):
            record = self.members.ranks[rank]
            gone = record.state in (RankState.DEAD, RankState.LEFT)
            holds = rank in old.holdings.complete or _holds(record)
            if rank not in reseated and not holds and not gone:
                kept.append(Seat(rank, record.incarnation, seat.node))
        return kept

    def _begin_stage(self, attempt: Attempt, incident: Incident, now: int) -> None:
        """Order the stage, and watch everybody until it is reached."""
        if attempt.fresh and attempt.state is AttemptState.RESUME:
            incident.begin("set-up", now)
        else:
            incident.begin(attempt.state.value, now)
        if attempt.state is AttemptState.QUIESCE and attempt.newcomers:
            incident.begin("set-up", now)
        self._watch(attempt, True)
        if attempt.state is AttemptState.REDO or (attempt.fresh and attempt.state is AttemptState.PLACING):
            return  # nothing new is asked of anybody
        self.job.publish(attempt.order(self.job.term, self._told))

    def _watch(self, attempt: Attempt, watched: bool) -> None:
        for rank in attempt.ranks:
            self.members.ranks[rank].watched = watched

    # ---- on the way -------------------------------------------------------------------------------------------

    def follow(self, rank: int, at: int) -> str:
        """A watched rank's report was filed. Gives the words of a refusal, or nothing."""
        record, attempt = self.members.ranks[rank], self.attempt
        assert attempt is not None
        if record.report is None:
            return ""
        refusal = attempt.follow(record.report, at)
        # In RESUME the quick ones are watched on: their first step may be done before the slowest has resumed.
        record.watched = rank in attempt.waiting.ranks or attempt.state is AttemptState.RESUME
        return refusal

    def leave(self, rank: int) -> bool:
        """A rank ended in good order. False: the attempt cannot do without it."""
        report = self.members.ranks[rank].report
        return self.attempt is None or (report is not None and self.attempt.leave(report))

    def advance(self, incident: Incident, when: Moment) -> Progress:
        """Everybody has followed: the next stage, or the end."""
        attempt = self.attempt
        assert attempt is not None
        if attempt.state is AttemptState.QUIESCE:
            if attempt.waiting.ranks.isdisjoint(attempt.newcomers):
                incident.end("set-up", when.now)
            if attempt.waiting.ranks <= attempt.newcomers:
                incident.end("quiesce", when.now)
            if attempt.state_lost:
                return Progress.STATE_LOST
        while not attempt.waiting.ranks and not self.placing:
            incident.end_all(when.now)
            attempt.move(AttemptCause.FOLLOWED, when.at)
            if self._ended(attempt):
                return Progress.HEALED
            if attempt.state_lost:
                return Progress.STATE_LOST
            self._begin_stage(attempt, incident, when.now)
            if attempt.state is AttemptState.REDO:
                # All have resumed, so the strategy works; what fails from here on counts against the rank that dies.
                incident.tries[attempt.strategy] = 0
                self._look_again(attempt, when.at)
        return Progress.GOES_ON

    @staticmethod
    def _ended(attempt: Attempt) -> bool:
        return attempt.state is AttemptState.ENDED

    def _look_again(self, attempt: Attempt, at: int) -> None:
        """REDO begins when the slowest has resumed; the quickest may be done by then and have nothing new to say."""
        for rank in attempt.ranks:
            record = self.members.ranks[rank]
            if record.report is not None:
                attempt.follow(record.report, at)
                if record.state is RankState.LEFT:
                    attempt.leave(record.report)
            record.watched = rank in attempt.waiting.ranks


def _holds(record: RankRecord) -> bool:
    """A newcomer has a state once it is restored, be it by a manager whose journal ends before that."""
    report = record.report
    if report is None:
        return False
    return report.updates >= 0 or (report.stage is Stage.RUNNING and report.state is RankState.ALIVE)
