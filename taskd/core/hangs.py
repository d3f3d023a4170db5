"""A job that stands still: is it a hang, and who is awaited? It is said once, and so is that the job goes on.

Nodes tell which of their ranks make no progress (Stillness): no step, phase or operation has begun. The job stands
still as long as all ranks do. That alone is no hang. What would be a false alarm: a first step that compiles, an
evaluation, a checkpoint, uneven steps, a request to a slow server; a machine so busy that a healthy rank gets no
processor; a node that is not heard; a repair. So

- nothing is judged where a rank is missing, in its set-up, parked or done, a node silent, or an incident open;
- a pause lasts as far as every node has confirmed it, so what is late or lost makes it shorter and never longer;
- the ranks that others wait for (waits.py) decide, by what their processes do (limits.py says how long each may);
- five times the longest pause that the job has come out of by itself, in such a phase, is allowed in any case.

Invariants: a pause that was called a hang and ends by itself teaches, so it is not called one again; no decision rests
on any of this. *Not seen:* a hang of ranks that all work; one in which some rank still makes progress. It does NOT end
or replace anybody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from taskd.core import limits, waits
from taskd.core.events import HangVerdict
from taskd.core.job import Job
from taskd.core.messages import Place, RankReport, Still, Stillness
from taskd.core.records import NodeRecord
from taskd.core.rhythm import Rhythm
from taskd.core.types import Doing, HangFinding, Phase, RankState
from taskd.core.waits import Knot, Waits
from taskd.core.words import cut, milliseconds

_OUTSIDE = (Doing.STOPPED, Doing.TRACED)
"""Somebody has stopped it: no pause of the job's own."""
_ALLOWED = {
    Doing.SLEEPS: limits.STILL_ASLEEP_NS,
    Doing.HOLDS_GIL: limits.STILL_GIL_NS,
    Doing.BLOCKED: limits.STILL_BLOCKED_NS,
}
_WORDS = {
    Doing.UNSEEN: "cannot be looked at",
    Doing.WORKS: "works",
    Doing.COMPILES: "compiles",
    Doing.SLEEPS: "sleeps",
    Doing.BLOCKED: "is held in the kernel",
    Doing.HOLDS_GIL: "lets no other Python thread of it run",
    Doing.STOPPED: "is stopped by a signal (SIGCONT lets it go on)",
    Doing.TRACED: "is stopped by a debugger",
}
_MOST_NAMED = 3


@dataclass(slots=True, eq=False)
class Stand:
    """One rank that makes no progress."""

    still: Still
    since: int
    doing_since: int
    places: tuple[Place, ...]
    phase: Phase

    @property
    def busy(self) -> bool:
        """It waits for nobody."""
        return not waits.waits_in(self.places)


@dataclass(frozen=True, slots=True)
class Hang:
    """What was said, as long as it is true."""

    since: int
    ranks: tuple[int, ...]
    text: str


