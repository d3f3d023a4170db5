"""Cables, and a transport that behaves like csrc/rail: the rail reports of nodes, and which rail carries which traffic.

A line is up if neither end has a fault on that rail, and suspect if one end stutters. Traffic is spread evenly over the
good lines that neither of the two ranks was ordered to leave. A node's reports are made from that when the node sends.
The module does not know the core's decisions, on purpose: the checkers compare the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from taskd.core.limits import MS, RAIL_VERIFY_BYTES
from taskd.core.messages import RailOrder, RailReport, RailsFollowed
from taskd.core.types import RailState

BYTES = 64 << 20
"""How much one pair of ranks sends each other per second of training."""
AWAKE_NS = 20 * MS
"""How long the transport takes to connect again."""


class Carrier(Protocol):
    """A process, with what matters for its rails."""

    rank: int
    rails: RailHands

    @property
    def training(self) -> bool:
        """Whether the process trains, and so sends."""


@dataclass(slots=True)
class RailHands:
    """What one process does about rail orders: as worker/rails.py, with one answer for each order."""

    order: tuple[int, int] = (0, 0)
    out: frozenset[str] = frozenset()
    wanted: frozenset[str] = frozenset()  # as ordered
    unable: str = ""  # why this process can take no rail out
    stuck: str = ""  # why it can put no rail back
    false: bool = False  # it reports success and does nothing
    deaf: bool = False  # it does not answer
    hindered_until: int = 0  # when the last of these troubles ends

    def follow(self, rank: int, incarnation: int, order: RailOrder) -> RailsFollowed:
        """Carry out an order, or say why not."""
        wanted = frozenset(order.out)
        trouble = self.unable if order.out else ""
        if self.stuck and self.out - wanted:
            trouble = self.stuck
        if trouble:
            return RailsFollowed(rank, incarnation, order.number, False, trouble)
        if (order.term, order.number) > self.order:
            self.order, self.wanted = (order.term, order.number), wanted
        if not self.false:
            self.out = self.wanted
        return RailsFollowed(rank, incarnation, self.order[1], True, "")


@dataclass(slots=True)
class _Line:
    up: bool = True
    since: int = 0
    downs: int = 0
    bytes: int = 0
    hedged: int = 0
    moved: set[tuple[int, int]] = field(default_factory=set)
    others: dict[tuple[int, int], int] = field(default_factory=dict)  # bytes over other rails instead
    outs: dict[int, frozenset[str]] = field(default_factory=dict)  # by rank: its `out` at the last report


class Cables:
    """All rails between all nodes."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.broken: dict[tuple[str, str], str] = {}  # node and rail: how
        self._lines: dict[tuple[str, str, str], _Line] = {}
        self._looked: dict[str, int] = {}

    def breaks(self, node: str, rail: str, how: str, now: int) -> None:
        """A fault begins: down, silent (one way), stutter, slow (carries less), hollow (carries nothing), or gone (not
        reported)."""
        self.broken[node, rail] = how
        self._settle(node, rail, now)

    def heals(self, node: str, rail: str, now: int) -> None:
        """The fault is gone."""
        self.broken.pop((node, rail), None)
        self._settle(node, rail, now)

    def _settle(self, node: str, rail: str, now: int) -> None:
        for (where, name, peer), line in self._lines.items():
            if name == rail and node in (where, peer):
                up = self._up(where, name, peer)
                if line.up and not up:
                    line.downs += 1
                    line.hedged += 4
                if line.up != up:
                    line.up, line.since = up, now + (AWAKE_NS if up else 0)
                    line.moved.clear()
                    line.others.clear()

    def _up(self, node: str, rail: str, peer: str) -> bool:
        return not self._faults(node, rail, peer) & {"down", "silent", "gone"}

    def _faults(self, node: str, rail: str, peer: str) -> set[str | None]:
        return {self.broken.get((node, rail)), self.broken.get((peer, rail))}

    def reports(self, node: str, crews: dict[str, list[Carrier]], now: int) -> tuple[RailReport, ...]:
        """What this node's agent reads from its ranks' counters now. Makes up the traffic since the last read."""
        elapsed, self._looked[node] = now - self._looked.get(node, now), now
        found = []
        for peer, theirs in crews.items():
            pairs = [(one, other) for one in crews.get(node, []) for other in theirs if one.rank != other.rank]
            if pairs:
                names = [name for name in self.names if "gone" not in self._faults(node, name, peer)]
                found += [self._report(node, name, peer, pairs, elapsed, now) for name in names]
        return tuple(found)

    def carries(self, node: str, peer: str, out: frozenset[str]) -> list[str]:
        """The rails over which two ranks send, if they were ordered to leave the rails `out`. If no other rail is left,
        they use a rail of `out` all the same."""
        up = [name for name in self.names if self._up(node, name, peer)]
        good = [name for name in up if "stutter" not in self._faults(node, name, peer)]
        return [name for name in good if name not in out] or good or up

    def _report(
        self, node: str, name: str, peer: str, pairs: list[tuple[Carrier, Carrier]], elapsed: int, now: int
    ) -> RailReport:
        line = self._lines.get((node, name, peer))
        if line is None:
            line = self._lines[node, name, peer] = _Line(self._up(node, name, peer), now)
        faults = self._faults(node, name, peer)
        present = {(one.rank, other.rank) for one, other in pairs}
        line.moved &= present
        for rank, out in {one.rank: one.rails.out for one, _ in pairs}.items():
            if line.outs.get(rank) != out:  # the rank has a new order, so its traffic counts anew
                line.outs[rank] = out
                line.moved = {pair for pair in line.moved if pair[0] != rank}
                line.others = {pair: count for pair, count in line.others.items() if pair[0] != rank}
        share = BYTES * elapsed // 1_000_000_000 // (100 if "slow" in faults else 1)
        sent = 0
        for one, other in pairs if share else ():
            if not (one.training and other.training):
                continue
            pair, carriers = (one.rank, other.rank), self.carries(node, peer, one.rails.out | other.rails.out)
            if name in carriers and "hollow" not in faults:
                sent += share // len(carriers)
                line.moved.add(pair)
            elif carriers:
                line.others[pair] = line.others.get(pair, 0) + share
        line.bytes += sent
        up = line.up and now >= line.since
        well = RailState.SUSPECT if "stutter" in faults else RailState.UP
        state = well if up else RailState.PROBING if line.up else RailState.DOWN
        count = len(present)
        return RailReport(
            rail=name,
            peer=peer,
            state=state,
            age_ms=max(now - line.since, 0) // MS,
            pairs=count,
            pairs_up=count if up else 0,
            pairs_moved=len(line.moved),
            bytes_out=line.bytes,
            bytes_in=line.bytes,
            round_trip_ns=50_000,
            downs=line.downs * count,
            hedged=line.hedged,
            retransmitted=line.hedged,
            duplicates=0,
            last_error=0 if up else 100,
            pairs_starved=sum(line.others.get(pair, 0) >= RAIL_VERIFY_BYTES for pair in present - line.moved)
            if up
            else 0,
        )


def crews_of(carriers: Iterable[tuple[str, Carrier]], wanted: Callable[[Carrier], bool]) -> dict[str, list[Carrier]]:
    """The wanted processes, by node."""
    crews: dict[str, list[Carrier]] = {}
    for node, carrier in carriers:
        if wanted(carrier):
            crews.setdefault(node, []).append(carrier)
    return crews
