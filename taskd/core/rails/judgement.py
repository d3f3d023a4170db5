"""The verdict about a line: is it lost, silent, connected again, or proved?

The judge compares the reports of a line with those of the other rails between the same two nodes. Failure modes:

- *A process or node dies*: its connections end on all rails. A line counts as lost only if another rail between the
  same two nodes misses fewer pairs of ranks, or went down less often.
- *All rails between two nodes are gone*: left to the detector at first. Later each line is lost, and nothing is lent.
- *No node reports a line any more*: the line is gone. This is reported once, if there was a decision about the line.

It does NOT say which rail is lent or comes back (lending), and it does not change any decision.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from errno import errorcode

from taskd.core import limits
from taskd.core.events import RailVerdict
from taskd.core.membership import Membership
from taskd.core.rails.attention import Attention
from taskd.core.rails.carriers import Carriers
from taskd.core.rails.sightings import Key, Seen, Sightings
from taskd.core.rails.standing import Standing
from taskd.core.records import NodeState
from taskd.core.types import RailFinding, RailState
from taskd.core.words import cut


class LineJudge:
    """Finds the verdict about a line, if there is one now, and dismisses lines that are well again."""

    def __init__(
        self, standing: Standing, sightings: Sightings, carriers: Carriers, attention: Attention, members: Membership
    ) -> None:
        self._standing = standing
        self._sightings = sightings
        self._carriers = carriers
        self._attention = attention
        self._members = members

    def find(self, where: tuple[str, str], peers: Iterable[str], at: int, repairing: bool) -> list[RailVerdict]:
        """The verdicts about these lines of one rail. Equal verdicts about several lines become one."""
        found: dict[tuple[RailFinding, str, tuple[str, ...]], list[RailVerdict]] = {}
        for peer in peers:
            verdict = self._line((*where, peer), at, repairing)
            if verdict is not None:
                found.setdefault((verdict.finding, verdict.reason, verdict.borrowers), []).append(verdict)
        return [_together(alike) for alike in found.values()]

    def _line(self, key: Key, at: int, repairing: bool) -> RailVerdict | None:
        node, name, peer = key
        seen = self._sightings.find(key)
        state = self._standing.state(*key)
        unseen = seen is None and state is not RailState.UP
        if unseen and at - self._standing.known[node, name].lines[peer].since < limits.RAIL_STALE_NS:
            return None
        if seen is None or at - seen.heard_at >= limits.RAIL_STALE_NS:
            if seen is not None:
                self._sightings.drop(key)
            self._attention.dismiss(key)
            reason = "nobody uses it any more"
            gone = state is not RailState.UP
            return RailVerdict(RailFinding.GONE, name, (node,), (peer,), reason) if gone else None
        why = self._why_lost(key, seen, at, repairing)
        if why and state is not RailState.DOWN:
            return self._lost(key, seen, why)
        if state is RailState.DOWN:
            if seen.report.state is RailState.UP and seen.bad_since is None and seen.good > 0:
                seen.good = 0
                return RailVerdict(RailFinding.CONNECTED, name, (node,), (peer,), "it answers again and is probed")
        elif state is RailState.PROBING:
            return self._probe(key, seen, at)
        else:
            return self._suspect(key, seen, state, at)
        return None

    def _why_lost(self, key: Key, seen: Seen, at: int, repairing: bool) -> str:
        """Why this line is lost. Empty: it is not lost, or this is not certain yet."""
        node, _, peer = key
        report, lines = seen.report, self._sightings.between[node, peer]
        there = [other for other in lines.values() if at - other.heard_at < limits.RAIL_STALE_NS]
        least = min(other.missing for other in there)
        all_gone = report.pairs > 0 and not any(other.report.pairs_up for other in there)
        if seen.missing <= least and not all_gone:
            seen.bad_since = None
            return self._blip(seen, lines, at)
        seen.bad_since = at if seen.bad_since is None else seen.bad_since
        if all_gone and (repairing or not (self._up(node) and self._up(peer))):
            seen.bad_since = at
        if at - seen.bad_since < (limits.RAIL_ALL_CONFIRM_NS if all_gone else limits.RAIL_CONFIRM_NS):
            return ""
        error = f" ({errorcode.get(report.last_error, report.last_error)})" if report.last_error else ""
        return f"{seen.missing} of {report.pairs} pairs of ranks are cut off on it{error}"

    def _blip(self, seen: Seen, lines: dict[str, Seen], at: int) -> str:
        """Why a line that went down and came back between two reports counts as lost. Empty: it does not."""
        more = seen.report.downs - seen.downs
        if not more:
            return ""
        seen.suspect_since = at if seen.suspect_since is None else seen.suspect_since
        if at - seen.suspect_since < limits.RAIL_CONFIRM_NS:
            return ""
        # A rail that connects no pair cannot go down, so it does not show the effect of a process that died.
        measures = [other.report.downs - other.downs for other in lines.values() if other.report.pairs_up]
        least = min(measures) if len(measures) > 1 else more
        for other in lines.values():
            other.downs, other.suspect_since = other.report.downs, None
        times = "once" if more - least == 1 else f"{more - least} times"
        return f"it went down {times} and came back" if more > least else ""

    def _lost(self, key: Key, seen: Seen, why: str) -> RailVerdict:
        node, name, peer = key
        seen.downs, seen.good, seen.suspect_since = seen.report.downs, 0, None
        carriers = self._carriers.of(*key)
        seen.cost_since = self._sightings.spent(key, seen)
        return RailVerdict(RailFinding.LOST, name, (node,), (peer,), cut(why), carriers)

    def _probe(self, key: Key, seen: Seen, at: int) -> RailVerdict | None:
        node, name, peer = key
        rail = self._standing.known[node, name]
        quiet = at - rail.lines[peer].since
        if seen.good < limits.RAIL_PROBES or quiet < rail.back_off_ns:
            return None
        reason = f"{seen.good} good probes in {quiet // limits.MS} ms"
        verdict = RailVerdict(RailFinding.PROVED, name, (node,), (peer,), reason, (), *self._sightings.cost(key, seen))
        seen.cost_since = self._sightings.spent(key, seen)
        return verdict

    def _suspect(self, key: Key, seen: Seen, state: RailState, at: int) -> RailVerdict | None:
        """A line that is UP or SUSPECT. The verdict is for people only, so a short silence gives none."""
        node, name, peer = key
        if seen.report.state is not RailState.SUSPECT:
            if state is RailState.SUSPECT:
                return RailVerdict(RailFinding.ANSWERED, name, (node,), (peer,), "it answers")
            if seen.good:
                seen.suspect_since = None
                self._attention.dismiss(key)
            return None
        seen.suspect_since = at if seen.suspect_since is None else seen.suspect_since
        if state is RailState.UP and at - seen.suspect_since >= limits.RAIL_CONFIRM_NS:
            return RailVerdict(RailFinding.SILENT, name, (node,), (peer,), "it is silent")
        return None

    def _up(self, node: str) -> bool:
        record = self._members.nodes.get(node)
        return record is not None and record.state is NodeState.UP


def _together(alike: list[RailVerdict]) -> RailVerdict:
    """Join equal verdicts about several lines into one."""
    if len(alike) == 1:
        return alike[0]
    return replace(
        alike[0],
        peers=tuple(peer for one in alike for peer in one.peers),
        borrowed=sum(one.borrowed for one in alike),
        hedged=sum(one.hedged for one in alike),
        retransmitted=sum(one.retransmitted for one in alike),
    )