class Hangs:
    """Of one job. All but `hang` comes from what nodes tell, of which no journal holds anything."""

    def __init__(self, job: Job) -> None:
        self.hang: Hang | None = None
        self._job = job
        self._stands: dict[int, Stand] = {}
        self._told_at: dict[str, int] = {}  # when a node has told of its ranks last
        self._since: int | None = None  # all ranks are still since then
        self._outside: Counter[Phase] = Counter()  # phases of those that are still and wait for nobody
        self._rhythm = Rhythm()
        self._judge_at = 0
        self._calm_since = 0  # the job trains since then, as far as anybody knows: what was before says nothing
        self._before: RankReport | None = None  # what is known of the first rank from before the manager's restart
        self._stopped = False  # some rank was seen to be stopped from outside since then
        self._resumed = False  # some rank has made progress since `hang` was said

    # ---- what nodes tell --------------------------------------------------------------------------------------

    def file(self, node: NodeRecord, message: Stillness, at: int) -> None:
        """The ranks of this node that are still; its others are not."""
        if not self._watched():
            self._forget(at)
            return
        ranks = self._job.members.ranks
        told = {one.rank: one for one in message.ranks if one.rank in node.ranks}
        told = {rank: one for rank, one in told.items() if one.incarnation == ranks[rank].incarnation}
        places: dict[int, list[Place]] = {rank: [] for rank in told}
        for place in message.places:
            if place.rank in places:
                places[place.rank].append(place)
        self._resumed |= any(self._moves(rank, told.get(rank)) for rank in node.ranks)
        if any(rank in self._stands and self._moves(rank, told.get(rank)) for rank in node.ranks):
            self._goes_on(at)
        self._stopped |= any(one.doing in _OUTSIDE for one in told.values())
        for rank in node.ranks:
            self._put(rank, told.get(rank), tuple(places.get(rank, ())), at)
        self._told_at[node.name] = at
        if self._since is None and len(self._stands) == self._job.members.world_size:
            self._since = max(self._calm_since, *(stand.since for stand in self._stands.values()))
            self._judge_at = 0

    def restarted(self) -> None:
        """The manager was away: how far the job is has to be told anew."""
        ranks = self._job.members.ranks
        self._before = ranks[0].report if ranks else None

    def _moves(self, rank: int, told: Still | None) -> bool:
        """Whether a rank makes progress, or has made some."""
        known = self._stands.get(rank)
        return told is None or (known is not None and told.mark != known.still.mark)

    def _goes_on(self, at: int) -> None:
        """Some rank has made progress: how long was the pause?"""
        if self._since is None:
            return
        compiled = any(stand.still.doing is Doing.COMPILES for stand in self._stands.values())
        if not compiled and not self._stopped:
            phases = [phase for phase, count in self._outside.items() if count] or list(Phase)
            self._rhythm.took(phases, at - self._since)
        self._since, self._stopped = None, False

    def _put(self, rank: int, told: Still | None, places: tuple[Place, ...], at: int) -> None:
        known = self._stands.pop(rank, None)
        if known is not None and known.busy:
            self._outside[known.phase] -= 1
        if told is None:
            return
        report = self._job.members.ranks[rank].report
        same = known is not None and known.still.mark == told.mark
        since = known.since if same and known is not None else at - told.still_ms * limits.MS
        doing_since = at - told.doing_ms * limits.MS
        if same and known is not None and known.still.doing is told.doing:
            doing_since = max(known.doing_since, doing_since)
        stand = Stand(told, since, max(doing_since, since), places, report.phase if report is not None else Phase.SETUP)
        self._stands[rank] = stand
        if stand.busy:
            self._outside[stand.phase] += 1

    def _forget(self, at: int) -> None:
        self._calm_since = at
        self._stands.clear()
        self._told_at.clear()
        self._outside.clear()
        self._since, self._stopped, self._resumed = None, False, False

    def _watched(self) -> bool:
        """Whether the job trains, as far as anybody knows."""
        job, members = self._job, self._job.members
        whole = 0 < members.world_size == members.counts[RankState.ALIVE]
        return whole and not (job.over or job.incident or job.behind)  # ranks of a silent node are not alive here

    # ---- what is found ----------------------------------------------------------------------------------------

    def find(self, at: int) -> HangVerdict | None:
        """What is to be said now; to be called until there is nothing more."""
        if self._watched():
            report = self._job.members.ranks[0].report
            new = report is not None and report is not self._before
            if report is not None and new and self._rhythm.see(self._job.epoch, report.step):
                self._goes_on(at)  # what would have said so of the ranks was lost, or has yet to come
                self._forget(at)
                self._resumed = True
        else:
            self._forget(at)
        if self.hang is not None:
            how = self._end()
            age_ns = max(at - self.hang.since, 0)
            text = how.format(time=_seconds(age_ns))
            return HangVerdict(HangFinding.GOES_ON, age_ns, self.hang.ranks, text) if how else None
        if self._since is None or at < self._judge_at:
            return None
        self._judge_at = at + len(self._stands) * limits.STILL_JUDGE_NS
        return self._judge(self._since)

    def _end(self) -> str:
        """In what way the job stands still no more; empty: it does, as far as anybody knows."""
        if self._job.over is not None:
            return "the job stood still for {time}, until its end"
        if self._job.incident:
            return "the job stood still for {time}, until its repair began"
        return "the job goes on after {time}" if self._resumed else ""

    def apply(self, verdict: HangVerdict, at: int) -> None:
        """Say what was found, and remember it."""
        self.hang, self._resumed = None, False
        if verdict.finding is HangFinding.STANDS:
            self.hang = Hang(at - verdict.age_ns, verdict.ranks, verdict.reason)
        first = verdict.ranks[0] if verdict.ranks else -1
        where = self._job.members.ranks[first].where if 0 <= first < self._job.members.world_size else ""
        self._job.note("hang", verdict.reason, first, where)

    def _judge(self, since: int) -> HangVerdict | None:
        stands, members = self._stands, self._job.members
        until = min(self._told_at.get(node, since) for node in {members.ranks[rank].where for rank in stands})
        phases = {stand.phase for stand in stands.values()}
        if until - since < limits.STILL_STOPPED_NS or phases & {Phase.PARKED, Phase.DONE}:
            return None
        found = waits.find({rank: stand.places for rank, stand in stands.items()}, members.world_size)
        stopped = [
            rank
            for rank, stand in sorted(stands.items())
            if stand.still.doing in _OUTSIDE and until - stand.doing_since >= limits.STILL_STOPPED_SEEN_NS
        ]
        if not stopped and (Phase.SETUP in phases or not self._late(found, since, until)):
            return None
        age_ns, culprits = until - since, tuple(stopped or found.awaited)
        text = f"no progress for {_seconds(age_ns)}: {found.text}{self._of_processes(culprits)}"
        return HangVerdict(HangFinding.STANDS, age_ns, culprits, cut(text))

    def _late(self, found: Waits, since: int, until: int) -> bool:
        """Whether whoever is awaited has had more time than anything usual takes."""
        if found.knot is Knot.FOR_SOME:
            due = [self._due(self._stands[rank], since) for rank in found.awaited]
            return all(at is not None and at <= until for at in due)
        allowed = limits.STILL_TOGETHER_NS if self._rhythm.known else limits.STILL_UNKNOWN_NS
        if found.knot is Knot.NOT_AT_ALL:
            allowed = limits.STILL_UNKNOWN_NS
            if any(stand.still.doing not in _ALLOWED for stand in self._stands.values()):
                return False
        elif any(stand.still.doing is Doing.WORKS for stand in self._stands.values()):
            allowed = limits.STILL_UNKNOWN_NS  # bytes may flow
        if any(stand.still.doing is Doing.COMPILES for stand in self._stands.values()):
            allowed = limits.STILL_COMPILES_NS
        return until - since >= self._rhythm.allowed(allowed, Phase)

    def _due(self, stand: Stand, since: int) -> int | None:
        """From when on this rank has had more time than anything usual takes; None: that cannot be said."""
        doing, phase = stand.still.doing, (stand.phase,)
        if doing is Doing.COMPILES:
            return stand.doing_since + limits.STILL_COMPILES_NS
        asleep = _ALLOWED.get(doing)
        if not self._rhythm.known:
            return None if asleep is None else stand.doing_since + limits.STILL_UNKNOWN_NS
        at_last = since + self._rhythm.allowed(limits.STILL_WORKS_NS, phase)
        if asleep is None:
            return at_last
        return min(at_last, max(since, stand.doing_since) + self._rhythm.allowed(asleep, phase))

    def _of_processes(self, culprits: Iterable[int]) -> str:
        """`; process 4711 of rank 1 on node-0 is stopped by a signal`."""
        text = ""
        for rank in list(culprits)[:_MOST_NAMED]:
            record, still = self._job.members.ranks[rank], self._stands[rank].still
            more = f" {still.words}" if still.words else ""
            text += f"; process {record.pid} of rank {rank} on {record.where} {_WORDS[still.doing]}{more}"
        return text


def _seconds(duration_ns: int) -> str:
    return f"{milliseconds(duration_ns) / 1_000:.1f} s"
