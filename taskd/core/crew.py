"""The crew: the records of one node's ranks, and what their processes say and do. Half of the agent's logic.

Every message and event of a process of this node is filed here. What comes from another incarnation changes nothing; a
stage, a start or an end of one is counted. A method returns the record that has news for the manager, or None. What can
go wrong, and what follows:

- *Two processes claim a rank*, wrong job, wrong world size: `why_not` says in a sentence why the second is refused.
- *A process claims a rank of another node*: if the agent starts the workers, only processes that it started are let in.
- *A late message* (an older stage, an ended incarnation): counted.

Invariant: a rank has at most one live process here. Not here: orders (seating), reports (reporter), and what happens
next (agent).
"""

from __future__ import annotations

from taskd.core import limits
from taskd.core.counters import Counters
from taskd.core.events import Gone, Readings, Started, StartFailed
from taskd.core.local import LastWord, LocalCause, LocalRank, Outlook
from taskd.core.messages import Covered, Evidence, Order, Seat, StageReached, WorkerHello, WorkerLeaving
from taskd.core.times import long_ago
from taskd.core.types import PROGRESS, EvidenceKind, Kept, Phase, RankState, Stage
from taskd.core.words import LEFT_EARLY, LEFT_UNSAID, NOT_STARTED, cut, follows

IN_STEP = (Phase.BODY, Phase.OPTIMIZER)
"""Phases in which no process ends in good order. APPLIED is not one: a script without a session ends in it."""


