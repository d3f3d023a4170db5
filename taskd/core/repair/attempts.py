"""Carries out what the ladder chose: seats for the newcomers, one order per stage, and the ranks watched meanwhile.

Owns the one `Attempt` that is under way, if any. Failure modes, and what follows:

- *No room for a lost rank*: the attempt is PLACING and survivors park meanwhile. When a node comes up, another epoch of
  the same try begins, with seats for as many ranks as the node has room for.
- *A rank dies again and again soon after its start*: the attempt is RESTING and survivors park meanwhile. After that,
  another epoch of the same try begins.
- *A newcomer of the previous attempt is still fine*: it keeps its seat, in the newer epoch.
- *A rank finishes its first step before the slowest rank has resumed*: its report is read again when REDO begins.

Invariant: every rank that an attempt waits for is watched, so none of its reports takes the quiet path (filing).
Not here: whether to try, and what a failed attempt means (decider, course).
"""

from __future__ import annotations

from collections.abc import Collection
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
    """How an attempt stands after a check."""

    GOES_ON = auto()
    HEALED = auto()
    SAVED = auto()  # the last checkpoint is written
    STATE_LOST = auto()  # all survivors have parked and none holds a whole state


class Attempts:
    """The attempt under way: `attempt`, or None."""

    def __init__(self, job: Job, spare_wait_ns: int = limits.DEADLINE_SPARE_NS) -> None:
        self.job = job
        self.spare_wait_ns = spare_wait_ns
        self.members = job.members
        self.attempt: Attempt | None = None
        self.held = False  # the ranks wait for their time and not for room
        self._told = ""  # the text that nodes get with every order of the attempt

    @property
    def placing(self) -> bool:
        """Whether ranks wait for a node with room."""
        return self.attempt is not None and self.attempt.state is AttemptState.PLACING

    @property
    def resting(self) -> bool:
        """Whether ranks rest before they are started once more."""
        return self.attempt is not None and self.attempt.state is AttemptState.RESTING

    def drop(self, incident: Incident, when: Moment) -> None:
        """End the failed attempt: close its phases and wait for no rank. `begin` still reads its seats."""
        if self.attempt is not None and self.attempt.state is not AttemptState.ENDED:
            incident.end_all(when.now)
            if self.attempt.saves:
                incident.checkpoint.ends(when.now)
            self._watch(self.attempt, False)
            self.attempt.move(AttemptCause.FAULT, when.at)

    def close(self) -> None:
        """Forget the attempt: no repair is under way any more."""
        if self.attempt is not None:
            self._watch(self.attempt, False)
        self.attempt = None

    def begin(
        self, incident: Incident, decision: Decision, same_try: bool, told: str, when: Moment, hold_ns: int = 0
    ) -> None:
        """Begin an attempt: a new epoch with new seats. `told`: the text for the nodes. `same_try`: the previous
        attempt did not fail, a newer event replaced it. `hold_ns`: no rank may be started before this time is over.
        If ranks are to rest for longer, only their rest counts, and only that is said."""
        old = self.attempt
        self._next_epoch(incident, decision.strategy, same_try)
        avoid_home = decision.strategy is Strategy.RECOVER and Strategy.IN_PLACE in incident.exhausted
        chosen, unplaced = placement.choose_nodes(self.members, decision.strategy, avoid_home)
        fresh = decision.strategy is Strategy.RESPAWN
        steps = self.members.steps_done if fresh else 0  # read first: a new seat has no record of them
        resting = placement.resting(self.members, chosen, when.now)
        self.held = hold_ns > placement.rest_ns(resting, when.now)
        if self.held:
            resting, unplaced = [], self.members.in_state(RankState.DEAD)
        if hold_ns > 0:
            chosen = {}
        elif not fresh:
            chosen = {rank: chosen[rank] for rank in chosen.keys() - {record.rank for record in resting}}
        seats: list[Seat] = []
        if not (fresh and (unplaced or resting)):
            seats = placement.take_seats(self.members, chosen, self.job.epoch, not fresh, when.now)
        if not fresh and old is not None:
            seats += self._kept_seats(old, {seat.rank for seat in seats})
        ranks = range(self.members.world_size)
        over = self.job.starts_over
        attempt = self.attempt = Attempt(
            incident.id, decision.strategy, self.job.epoch, ranks, seats, over, self.spare_wait_ns
        )
        self._told = told
        if self.held:
            attempt.move(AttemptCause.WAIT, when.at)
            attempt.waiting.deadline = when.at + hold_ns
            text = f"the next start comes in {-(-hold_ns // limits.SECOND)} s, for the policy wants time between two"
            self.job.note("held", f"{rank_words(unplaced)} {verb(len(unplaced), 'waits', 'wait')}: {text}")
        elif unplaced:
            attempt.move(AttemptCause.WAIT, when.at)
            incident.waits_since = when.at if incident.waits_since is None else incident.waits_since
            attempt.waiting.deadline = incident.waits_since + self.spare_wait_ns
            self.job.note(
                "spare", f"{rank_words(unplaced)} {verb(len(unplaced), 'waits', 'wait')} for a node with room"
            )
        elif resting:
            attempt.move(AttemptCause.REST, when.at)
            attempt.waiting.deadline = when.at + self._rest(incident, resting, when.now)
        else:
            incident.waits_since = None
            if fresh:
                self.members.trained = False
                self.job.start_over(steps, incident.checkpoint.updates, when.now, incident.is_own)
                incident.start_over(steps, told, when.now)
            attempt.move(AttemptCause.START if fresh else AttemptCause.PARK, when.at)
        self._begin_stage(attempt, incident, when.now)

    def save(self, incident: Incident, same_try: bool, told: str, when: Moment) -> None:
        """Begin an attempt in which the ranks park that can write a last checkpoint, and write it. No rank is started,
        and the others are not waited for."""
        seats = self._kept_seats(self.attempt, set()) if self.attempt is not None else []
        self._next_epoch(incident, Strategy.DUMP, same_try)
        incident.checkpoint.since = when.now
        able = [record.rank for record in self.members.ranks if record.saves]
        self.attempt = Attempt(incident.id, Strategy.DUMP, self.job.epoch, able, seats, self.job.starts_over)
        self.attempt.holdings.know({rank: self.members.ranks[rank].part for rank in able})
        self._told, self.held = told, False
        self.attempt.move(AttemptCause.PARK, when.at)
        self._begin_stage(self.attempt, incident, when.now)

    def _next_epoch(self, incident: Incident, strategy: Strategy, same_try: bool) -> None:
        assert self.job.epoch < limits.MAX_EPOCH
        self.job.next_epoch()
        incident.attempts += 1
        if not same_try:
            incident.tries[strategy] = incident.tries.get(strategy, 0) + 1

    def _rest(self, incident: Incident, resting: Collection[RankRecord], now: int) -> int:
        """These ranks rest. Return for how long, and say it if people were not told yet."""
        restarts = [record.restart for record in resting if record.restart is not None]
        left_ns = placement.rest_ns(resting, now)
        if not all(restart.told for restart in restarts):
            times, wait_s = max(restart.vain for restart in restarts), -(-left_ns // limits.SECOND)
            who = rank_words(record.rank for record in resting)
            text = f"{who} died soon after each of the last {times} starts: the next one waits {wait_s} s"
            incident.note(text)
            self.job.note("rests", text)
        for restart in restarts:
            restart.told = True
        return left_ns

    def _kept_seats(self, old: Attempt, reseated: set[int]) -> list[Seat]:
        """Seats of the previous attempt's newcomers that are still fine. They continue their set-up, or wait."""
        kept = []
        for rank, seat in sorted(old.seats.items()):
            record = self.members.ranks[rank]
            gone = record.state in (RankState.DEAD, RankState.LEFT)
            holds = rank in old.holdings.complete or _holds(record)
            if rank not in reseated and not holds and not gone:
                kept.append(Seat(rank, record.incarnation, seat.node))
        return kept

    def _begin_stage(self, attempt: Attempt, incident: Incident, now: int) -> None:
        """Order the stage, and watch all ranks until they have reached it."""
        if attempt.fresh and attempt.state is AttemptState.RESUME:
            incident.begin("set-up", now)
        else:
            incident.begin(attempt.state.value, now)
        if attempt.state is AttemptState.QUIESCE and attempt.newcomers:
            incident.begin("set-up", now)
        self._watch(attempt, True)
        if attempt.state is AttemptState.REDO:
            return  # the ranks have nothing new to do
        if attempt.fresh and (self.placing or self.resting):
            self.job.order = None  # nor here, and the last order would start the dead incarnations at a new launcher
            return
        self.job.publish(attempt.order(self.job.term, self._told))

    def _watch(self, attempt: Attempt, watched: bool) -> None:
        for rank in attempt.ranks:
            self.members.ranks[rank].watched = watched

    # ---- on the way -------------------------------------------------------------------------------------------

    def follow(self, rank: int, at: int) -> str:
        """A watched rank's report was filed. Return the words of a refusal, or an empty text."""
        record, attempt = self.members.ranks[rank], self.attempt
        assert attempt is not None
        if record.report is None:
            return ""
        refusal = attempt.follow(record.report, at)
        # In RESUME quick ranks stay watched: they may finish their first step before the slowest rank has resumed.
        record.watched = rank in attempt.waiting.ranks or attempt.state is AttemptState.RESUME
        return refusal

    def leave(self, rank: int) -> bool:
        """A rank ended in good order. Return False if the attempt still needs it."""
        report = self.members.ranks[rank].report
        return self.attempt is None or (report is not None and self.attempt.leave(report))

    def advance(self, incident: Incident, when: Moment) -> Progress:
        """Go to the next stage, or to the end, when all ranks have followed."""
        attempt = self.attempt
        assert attempt is not None
        if attempt.state is AttemptState.QUIESCE:
            if attempt.waiting.ranks.isdisjoint(attempt.newcomers):
                incident.end("set-up", when.now)
            if attempt.waiting.ranks <= attempt.newcomers:
                incident.end("quiesce", when.now)
            if attempt.state_lost:
                return Progress.STATE_LOST
        while not attempt.waiting.ranks and not (self.placing or self.resting):
            incident.end_all(when.now)
            attempt.followed(when.at)
            if self._ended(attempt):
                return Progress.SAVED if attempt.saves else Progress.HEALED
            if attempt.state_lost:
                return Progress.STATE_LOST
            self._begin_stage(attempt, incident, when.now)
            if attempt.state is AttemptState.REDO:
                # All ranks have resumed, so the strategy works. A later failure counts against the rank that dies.
                incident.tries[attempt.strategy] = 0
                steps = self.members.steps_done
                for record in self.members.ranks:  # some have been restored by a try before this one
                    if record.restart is not None and record.restart.resumed_steps < 0:
                        record.restart.resumed_steps = steps
                self._look_again(attempt, when.at)
        return Progress.GOES_ON

    @staticmethod
    def _ended(attempt: Attempt) -> bool:
        return attempt.state is AttemptState.ENDED

    def _look_again(self, attempt: Attempt, at: int) -> None:
        """Read all last reports again. REDO begins when the slowest rank has resumed. The quickest ranks may have
        finished their step by then and send no new report."""
        for rank in attempt.ranks:
            record = self.members.ranks[rank]
            if record.report is not None:
                attempt.follow(record.report, at)
                if record.state is RankState.LEFT:
                    attempt.leave(record.report)
            record.watched = rank in attempt.waiting.ranks


def _holds(record: RankRecord) -> bool:
    """Whether a newcomer holds a restored state, by its own report. A manager's journal may end before the restore."""
    report = record.report
    if report is None:
        return False
    return report.updates >= 0 or (report.stage is Stage.RUNNING and report.state is RankState.ALIVE)
