"""The lines as they were last reported: the memory that the rails machine judges from.

Reports are many and none is journaled. Nothing of this is needed after a restart, since each report carries the full
state again. Failure modes, and what follows:

- *A connection breaks and is back before the next report*: the counter of downs shows it.
- *An agent was started again*: its counters start at zero, so they are not compared with older values.

Invariant: no node has more lines here than its bound. It does NOT say what a report means (judgement) or what was
decided (standing).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from taskd.core import limits
from taskd.core.messages import RailReport
from taskd.core.types import RailState

Key = tuple[str, str, str]  # node, rail, peer


@dataclass(slots=True, eq=False)
class Seen:
    """The last report of a line, and what was counted since."""

    report: RailReport
    heard_at: int
    downs: int  # downs that have been handled already
    bad_since: int | None = None  # since when it is worse than other rails between the two nodes, without a break
    suspect_since: int | None = None
    good: int = 0  # reports in a row in which it was well
    bytes_at_return: int = -1  # what it had carried when it was put back; -1: not measured yet
    others_at_return: int = 0
    cost_since: tuple[int, int, int] | None = (
        None  # others' bytes, its hedged and retransmitted frames, when it was lost
    )

    @property
    def missing(self) -> int:
        """How many pairs of ranks the line does not connect."""
        return max(self.report.pairs - self.report.pairs_up, 0)

    @property
    def bytes(self) -> int:
        """Bytes carried in both directions."""
        return self.report.bytes_in + self.report.bytes_out


class Sightings:
    """All lines of all nodes, as reported. The judging modules share this memory. It judges nothing itself."""

    def __init__(self) -> None:
        self.between: dict[tuple[str, str], dict[str, Seen]] = {}  # by node and peer, then by rail
        self.peers: dict[tuple[str, str], set[str]] = {}  # by node and rail: the peers reached over it
        self._count: dict[str, int] = {}

    def file(self, node: str, reports: tuple[RailReport, ...], at: int) -> Iterator[tuple[Key, bool]]:
        """File one beat's lines, and yield for each whether it is odd. Costs a few comparisons per line."""
        for report in reports:
            lines = self.between.setdefault((node, report.peer), {})
            seen = lines.get(report.rail)
            if seen is None:
                if self._count.get(node, 0) >= limits.MAX_RAIL_RECORDS:
                    continue
                self._count[node] = self._count.get(node, 0) + 1
                lines[report.rail] = seen = Seen(report, at, report.downs)
                self.peers.setdefault((node, report.rail), set()).add(report.peer)
            elif report.downs < seen.downs or report.bytes_out < seen.report.bytes_out:
                seen.downs, seen.bytes_at_return, seen.cost_since = report.downs, -1, None
            used = report.pairs > 0  # an unused line (new groups, or groups without it) is neither well nor lost
            well = report.state is RailState.UP and report.pairs_up == report.pairs and report.downs == seen.downs
            seen.good = seen.good + 1 if used and well else 0
            seen.report, seen.heard_at = report, at
            yield (node, report.rail, report.peer), used and not well

    def of(self, key: Key) -> Seen:
        """A line that is reported."""
        node, name, peer = key
        return self.between[node, peer][name]

    def find(self, key: Key) -> Seen | None:
        """A line, if it is reported."""
        node, name, peer = key
        return self.between.get((node, peer), {}).get(name)

    def silent(self, at: int) -> Iterator[Key]:
        """Lines that no report has named for a long time."""
        for (node, peer), lines in self.between.items():
            for name, seen in lines.items():
                if at - seen.heard_at >= limits.RAIL_STALE_NS:
                    yield node, name, peer

    def drop(self, key: Key) -> None:
        """Forget a line that no node reports any more."""
        node, name, peer = key
        del self.between[node, peer][name]
        self.peers[node, name].discard(peer)
        self._count[node] -= 1

    def forget(self, node: str) -> None:
        """A node is gone. Forget every line from it and to it."""
        for key in [key for key in self.between if node in key]:
            for rail in self.between.pop(key):
                self.peers.get((key[0], rail), set()).discard(key[1])
        self._count.pop(node, None)

    def clear(self) -> None:
        """The manager was restarted: forget all old reports."""
        self.between.clear()
        self.peers.clear()
        self._count.clear()

    def names(self, node: str) -> set[str]:
        """The rails that a node has."""
        return {name for (where, name), peers in self.peers.items() if where == node and peers}

    # ---- sums -------------------------------------------------------------------------------------------------

    def bytes_of_others(self, key: Key) -> int:
        """The bytes that all other rails have sent between the same two nodes."""
        node, name, peer = key
        return sum(seen.report.bytes_out for other, seen in self.between[node, peer].items() if other != name)

    def spent(self, key: Key, seen: Seen) -> tuple[int, int, int]:
        """The cost counters up to now: bytes sent by other rails, frames hedged, frames sent again."""
        return self.bytes_of_others(key), seen.report.hedged, seen.report.retransmitted

    def cost(self, key: Key, seen: Seen) -> tuple[int, int, int]:
        """The same counters, since the line was lost."""
        if seen.cost_since is None:
            return 0, 0, 0
        since, now = seen.cost_since, self.spent(key, seen)
        return max(now[0] - since[0], 0), max(now[1] - since[1], 0), max(now[2] - since[2], 0)
