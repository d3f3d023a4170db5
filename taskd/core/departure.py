"""Decides when and how an agent's work ends: by the manager's word, with its last worker, or without a manager.

What can go wrong, and what follows:

- *Workers do not end when they are told to*: after STOP_GRACE_NS a launcher ends them.
- *The manager is gone and ranks need it* (a worker is dead, none is left, or some are parked for a repair): a launcher
  gives up after a while and reports the cause. Ranks that train need no manager. Ranks in a repair need it, because
  only the manager can let them go on. So such a repair has a lease (ABANDONED_NS). When the lease is over, the node's
  ranks end, as they would under another launcher.

Invariant: an agent leaves only once. Not here: how a rank ends whose seat has gone to another process (seating).
"""

from __future__ import annotations

from taskd.core import limits
from taskd.core.crew import Crew
from taskd.core.effects import Leave, Relay
from taskd.core.local import LocalRank
from taskd.core.messages import Goodbye, Stop
from taskd.core.post import Post
from taskd.core.seating import Seating
from taskd.core.types import RankState, StopKind
from taskd.core.words import cut, exit_words, shell_code

LEASE_SECONDS = limits.ABANDONED_NS // limits.SECOND


class Departure:
    """Checks whether this agent still has something to do."""

    def __init__(self, post: Post, crew: Crew, seating: Seating) -> None:
        self._post = post
        self._crew = crew
        self._seating = seating
        self.left = False
        self._stop_at = 0  # when the Stop arrived
        self._alone_since: int | None = None  # no connection since then; None: not checked yet

    def tick(self, now: int) -> None:
        """Check whether this agent still has something to do, and leave if it has not."""
        live, idle_ns = self._crew.live(), self._crew.idle_ns(now)
        idle = idle_ns is not None and idle_ns >= self._post.who.linger_ns
        if self._post.stopping is not None:
            self._go_on(self._post.stopping, live, now)
        elif not self._post.who.spawns:
            if idle:
                self._leave(0, "all workers of this node have ended")
        elif not self._post.connected:
            self._manage_alone(idle, now)

    def disconnected(self, now: int) -> None:
        """The connection to the manager broke."""
        self._alone_since = now

    def stop(self, stop: Stop, now: int) -> None:
        """The job is over, or cannot go on here. All workers are told once."""
        if self._post.stopping is not None:
            return
        self._post.stopping, self._stop_at = stop, now
        if stop.kind is StopKind.DRAINED:
            self._post.warn(stop.reason)
        live = self._crew.live()
        if live:
            self._post.do(Relay(tuple(record.rank for record in live), stop))
        self._go_on(stop, live, now)

    def ended(self, now: int) -> None:
        """A process is gone: the agent may have waited for it as the last one before it leaves."""
        if self._post.stopping is not None:
            self._go_on(self._post.stopping, self._crew.live(), now)

    def _go_on(self, stop: Stop, live: list[LocalRank], now: int) -> None:
        """Leave when no worker is left. A launcher ends the workers that are late."""
        spawns = self._post.who.spawns
        late = now - self._stop_at >= limits.STOP_GRACE_NS
        if not live or (late and not spawns):
            self._leave(stop.exit_code, stop.reason, stop.kind)
        elif late:
            for record in live:
                self._seating.end(record, stop.reason)

    def _manage_alone(self, idle: bool, now: int) -> None:
        """Decide for a launcher that has no manager."""
        self._alone_since = now if self._alone_since is None else self._alone_since
        alone_ns = now - self._alone_since
        abandoned = alone_ns >= limits.ABANDONED_NS
        waits = self._post.in_repair and bool(self._crew.live())
        if alone_ns >= limits.AWAY_NS and waits:
            self._post.warn(
                "the manager is gone in the middle of a repair: this node's ranks wait for it, "
                f"for {LEASE_SECONDS} s at most"
            )
        ranks, term = self._crew.ranks, self._post.term
        dead = [record for record in ranks.values() if record.state is RankState.DEAD]
        if dead and abandoned:
            died = f"rank {dead[0].rank} died ({exit_words(dead[0].exit_code)})"
            reason = f"{died}, and for {LEASE_SECONDS} s there was no manager to replace it"
            self.stop(Stop(term, shell_code(dead[0].exit_code), reason), now)
        elif not ranks and alone_ns >= (limits.ABANDONED_NS if term else limits.UNMET_NS):
            gone = "is gone" if term else f"has not been met for {limits.UNMET_NS // limits.SECOND} s"
            self._leave(1, f"the manager {gone}, and nobody will need this spare")
        elif ranks and not dead and idle:
            self._leave(0, "all workers of this node have ended in good order")
        elif waits and abandoned:
            reason = f"for {LEASE_SECONDS} s there was no manager to end the repair that was under way"
            self.stop(Stop(term, 1, reason), now)

    def _leave(self, exit_code: int, reason: str, kind: StopKind = StopKind.OVER) -> None:
        self._post.send(Goodbye(cut(reason)))
        self._post.do(Leave(exit_code, reason, kind))
        self.left = True
