"""A job that stands still: is it a hang, and who is awaited? It is said once, and so is that the job goes on.

Nodes tell which of their ranks make no progress (Stillness): no step, phase or operation has begun. The job stands
still as long as all ranks do. That alone is no hang. What would be a false alarm: a first step that compiles, an
evaluation, a checkpoint, uneven steps, a request to a slow server; a machine so busy that a healthy rank gets no
processor; a node that is not heard; a repair. So

- nothing is judged where a rank is missing, in its set-up, parked or done, a node silent, or an incident open;
- a pause lasts as far as every node has confirmed it, so what is late or lost makes it shorter and never longer; only
  a rank that is stopped is named by the word of its own node;
- the ranks that others wait for (waits.py) decide, by what their processes do (limits.py says how long each may);
- five times the longest pause that the job has come out of by itself, in such a phase, is allowed in any case.

A rank that a signal has stopped, and for which all others wait, is given up, so that it is replaced. What would make
that worse than waiting: a death makes all start over, or its restarts are nearly used up; several ranks are stopped, so
that somebody means it; a debugger holds it. Nobody of these is given up, nor who merely sleeps, perhaps for a server.

Invariants: a pause that was called a hang and ends by itself teaches, so it is not called one again; nobody is given
up who was not named before. *Not seen:* a hang of ranks that all work; one in which some rank still makes progress. It
does NOT end or replace anybody: it says who is given up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from taskd.core import limits
from taskd.core.events import HangVerdict
from taskd.core.job import Job
from taskd.core.messages import Place, RankReport, Still, Stillness
from taskd.core.records import NodeRecord
from taskd.core.rhythm import Rhythm
from taskd.core.stands import OUTSIDE, Stand, Stands
from taskd.core.types import Cover, Doing, HangFinding, Phase, RankState
from taskd.core.waits import Knot, Waits
from taskd.core.words import cut, milliseconds

_ALLOWED = {
    Doing.SLEEPS: limits.STILL_ASLEEP_NS,
    Doing.HOLDS_GIL: limits.STILL_GIL_NS,
    Doing.BLOCKED: limits.STILL_BLOCKED_NS,
}


@dataclass(frozen=True, slots=True)
class Hang:
    """What was said, as long as it is true."""

    since: int
    ranks: tuple[int, ...]
    text: str
    given_up: bool = False
    """The ranks."""


class Hangs:
    """Of one job. All but `hang` comes from what nodes tell, of which no journal holds anything."""

    def __init__(self, job: Job) -> None:
        self.hang: Hang | None = None
        self._job = job
        self._stands = Stands(job.members)
        self._since: int | None = None  # all ranks are still since then
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
        if any(rank in self._stands.by_rank and self._moves(rank, told.get(rank)) for rank in node.ranks):
            self._goes_on(at)
        self._stopped |= any(one.doing in OUTSIDE for one in told.values())
        for rank in node.ranks:
            self._stands.put(rank, told.get(rank), tuple(places.get(rank, ())), at)
        self._stands.told_at[node.name] = at
        if self._since is None and self._stands.all:
            self._since = max(self._calm_since, *(stand.since for stand in self._stands.by_rank.values()))
            self._judge_at = 0

    def restarted(self) -> None:
        """The manager was away: how far the job is has to be told anew."""
        ranks = self._job.members.ranks
        self._before = ranks[0].report if ranks else None

    def _moves(self, rank: int, told: Still | None) -> bool:
        """Whether a rank makes progress, or has made some."""
        known = self._stands.by_rank.get(rank)
        return told is None or (known is not None and told.mark != known.still.mark)

    def _goes_on(self, at: int) -> None:
        """Some rank has made progress: how long was the pause?"""
        if self._since is None:
            return
        if not self._stands.do(Doing.COMPILES) and not self._stopped:
            phases = [phase for phase, count in self._stands.outside.items() if count] or list(Phase)
            self._rhythm.took(phases, at - self._since)
        self._since, self._stopped = None, False

    def _forget(self, at: int) -> None:
        self._calm_since = at
        self._stands.clear()
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
        self._judge_at = at + len(self._stands.by_rank) * limits.STILL_JUDGE_NS
        return self._judge(self._since)

    def _end(self) -> str:
        """In what way the job stands still no more; empty: it does, as far as anybody knows."""
        if self._job.over is not None:
            return "the job stood still for {time}, until its end"
        if self._job.incident:
            return "the job stood still for {time}, until its repair began"
        return "the job goes on after {time}" if self._resumed else ""

    def give_up(self, at: int, max_restarts: int) -> HangVerdict | None:
        """Whom to replace rather than wait for any longer."""
        hang, since = self.hang, self._since
        if hang is None or hang.given_up or len(hang.ranks) != 1 or since is None or at < self._judge_at:
            return None
        self._judge_at = at + len(self._stands.by_rank) * limits.STILL_JUDGE_NS
        rank, until = hang.ranks[0], self._stands.confirmed(since)
        stand, record = self._stands.by_rank[rank], self._job.members.ranks[rank]
        long = until >= max(since, stand.doing_since) + limits.STILL_STOPPED_REPLACED_NS
        if stand.still.doing is not Doing.STOPPED or not long or not self._only(rank):
            return None
        if record.node is None or not record.node.starts or record.restarts + 1 >= max_restarts:
            return None
        if any(one.cover is not Cover.HEALED for one in self._job.members.ranks):
            return None
        text = f"ended after {_seconds(until - since)} without progress"
        return HangVerdict(HangFinding.GIVEN_UP, until - since, hang.ranks, text)

    def _only(self, rank: int) -> bool:
        """Whether all others wait for this one inside of their steps, and nobody has stopped them."""
        others = [stand for other, stand in self._stands.by_rank.items() if other != rank]
        own = any(one.still.doing in OUTSIDE or one.phase is Phase.BETWEEN for one in others)
        return not own and self._stands.all_wait_for(rank)

    def apply(self, verdict: HangVerdict, at: int) -> None:
        """Say what was found, and remember it."""
        if verdict.finding is HangFinding.GIVEN_UP:
            self.hang = None if self.hang is None else replace(self.hang, given_up=True)
            return
        self.hang, self._resumed = None, False
        if verdict.finding is HangFinding.STANDS:
            self.hang = Hang(at - verdict.age_ns, verdict.ranks, verdict.reason)
        first = verdict.ranks[0] if verdict.ranks else -1
        where = self._job.members.ranks[first].where if 0 <= first < self._job.members.world_size else ""
        self._job.note("hang", verdict.reason, first, where)

    def _judge(self, since: int) -> HangVerdict | None:
        stands = self._stands
        stopped = stands.stopped()
        until = stands.confirmed(since, stopped)
        phases = {stand.phase for stand in stands.by_rank.values()}
        if until - since < limits.STILL_STOPPED_NS or phases & {Phase.PARKED, Phase.DONE}:
            return None
        found = stands.waits()
        if not stopped and (Phase.SETUP in phases or not self._late(found, since, until)):
            return None
        age_ns, culprits = until - since, tuple(stopped or found.awaited)
        text = f"no progress for {_seconds(age_ns)}: {found.text}{stands.of_processes(culprits or found.named)}"
        return HangVerdict(HangFinding.STANDS, age_ns, culprits, cut(text))

    def _late(self, found: Waits, since: int, until: int) -> bool:
        """Whether whoever is awaited has had more time than anything usual takes."""
        if found.knot is Knot.FOR_SOME:
            due = [self._due(self._stands.by_rank[rank], since) for rank in found.awaited]
            return all(at is not None and at <= until for at in due)
        allowed = limits.STILL_TOGETHER_NS if self._rhythm.known else limits.STILL_UNKNOWN_NS
        if found.knot is Knot.NOT_AT_ALL:
            allowed = limits.STILL_UNKNOWN_NS
            if any(stand.still.doing not in _ALLOWED for stand in self._stands.by_rank.values()):
                return False
        elif self._stands.do(Doing.WORKS):
            allowed = limits.STILL_UNKNOWN_NS  # bytes may flow
        if self._stands.do(Doing.COMPILES):
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


def _seconds(duration_ns: int) -> str:
    return f"{milliseconds(duration_ns) / 1_000:.1f} s"
