"""Decides whether a job that stands still hangs, and which ranks the others wait for. A hang and its end are each
reported once.

Nodes report which of their ranks make no progress (Stillness): no step, phase or operation has begun. The job stands
still as long as all ranks do. That alone is no hang. False alarms would be: a first step that compiles, an evaluation,
a checkpoint, uneven steps, a request to a slow server; a machine so busy that a healthy rank gets no processor; a node
that is not heard; a repair. So

- nothing is judged while a rank is missing, in its set-up, parked or done, a node is silent, an incident is open, or an
  operator pauses the job;
- a pause counts only as far as every node has confirmed it, so late or lost messages make it shorter and never longer.
  For a rank that is stopped, the word of its own node is enough;
- the ranks that others wait for (waits.py) decide. The time they get depends on what their processes do (limits.py);
- five times the longest pause in such a phase that the job has come out of by itself is allowed in any case.

A rank is given up, and then replaced, if a signal has stopped it and all others wait for it. Some ranks are not given
up, because it would be worse than waiting: a death makes all ranks start over; the restarts of the rank are nearly used
up; several ranks are stopped, so somebody did it on purpose; a debugger holds the rank. A rank that only sleeps is not
given up either: it may wait for a server.

Invariants: when a pause that was called a hang ends by itself, the job learns from it, so such a pause is not called a
hang again; a rank is named before it is given up. *Not seen:* a hang in which all ranks work; a hang in which some rank
still makes progress. This module does NOT end or replace a rank: it says which rank is given up.
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
    """The hang that was reported, as long as it lasts."""

    since: int
    ranks: tuple[int, ...]
    text: str
    given_up: bool = False
    """Whether the ranks are given up."""


class Hangs:
    """The hangs of one job. All fields but `hang` come from reports of nodes, and no journal holds these reports."""

    def __init__(self, job: Job) -> None:
        self.hang: Hang | None = None
        self._job = job
        self._stands = Stands(job.members)
        self._since: int | None = None  # all ranks are still since then
        self._rhythm = Rhythm()
        self._judge_at = 0
        self._calm_since = 0  # the job trains since then, as far as is known; earlier stillness does not count
        self._before: RankReport | None = None  # the first rank's report from before the manager's restart
        self._stopped = False  # some rank was seen to be stopped from outside since then
        self._resumed = False  # some rank has made progress since `hang` was reported

    # ---- reports of nodes -------------------------------------------------------------------------------------

    def file(self, node: NodeRecord, message: Stillness, at: int) -> None:
        """Take a node's report of its ranks that are still. Its other ranks make progress."""
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
        """The manager was away: ranks have to report anew how far the job is."""
        ranks = self._job.members.ranks
        self._before = ranks[0].report if ranks else None

    def _moves(self, rank: int, told: Still | None) -> bool:
        """Whether a rank makes progress, or has made some."""
        known = self._stands.by_rank.get(rank)
        return told is None or (known is not None and told.mark != known.still.mark)

    def _goes_on(self, at: int) -> None:
        """Some rank has made progress: remember how long the pause was."""
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
        """Whether the job trains, as far as is known."""
        job, members = self._job, self._job.members
        whole = 0 < members.world_size == members.counts[RankState.ALIVE]
        # Ranks of a silent node are not alive here.
        return whole and not (job.over or job.incident or job.behind or members.paused)

    # ---- findings ---------------------------------------------------------------------------------------------

    def find(self, at: int) -> HangVerdict | None:
        """Return what is to be reported now. Call it until it returns None."""
        if self._watched():
            report = self._job.members.ranks[0].report
            new = report is not None and report is not self._before
            if report is not None and new and self._rhythm.see(self._job.epoch, report.step):
                self._goes_on(at)  # the Stillness message that would have shown it was lost, or has yet to come
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
        """Say in what way the pause has ended. Empty: as far as is known, it has not ended."""
        if self._job.over is not None:
            return "the job stood still for {time}, until its end"
        if self._job.incident:
            return "the job stood still for {time}, until its repair began"
        return "the job goes on after {time}" if self._resumed else ""

    def give_up(self, at: int, max_restarts: int) -> HangVerdict | None:
        """Return the rank that is to be replaced instead of awaited, if there is one."""
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
        """Whether all other ranks wait for this one inside their steps, and none of them is stopped from outside."""
        others = [stand for other, stand in self._stands.by_rank.items() if other != rank]
        own = any(one.still.doing in OUTSIDE or one.phase is Phase.BETWEEN for one in others)
        return not own and self._stands.all_wait_for(rank)

    def apply(self, verdict: HangVerdict, at: int) -> None:
        """Report what was found, and remember it."""
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
        """Whether the ranks that others wait for have had more time than anything usual takes."""
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
        """Return when this rank has had more time than anything usual takes. None: that is not known."""
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