class Crew:
    """All ranks of one node, by number."""

    def __init__(self, job: str, counters: Counters, spawns: bool = False) -> None:
        """`spawns`: the agent starts every worker of this node, so no other process can be one of its ranks."""
        self.job = job
        self.spawns = spawns
        self.world_size = 0  # 0: no worker has told it yet
        self.ranks: dict[int, LocalRank] = {}
        self.counters = counters
        self._failures = 0
        self._idle_since: int | None = None  # since when no process lives here

    def causes(self) -> list[int]:
        """Return the ranks that have failed by themselves, in the order of time: the first one is the cause. A rank
        that died only because an operation with others had failed is not among them."""
        failed = [record for record in self.ranks.values() if record.failed and not follows(record.reason)]
        return [record.rank for record in sorted(failed, key=lambda record: record.failed)]

    def raised(self, rank: int) -> bool:
        """Whether this rank is ending, or has ended, by an exception of its own."""
        record = self.ranks.get(rank)
        return record is not None and record.last_word is LastWord.RAISED and not follows(record.reason)

    def _fails(self, record: LocalRank) -> None:
        if not record.failed and not record.ending:
            self._failures += 1
            record.failed = self._failures

    def live(self) -> list[LocalRank]:
        """Return the ranks whose process lives."""
        return [record for record in self.ranks.values() if record.live]

    def idle_ns(self, now: int) -> int | None:
        """Return how long no process has lived here, since the first call that found none. None: one lives here."""
        if self.live():
            self._idle_since = None
            return None
        self._idle_since = now if self._idle_since is None else self._idle_since
        return now - self._idle_since

    def rival(self, seat: Seat, node: str) -> tuple[LocalRank, str] | None:
        """Return the process here whose seat goes to another incarnation, and why it ends. Note which one follows."""
        record = self.ranks.get(seat.rank)
        if record is None or not record.live:
            return None
        if seat.node == node and seat.incarnation > record.incarnation:
            record.next_incarnation = seat.incarnation
            return record, f"rank {seat.rank} goes on as incarnation {seat.incarnation}"
        if seat.node != node and seat.incarnation >= record.incarnation:
            record.next_incarnation = 0
            return record, f"rank {seat.rank} goes on on node {seat.node}"
        return None

    def vacant(self, seat: Seat, node: str) -> bool:
        """Whether this seat belongs to this node and has no live process yet."""
        record = self.ranks.get(seat.rank)
        free = record is None or (not record.live and seat.incarnation > record.incarnation)
        return seat.node == node and free

    def await_start(self, rank: int, incarnation: int, epoch: int, stage: Stage) -> None:
        """A process is being started."""
        self.ranks[rank] = LocalRank(rank, incarnation, epoch, stage)
        self._idle_since = None

    def to_be_told(self, order: Order, now: int) -> tuple[int, ...]:
        """Return the ranks that have yet to follow this order and were not told it just now. They count as told."""
        due = []
        for record in self.ranks.values():
            if record.state is RankState.ALIVE and record.acknowledged and record.behind(order):
                if not long_ago(record.order_told_at, now, limits.ORDER_REPEAT_NS):
                    continue
                record.order_told_at = now
                due.append(record.rank)
        return tuple(due)

    def compilers(self, now: int) -> list[LocalRank]:
        """Return the ranks that have compiled for so long that it is to be reported, each process once."""
        found = []
        for record in self.live():
            one = record.compiling
            if one.now and one.since is None:
                one.since = now
            if one.now and long_ago(one.since, now, limits.COMPILES_NS) and not one.said:
                one.said = True
                found.append(record)
        return found

    def admit(self, hello: WorkerHello) -> LocalRank:
        """Let in a process that introduces itself and that `why_not` does not refuse."""
        record = self.ranks.get(hello.rank)
        self.world_size = hello.world_size
        if record is None or not record.live:
            incarnation = hello.incarnation or (record.incarnation if record is not None else 0) + 1
            record = self.ranks[hello.rank] = LocalRank(hello.rank, incarnation, hello.epoch, hello.stage)
        record.pid = hello.pid
        record.epoch, record.stage = hello.epoch, hello.stage
        record.updates, record.part = hello.updates, hello.part
        record.outlook = Outlook(hello.cover, hello.saves, Kept(hello.kept_from, hello.kept_to))
        record.order_told_at = None
        self._idle_since = None
        record.move(LocalCause.HELLO)
        return record

    def why_not(self, hello: WorkerHello) -> str:
        """Say why this process is not let in. Empty: it is let in."""
        record = self.ranks.get(hello.rank)
        if hello.job != self.job:
            return f"it belongs to job {hello.job}, this is the agent of job {self.job}"
        if self.world_size not in (0, hello.world_size):
            return f"it believes in a world of {hello.world_size} ranks, the others here in {self.world_size}"
        if hello.rank >= hello.world_size:
            return f"rank {hello.rank} does not exist in a world of {hello.world_size} ranks"
        if self.spawns and (record is None or not record.live):
            return f"this node's launcher has started no process for rank {hello.rank}"
        if record is None:
            if len(self.ranks) >= limits.MAX_RANKS_PER_NODE:
                return f"this node has {limits.MAX_RANKS_PER_NODE} ranks already, which is the most"
            return ""
        if record.live:
            awaited = record.state is RankState.STARTING and hello.incarnation == record.incarnation
            if awaited or record.pid == hello.pid:
                return ""
            return f"rank {hello.rank} is held by process {record.pid}"
        if 0 < hello.incarnation <= record.incarnation:
            return f"incarnation {hello.incarnation} of rank {hello.rank} has ended"
        if record.incarnation >= limits.MAX_INCARNATION:
            return f"the incarnations of rank {hello.rank} are used up"
        return ""

    def reached(self, said: StageReached) -> LocalRank | None:
        """A worker reports how far it has come."""
        record = self.ranks.get(said.rank)
        if record is None or record.incarnation != said.incarnation or not record.live:
            self.counters.count("stage of another incarnation")
            return None
        stands = (record.epoch, PROGRESS[record.stage], record.updates)
        if said.epoch <= record.epoch and said.ok and (said.epoch, PROGRESS[said.stage], said.updates) < stands:
            self.counters.count("stage of the past")
            return None
        before = (record.epoch, record.stage, record.updates, record.ok, record.part, record.outlook)
        record.epoch, record.stage, record.updates = said.epoch, said.stage, said.updates
        record.ok, record.reason = said.ok, "" if said.ok else cut(said.reason)
        if said.part or said.stage is Stage.PARKED:  # otherwise its process has not said it here
            record.part = said.part
            record.outlook = record.outlook._replace(kept=Kept(said.kept_from, said.kept_to))
        if before == (record.epoch, record.stage, record.updates, record.ok, record.part, record.outlook):
            return None
        record.order_told_at = None
        record.news = True
        return record

    def covered(self, said: Covered) -> LocalRank | None:
        """A worker reports what a death would lead to. Return it if the manager is to hear of this at once: now it can
        write a last checkpoint."""
        record = self.ranks.get(said.rank)
        if record is None or not record.live or record.incarnation != said.incarnation:
            return None
        could = record.outlook.saves
        news = Outlook(said.cover, said.saves, record.outlook.kept), said.part
        record.news |= (record.outlook, record.part) != news
        record.outlook, record.part = news
        return record if said.saves > could else None

    def started(self, event: Started, epoch: int) -> LocalRank | None:
        """A process was started: as ordered, or (the very first start) by the launcher itself."""
        record = self.ranks.get(event.rank)
        if record is None or record.incarnation < event.incarnation:
            record = self.ranks[event.rank] = LocalRank(event.rank, event.incarnation, epoch, Stage.RUNNING)
        elif record.incarnation > event.incarnation or record.state is not RankState.STARTING:
            self.counters.count("start of another incarnation")
            return None
        self._idle_since = None
        record.pid = event.pid
        return record

    def start_failed(self, event: StartFailed, epoch: int) -> LocalRank | None:
        """A process could not be started."""
        record = self.ranks.get(event.rank)
        if record is None:
            record = self.ranks[event.rank] = LocalRank(event.rank, event.incarnation, epoch, Stage.RUNNING)
        if record.incarnation != event.incarnation or record.state is not RankState.STARTING:
            self.counters.count("start of another incarnation")
            return None
        record.move(LocalCause.START_FAILED)
        record.exit_code, record.reason = 1, cut(f"{NOT_STARTED}{event.reason}")
        return record

    def gone(self, event: Gone) -> LocalRank | None:
        """A process has ended. Exit code 0 means good order, unless its beat page says that it was inside a step."""
        record = self.ranks.get(event.rank)
        if record is None or record.incarnation != event.incarnation or not record.live:
            self.counters.count("end of another incarnation")
            return None
        early = self.spawns and not record.ending and event.exit_code == 0 and record.phase in IN_STEP
        spoke = record.state is RankState.ALIVE  # a program without taskd says nothing, and nobody waits for it
        record.move(LocalCause.ENDED_WELL if event.exit_code == 0 and not early else LocalCause.ENDED_BADLY)
        if event.exit_code:
            self._fails(record)
        record.exit_code, record.reason = event.exit_code, cut(event.reason) or record.reason
        if early:
            record.reason = f"{LEFT_EARLY} {record.step}"
        elif (
            spoke and record.state is RankState.LEFT and record.last_word is not LastWord.FAREWELL and not event.reason
        ):
            record.reason = LEFT_UNSAID
        return record

    def told(self, said: Evidence | WorkerLeaving) -> None:
        """A process that ends by an exception reports it first, because its exit code alone does not tell why. A
        process that ends in good order reports that."""
        record = self.ranks.get(said.rank)
        if record is None or not record.live or record.incarnation != said.incarnation:
            return
        if isinstance(said, WorkerLeaving):
            if record.last_word is not LastWord.RAISED:  # a handler at its exit may still say farewell
                record.last_word = LastWord.FAREWELL
        elif said.kind is EvidenceKind.EXCEPTION:
            record.reason = cut(said.reason.removeprefix(f"rank {said.rank} raised "))
            record.last_word = LastWord.RAISED
            self._fails(record)

    def read(self, event: Readings) -> None:
        """Take a reading of the beat pages. A change of step or phase is news, a change of age is not."""
        for reading in event.readings:
            record = self.ranks.get(reading.rank)
            if record is None or record.incarnation != reading.incarnation or not record.live:
                continue
            if reading.step != record.step or reading.phase is not record.phase:
                record.news = True
            record.step, record.phase = reading.step, reading.phase
            record.beat_age_ms, record.step_ms = reading.beat_age_ms, reading.step_ms
            record.work, record.compiling.now = reading.work, reading.compiling
