"""Sends one node's reports to the manager: the agent's side of that talk.

Reports are levels: a beat carries what changed, and from time to time everything. What the manager has not confirmed is
in every beat. What can go wrong, and what follows:

- *The manager is gone*: nothing is sent. When it returns, it is sent everything, and the evidence that was kept.
- *The connection was broken for a while*: ranks may have been given up, so each has to be confirmed anew.

Not here: what the manager answers (agent), and the state of a rank (crew).
"""

from __future__ import annotations

from collections import deque

from taskd.core import limits
from taskd.core.crew import Crew
from taskd.core.device_relay import DeviceRelay
from taskd.core.local import LocalRank
from taskd.core.messages import AgentHello, Evidence, RailReport, RankReport, Report
from taskd.core.pause.relay import PauseRelay
from taskd.core.post import Post
from taskd.core.proof.relay import ProofRelay
from taskd.core.rails.relay import RailRelay
from taskd.core.still_relay import StillRelay


class Reporter:
    """Sends beats, and the reports that cannot wait for the next beat."""

    def __init__(
        self,
        post: Post,
        crew: Crew,
        rails: RailRelay,
        proofs: ProofRelay,
        still: StillRelay,
        devices: DeviceRelay,
        pauses: PauseRelay,
    ) -> None:
        self._post = post
        self._crew = crew
        self._rails = rails
        self._proofs = proofs
        self._still = still
        self._devices = devices
        self._pauses = pauses
        self._evidence: deque[Evidence] = deque(maxlen=limits.MAX_KEPT_EVIDENCE)
        self._beat_at = self._full_at = 0

    def tick(self, now: int) -> None:
        """Send the next beat, if it is due."""
        if now >= self._beat_at:
            self._beat_at = now + self._post.who.interval_ns
            self.beat(now, full=now >= self._full_at)

    def beat(self, now: int, full: bool) -> None:
        """Send the ranks that have changed or are not confirmed, or all ranks."""
        if not self._post.connected:
            return
        if full:
            self._full_at = now + limits.FULL_REPORT_NS
        reports = []
        for record in self._crew.ranks.values():
            if record.past:
                continue
            if full or record.news or not (record.acknowledged or record.refused):
                record.news = False
                reports.append(record.report())
        self._report(full, tuple(reports), self._rails.news.due(now))
        if (still := self._still.due(now)) is not None:
            self._post.send(still)
        if (seen := self._devices.due(now)) is not None:
            self._post.send(seen)
        if (answers := self._pauses.due_with_beat()) is not None:
            self._post.send(answers)

    def tell(self, record: LocalRank) -> None:
        """Report one rank at once, because the manager should know it before the next beat."""
        if self._post.connected and not record.past:
            record.news = False
            self._report(False, (record.report(),))

    def tell_pause(self) -> None:
        """Report the answers to a pause at once, because ranks wait for what follows from them."""
        if self._post.connected and (answers := self._pauses.news()) is not None:
            self._post.send(answers)

    def introduce(self, now: int) -> None:
        """Send everything that the manager may not know."""
        if not self._post.connected:
            return
        for record in self._crew.ranks.values():
            record.acknowledged = False  # it may have been given up meanwhile: ask again before it follows any order
        who = self._post.who
        interval_ms = min(max(who.interval_ns // limits.MS, 1), 60_000)
        named = (who.job, who.node, who.host, who.pid)
        self._post.send(AgentHello(*named, self._crew.world_size, who.spawns, who.slots, interval_ms))
        self._rails.news.again()
        self._still.again()
        self._devices.again()
        self._pauses.again()
        self.beat(now, full=True)
        while self._evidence:
            self._post.send(self._evidence.popleft())

    def witness(self, evidence: Evidence) -> None:
        """Send what a rank has seen to the manager at once, or as soon as it is back."""
        if self._post.connected:
            self._post.send(evidence)
        else:
            self._evidence.append(evidence)

    def _report(self, full: bool, ranks: tuple[RankReport, ...], rails: tuple[RailReport, ...] = ()) -> None:
        post = self._post
        if (proofs := self._proofs.due()) is not None:
            post.send(proofs)
        post.send(Report(full, post.term, ranks, post.epoch, rails, self._rails.number))
