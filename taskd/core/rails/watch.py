"""What reports say about rails, and what that means: the eyes of the rails machine.

Reports are many and none is journaled; `find` turns them into the few verdicts that are: one for all lines of a node's
rail of which the same is to be said. A line is looked at when it is reported and something is odd about it, the use of
rails in rounds. What can go wrong:

- *A process or node dies*: its connections end on all rails. A line counts as lost only where another rail between the
  same two nodes misses fewer pairs of ranks, or went down less often.
- *All rails between two nodes are gone*: left to the detector at first; then each line is lost, and nothing is lent.
- *A connection breaks and is back before the next report*: the count of downs tells.
- *An agent was started again*: its counters begin anew, and are compared with nothing older.

Nothing of this is needed after a restart: levels come again. Whether a change was followed and
proved is in verification.py. It does NOT change anything of what was decided.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from errno import errorcode

from taskd.core import limits
from taskd.core.events import RailVerdict
from taskd.core.membership import Membership
from taskd.core.messages import RailReport
from taskd.core.rails.rails import Rails
from taskd.core.rails.records import RESTING, Rail, Use
from taskd.core.rails.verification import Verification
from taskd.core.records import NodeState
from taskd.core.times import long_ago
from taskd.core.types import RailFinding, RailState
from taskd.core.words import cut, join, verb

Key = tuple[str, str, str]  # node, rail, peer


@dataclass(slots=True, eq=False)
class Seen:
    """What was last reported of a line."""

    report: RailReport
    heard_at: int
    downs: int  # that have been accounted for
    bad_since: int | None = None  # worse than other rails between the two nodes, without a break
    suspect_since: int | None = None
    good: int = 0  # reports in a row that found it well
    bytes_at_return: int = -1  # what it had carried when it was put back; -1: not looked at yet
    others_at_return: int = 0
    cost_since: tuple[int, int, int] | None = (
        None  # others' bytes, its hedged and retransmitted frames, when it was lost
    )

    @property
    def missing(self) -> int:
        """Pairs of ranks that it does not connect."""
        return max(self.report.pairs - self.report.pairs_up, 0)

    @property
    def bytes(self) -> int:
        """Carried either way."""
        return self.report.bytes_in + self.report.bytes_out


class RailWatch:
    """All lines of all nodes, as reported."""

    def __init__(self, rails: Rails, members: Membership) -> None:
        self._rails = rails
        self._members = members
        self.between: dict[tuple[str, str], dict[str, Seen]] = {}  # node and peer: by rail
        self.peers: dict[tuple[str, str], set[str]] = {}  # node and rail: who is reached over it
        self._odd: dict[Key, None] = {}  # lines that are looked at; in the order in which they became so
        self._fresh: dict[tuple[str, str], dict[str, None]] = {}  # those to be looked at now: node and rail, and peers
        self._found: deque[RailVerdict] = deque()
        self._count: dict[str, int] = {}
        self._swept_at = 0
        self._round_at: int | None = None
        self._in_round = False
        self._gathered = ("", 0)
        self._verification = Verification(rails, self, members)

    # ---- reports ----------------------------------------------------------------------------------------------

    def file(self, node: str, reports: tuple[RailReport, ...], at: int) -> None:
        """One beat's lines. Costs a few comparisons for each line that is well."""
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
            used = report.pairs > 0  # what nobody uses (groups are made anew, or without it) is neither well nor lost
            well = report.state is RailState.UP and report.pairs_up == report.pairs and report.downs == seen.downs
            seen.good = seen.good + 1 if used and well else 0
            seen.report, seen.heard_at = report, at
            key = (node, report.rail, report.peer)
            if (used and not well) or key in self._odd or self._rails.state(*key) is not RailState.UP:
                self._look_at(key)

    def _look_at(self, key: Key) -> None:
        node, name, peer = key
        self._odd[key] = None
        self._fresh.setdefault((node, name), {})[peer] = None

    def forget(self, node: str) -> None:
        """A node is gone, with every line from it and to it."""
        for key in [key for key in self.between if node in key]:
            for rail in self.between.pop(key):
                self.peers.get((key[0], rail), set()).discard(key[1])
        self._odd = {key: None for key in self._odd if node not in (key[0], key[2])}
        self._fresh.clear()
        self._count.pop(node, None)

    def restart(self) -> None:
        """The manager was away: what it saw before says nothing now. What was decided is looked at until it is seen."""
        self.between.clear()
        self.peers.clear()
        self._count.clear()
        self._fresh.clear()
        self._odd = {(*key, peer): None for key, rail in self._rails.known.items() for peer in rail.lines}

    def carriers(self, node: str, name: str, peer: str) -> tuple[str, ...]:
        """Which other rails carry between the two nodes: the borrow plan of a line."""
        return tuple(sorted(self._carriers(node, name, peer)))

    def is_carried(self, node: str, name: str, peer: str) -> bool:
        """Whether there is one."""
        return any(True for _ in self._carriers(node, name, peer))

    def _carriers(self, node: str, name: str, peer: str) -> Iterator[str]:
        for other, seen in self.between.get((node, peer), {}).items():
            if (
                other != name
                and seen.report.pairs_up > 0
                and self._rails.state(node, other, peer) in (RailState.UP, RailState.SUSPECT)
                and self._rails.use(node, other) not in RESTING
                and self._rails.use(peer, other) not in RESTING  # neither end sends where one of them rests
            ):
                yield other

    def names(self, node: str) -> set[str]:
        """The rails that a node has."""
        return {name for (where, name), peers in self.peers.items() if where == node and peers}

    # ---- verdicts ---------------------------------------------------------------------------------------------

    def find(self, at: int, repairing: bool) -> RailVerdict | None:
        """One thing that is to be decided by now; to be applied before the next is asked for. None: nothing (more)."""
        if at - self._swept_at >= limits.RAIL_SWEEP_NS:
            self._sweep(at)
        while self._fresh and not self._found:
            where = next(iter(self._fresh))
            self._found.extend(self._judged(where, self._fresh.pop(where), at, repairing))
        if self._found:
            return self._found.popleft()
        if not self._in_round and not long_ago(self._round_at, at, limits.RAIL_ROUND_NS):
            return None
        verdict = self._change_of_use(at, repairing)
        self._round_at, self._in_round = at, verdict is not None
        if verdict is not None and verdict.finding is RailFinding.LEND and self._gathered != (verdict.rail, at):
            self._gather(verdict.rail, at)
            return self.find(at, repairing)
        return verdict

    def _gather(self, name: str, at: int) -> None:
        """A rail is to be lent: look at its lines to all nodes first, since they go together."""
        self._gathered = (name, at)
        for key in self._odd:
            if key[1] == name:
                self._look_at(key)

    def _change_of_use(self, at: int, repairing: bool) -> RailVerdict | None:
        shuffle = self._rails.shuffle
        if shuffle is not None:
            lent = not shuffle.returns and not shuffle.operator
            if lent and any(self._last_left(node, shuffle.rail) for node in shuffle.nodes):
                reason = "it stays in use: no other rail is left"
                return RailVerdict(RailFinding.REFUSED, shuffle.rail, shuffle.nodes, (), reason)
            return self._verification.find(shuffle, at, repairing)
        return self._lend(at) or self._return(at, repairing)

    def _sweep(self, at: int) -> None:
        """Let lines that no report names any more be looked at, too."""
        self._swept_at = at
        for (node, peer), lines in self.between.items():
            for name, seen in lines.items():
                if at - seen.heard_at >= limits.RAIL_STALE_NS:
                    self._odd[node, name, peer] = None
        for key in self._odd:
            self._look_at(key)

    def _judged(self, where: tuple[str, str], peers: Iterable[str], at: int, repairing: bool) -> list[RailVerdict]:
        """What is to be said of these lines of one rail by now, the same of many in one."""
        found: dict[tuple[RailFinding, str, tuple[str, ...]], list[RailVerdict]] = {}
        for peer in peers:
            verdict = self._line((*where, peer), at, repairing)
            if verdict is not None:
                found.setdefault((verdict.finding, verdict.reason, verdict.borrowers), []).append(verdict)
        return [_together(alike) for alike in found.values()]

    def _line(self, key: Key, at: int, repairing: bool) -> RailVerdict | None:
        node, name, peer = key
        seen = self.between.get((node, peer), {}).get(name)
        state = self._rails.state(*key)
        unseen = seen is None and state is not RailState.UP
        if unseen and at - self._rails.known[node, name].lines[peer].since < limits.RAIL_STALE_NS:
            return None
        if seen is None or at - seen.heard_at >= limits.RAIL_STALE_NS:
            if seen is not None:
                del self.between[node, peer][name]
                self.peers[node, name].discard(peer)
                self._count[node] -= 1
            del self._odd[key]
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
        """Why this line is lost by now; empty: it is not, or that is not yet sure."""
        node, _, peer = key
        report, lines = seen.report, self.between[node, peer]
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
        """A line that went down and came back between two reports."""
        more = seen.report.downs - seen.downs
        if not more:
            return ""
        seen.suspect_since = at if seen.suspect_since is None else seen.suspect_since
        if at - seen.suspect_since < limits.RAIL_CONFIRM_NS:
            return ""
        # A rail that connects nobody has nothing to lose, so it tells nothing of what a process that died took along.
        measures = [other.report.downs - other.downs for other in lines.values() if other.report.pairs_up]
        least = min(measures) if len(measures) > 1 else more
        for other in lines.values():
            other.downs, other.suspect_since = other.report.downs, None
        times = "once" if more - least == 1 else f"{more - least} times"
        return f"it went down {times} and came back" if more > least else ""

    def _lost(self, key: Key, seen: Seen, why: str) -> RailVerdict:
        node, name, peer = key
        seen.downs, seen.good, seen.suspect_since = seen.report.downs, 0, None
        carriers = self.carriers(*key)
        seen.cost_since = self.spent(key, seen)
        return RailVerdict(RailFinding.LOST, name, (node,), (peer,), cut(why), carriers)

    def _probe(self, key: Key, seen: Seen, at: int) -> RailVerdict | None:
        node, name, peer = key
        rail = self._rails.known[node, name]
        quiet = at - rail.lines[peer].since
        if seen.good < limits.RAIL_PROBES or quiet < rail.back_off_ns:
            return None
        reason = f"{seen.good} good probes in {quiet // limits.MS} ms"
        verdict = RailVerdict(RailFinding.PROVED, name, (node,), (peer,), reason, (), *self.cost(key, seen))
        seen.cost_since = self.spent(key, seen)
        return verdict

    def _suspect(self, key: Key, seen: Seen, state: RailState, at: int) -> RailVerdict | None:
        """UP or SUSPECT: for people only, so what does not last is not written down."""
        node, name, peer = key
        if seen.report.state is not RailState.SUSPECT:
            if state is RailState.SUSPECT:
                return RailVerdict(RailFinding.ANSWERED, name, (node,), (peer,), "it answers")
            if seen.good:
                seen.suspect_since = None
                del self._odd[key]
            return None
        seen.suspect_since = at if seen.suspect_since is None else seen.suspect_since
        if state is RailState.UP and at - seen.suspect_since >= limits.RAIL_CONFIRM_NS:
            return RailVerdict(RailFinding.SILENT, name, (node,), (peer,), "it is silent")
        return None

    # ---- changes of use ---------------------------------------------------------------------------------------

    def _lend(self, at: int) -> RailVerdict | None:
        """Rails most of whose lines are lost, where others can carry. A single line is the transport's business.
        Before its lines are gathered (find), a rail is only named."""
        for (node, name), rail in self._rails.known.items():
            if rail.use is Use.IN_USE and not rail.refused and self._lendable(node, name):
                if self._gathered != (name, at):
                    return RailVerdict(RailFinding.LEND, name, (node,))
                nodes = tuple(
                    other.node
                    for other in self._rails.known.values()
                    if other.name == name
                    and other.use is Use.IN_USE
                    and not other.refused
                    and self._lendable(other.node, name)
                )
                plan = sorted({one for other in nodes for one in self._borrowers(other, name)})
                carry = verb(len(plan), "carries", "carry")
                reason = f"most of its lines are lost, {join(plan)} {carry} until it has proved itself"
                return RailVerdict(RailFinding.LEND, name, nodes, (), reason, tuple(plan))
        return None

    def _lendable(self, node: str, name: str) -> bool:
        peers = self.peers.get((node, name), set())
        others = peers - {node} or peers  # what a node says to itself crosses no cable
        lost = sum(self._rails.state(node, name, peer) in (RailState.DOWN, RailState.PROBING) for peer in others)
        return 2 * lost > len(others) and all(self.is_carried(node, name, peer) for peer in peers)

    def _borrowers(self, node: str, name: str) -> Iterator[str]:
        for peer in self.peers.get((node, name), set()):
            yield from self._carriers(node, name, peer)

    def _return(self, at: int, repairing: bool) -> RailVerdict | None:
        """Rails whose lines have all proved themselves; or that are the last one left between two nodes."""
        for rail in self._rails.known.values():
            if rail.use is Use.LENT and not repairing and self._ready(rail, at) and self._ready_for_so_long(rail, at):
                nodes = self._lent(rail.name, lambda other: self._ready(other, at))
                used = any(self.peers.get((node, rail.name)) for node in nodes)
                why = "all of its lines have proved themselves" if used else "nobody uses it any more"
                return RailVerdict(RailFinding.RETURN, rail.name, nodes, (), why)
            if self._needed(rail, at):
                nodes = self._lent(rail.name, lambda other: self._needed(other, at))
                return RailVerdict(RailFinding.RETURN, rail.name, nodes, (), "no other rail is left")
        return None

    @staticmethod
    def _ready(rail: Rail, at: int) -> bool:
        return not rail.lines and at - rail.since >= rail.back_off_ns

    @staticmethod
    def _ready_for_so_long(rail: Rail, at: int) -> bool:
        """The same rail of other nodes is a moment behind: they go together."""
        return at - max(rail.proved_at, rail.since + rail.back_off_ns) >= limits.RAIL_GATHER_NS

    def _lent(self, name: str, wanted: Callable[[Rail], bool]) -> tuple[str, ...]:
        known = self._rails.known.values()
        return tuple(rail.node for rail in known if rail.name == name and rail.use is Use.LENT and wanted(rail))

    def _needed(self, rail: Rail, at: int) -> bool:
        """It is lent, and nothing else is left; a rank that could not put it back is not asked without a pause."""
        pause = rail.refused and at - rail.since < rail.back_off_ns
        return rail.use is Use.LENT and not pause and self._last_left(rail.node, rail.name)

    def _last_left(self, node: str, name: str) -> bool:
        return any(
            self.between[node, peer][name].report.pairs_up > 0 and not self.is_carried(node, name, peer)
            for peer in self.peers.get((node, name), set())
        )

    # ---- sums -------------------------------------------------------------------------------------------------

    def bytes_of_others(self, key: Key) -> int:
        """What all other rails have sent between the same two nodes."""
        node, name, peer = key
        return sum(seen.report.bytes_out for other, seen in self.between[node, peer].items() if other != name)

    def spent(self, key: Key, seen: Seen) -> tuple[int, int, int]:
        """Up to now: bytes that others have sent, frames that were hedged and sent again."""
        return self.bytes_of_others(key), seen.report.hedged, seen.report.retransmitted

    def cost(self, key: Key, seen: Seen) -> tuple[int, int, int]:
        """The same since the line was lost."""
        if seen.cost_since is None:
            return 0, 0, 0
        since, now = seen.cost_since, self.spent(key, seen)
        return max(now[0] - since[0], 0), max(now[1] - since[1], 0), max(now[2] - since[2], 0)

    def _up(self, node: str) -> bool:
        record = self._members.nodes.get(node)
        return record is not None and record.state is NodeState.UP


def _together(alike: list[RailVerdict]) -> RailVerdict:
    """The same of several lines as one."""
    if len(alike) == 1:
        return alike[0]
    return replace(
        alike[0],
        peers=tuple(peer for one in alike for peer in one.peers),
        borrowed=sum(one.borrowed for one in alike),
        hedged=sum(one.hedged for one in alike),
        retransmitted=sum(one.retransmitted for one in alike),
    )
