"""A simulated set of nodes for a check: what each node would measure and report, with its faults, its lies and bad
luck.

Everything follows from one seed. Beside its faults a healthy set has noise: times vary by some percent, a time is many
times too long now and then, a transfer fails once, a report gets lost. A check must not accuse anybody for that.

A cluster answers turns of the core (core/check). It does NOT know how verdicts are made, and judges none.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from taskd.core import limits
from taskd.core.check.facts import Answers, Contact, Leg, Outcome, SelfTest, Side, Turn, Way, Work
from taskd.sim.check_faults import (
    BEGINS_LATER,
    FAULTS,
    LINK_FAULTS,
    NEEDS_MAJORITY,
    NEEDS_RAILS,
    NODE_FAULTS,
    RAIL_FAULTS,
    Fault,
)

RAILS = ("red", "blue", "green")
TORCH = "2.13.0"
COMPUTE_NS = 40 * limits.MS
MEMORY_NS = 15 * limits.MS
RAIL_NS = {"red": 12 * limits.MS, "blue": 30 * limits.MS, "green": 13 * limits.MS}
NOISE = 0.03
HICCUP = 0.002
"""How likely one time is several times too long."""
GLITCH = 0.0005
"""How likely one transfer fails, though all is well."""
LOST = 0.0005
"""How likely a report gets lost."""


class Cluster:
    """The nodes of one seed."""

    def __init__(self, count: int, faults: int, seed: int, kinds: Sequence[str] = tuple(FAULTS)) -> None:
        self.random = random.Random(f"{count} {faults} {seed} {','.join(kinds)}")
        self.nodes = sorted(self.random.sample(range(4 * count), count))
        self.rails = RAILS[: self.random.choice((1, 2, 2, 2, 3))]
        if not any(_possible(kind, len(self.rails), count) for kind in kinds):
            self.rails = RAILS[:2]
        self.dead_rails = set[str]()
        self.faults = self._draw(faults, [kind for kind in kinds if _possible(kind, len(self.rails), count)])
        self.by_node = {fault.nodes[0]: fault for fault in self.faults if len(fault.nodes) == 1}
        self.by_link = {fault.nodes: fault for fault in self.faults if len(fault.nodes) == 2}
        healthy = [node for node in self.nodes if node not in self.by_node]
        self.beside = self.random.choice([None, self.nodes[0], *healthy[:1]])
        self.tested: dict[int, list[int]] = {node: [] for node in self.nodes}
        """The turns in which each node was tested."""
        self._done = 0  # turns
        self._now = 0.0

    # ---- faults -----------------------------------------------------------------------------------------------

    @property
    def rails_left(self) -> list[str]:
        """The rails that work between some nodes."""
        return [rail for rail in self.rails if rail not in self.dead_rails]

    def _draw(self, count: int, kinds: Sequence[str]) -> list[Fault]:
        """Draw faults of different nodes and links. A link is drawn between nodes without a fault."""
        drawn = [self.random.choice(kinds) for _ in range(min(count, len(self.nodes)))]
        minority = 0
        for at, kind in enumerate(drawn):
            twice = kind in RAIL_FAULTS and any(other in RAIL_FAULTS for other in drawn[:at])
            if twice or (kind in NEEDS_MAJORITY and 2 * minority + 3 > len(self.nodes)):
                drawn[at] = "cut"
            minority += drawn[at] in NEEDS_MAJORITY
        drawn.sort(key=lambda kind: kind not in RAIL_FAULTS)  # the other faults are of rails that work elsewhere
        sick = self.random.sample(self.nodes, len(drawn))
        well = set(self.nodes) - {node for node, kind in zip(sick, drawn, strict=True) if kind in NODE_FAULTS}
        found: dict[tuple[int, ...], Fault] = {}
        for node, kind in zip(sick, drawn, strict=True):
            rail = self.random.choice(self.rails_left)
            factor = self.random.uniform(*{"behind": (1.1, 1.45), "boasts": (3.0, 10.0)}.get(kind, (2.0, 10.0)))
            begins = self.random.choice((0, 0, 1, 2, 3, 4)) + (kind == "leaves") if kind in BEGINS_LATER else 0
            nodes: tuple[int, ...] = (node,)
            if kind in RAIL_FAULTS:
                self.dead_rails.add(rail)
                nodes = ()
            elif kind in LINK_FAULTS:
                if len(well) < 2:
                    continue
                nodes = tuple(sorted(self.random.sample(sorted(well), 2)))
            found.setdefault(nodes, Fault(kind, nodes, rail, factor, begins))
        return list(found.values())

    def alone(self, node: int) -> bool:
        """Whether all links of this node to nodes without a fault are at fault: it looks like a sick node."""
        others = [one for one in self.nodes if one != node and one not in self.by_node]
        return bool(others) and all((min(node, one), max(node, one)) in self.by_link for one in others)

    def kind(self, node: int) -> str:
        """The kind of a node's fault. Empty: it has none."""
        fault = self.by_node.get(node)
        return fault.kind if fault is not None and self._done >= fault.begins else ""

    def _factor(self, node: int) -> float:
        return self.by_node[node].factor if node in self.by_node else 1.0

    def gone(self, node: int) -> bool:
        """Whether the node's probe answers nothing at this time."""
        return self.kind(node) in ("dead", "ended", "leaves", "hangs")

    def contact(self, node: int) -> Contact:
        """What the manager knows of a node at this time."""
        kind = self.kind(node)
        if kind == "ended":
            return Contact.ENDED
        return Contact.SILENT if kind in ("dead", "leaves") else Contact.HEARD

    # ---- what nodes measure -----------------------------------------------------------------------------------

    def _vary(self, time_ns: float) -> int:
        """A measured time: it varies a little, and is much too long now and then."""
        hiccup = self.random.uniform(2.0, 12.0) if self.random.random() < HICCUP else 1.0
        return max(int(time_ns * self.random.lognormvariate(0.0, NOISE) * hiccup), 1)

    def _work(self, node: int) -> Work:
        """What a node really does."""
        kind, factor = self.kind(node), self._factor(node)
        slow = {"compute", "starved", "boasts", "behind"}
        halves = kind == "half" and self.random.random() < 0.5
        compute = factor if kind in slow or halves else 1.0
        memory = factor if kind in ("memory", "starved") else 1.0
        wrong = kind in ("wrong", "denies") or (kind == "flips" and self.random.random() < 0.4)
        return Work(not wrong, self._vary(COMPUTE_NS * compute), self._vary(MEMORY_NS * memory))

    def _claim(self, node: int, work: Work) -> Work:
        """What the node says it did."""
        kind = self.kind(node)
        if kind == "denies":
            return Work(True, work.compute_ns, work.memory_ns)
        if kind == "boasts":
            return Work(work.right, self._vary(COMPUTE_NS), work.memory_ns)
        return Work(work.right, self._clock(node, work.compute_ns), self._clock(node, work.memory_ns))

    def _clock(self, node: int, time_ns: int) -> int:
        """A time by the clock of this node."""
        if self.kind(node) != "clock":
            return time_ns
        factor = self._factor(node) * 1.5
        return max(int(time_ns * factor if node % 2 else time_ns / factor), 1)

    def own(self, node: int) -> SelfTest | None:
        """What a node says of itself. None: nothing."""
        if self.gone(node) and self.kind(node) != "hangs":
            return None
        fault = self.by_node.get(node)
        rails = [rail for rail in self.rails if self.kind(node) != "missing" or fault is None or rail != fault.rail]
        torch = "2.12.1" if self.kind(node) == "version" else TORCH
        return SelfTest(torch, tuple((rail, Way.OK) for rail in rails), self._claim(node, self._work(node)))

    def _way(self, sender: int, receiver: int, rail: str) -> Way:
        """What becomes of a transfer from one node to another."""
        bad = Way.OK
        for node in (sender, receiver):
            kind, fault = self.kind(node), self.by_node.get(node)
            own = fault is not None and fault.rail == rail
            if kind == "cut" or (kind == "rail" and own) or (kind == "one way" and own and node == sender):
                return self.random.choice((Way.LATE, Way.FAILED))
            if kind == "damages" or (kind == "damaged rail" and own):
                bad = Way.CORRUPT
        link = self.by_link.get((min(sender, receiver), max(sender, receiver)))
        if link is not None and (link.kind == "link" or link.rail == rail):
            if link.kind in ("link", "rail of a link"):
                return Way.LATE
            if link.kind == "damaged link":
                bad = Way.CORRUPT
        if rail in self.dead_rails or self.random.random() < GLITCH:
            return Way.FAILED
        return bad

    def _rail_ns(self, nodes: tuple[int, int], rail: str) -> float:
        """How long a transfer takes."""
        factor = 1.0
        for node in nodes:
            kind, fault = self.kind(node), self.by_node.get(node)
            if fault is not None and kind == "slow rail" and fault.rail == rail:
                factor = max(factor, fault.factor)
            elif kind == "starved":
                factor = max(factor, self.random.uniform(1.0, self._factor(node)))
        link = self.by_link.get(nodes)
        if link is not None and link.kind == "slow link" and link.rail == rail:
            factor = max(factor, link.factor)
        return RAIL_NS[rail] * factor

    # ---- a test of two nodes ----------------------------------------------------------------------------------

    def answer(self, turn: Turn) -> tuple[Answers, float]:
        """Play a turn; return its answers, and how long it took in seconds."""
        longest = 0.0
        outcomes = []
        for low, high in turn.pairs:
            outcome, took = self._test(low, high)
            longest = max(longest, took)
            outcomes.append(outcome)
            for node in (low, high):
                self.tested[node].append(self._done)
        again = [(node, one) for node in turn.again if (one := self.own(node)) is not None]
        contacts = tuple((node, self.contact(node)) for node in self.nodes)
        if len(again) < len(turn.again):
            longest += limits.CHECK_SELF_NS / limits.SECOND
        self._done += 1
        self.random.shuffle(outcomes)
        return Answers(tuple(outcomes), contacts, tuple(again)), longest

    def _test(self, low: int, high: int) -> tuple[Outcome, float]:
        limit_s = limits.CHECK_PAIR_NS / limits.SECOND
        here = [not self.gone(node) for node in (low, high)]
        if not all(here):
            late = Side(tuple(Leg(rail, Way.LATE, Way.LATE) for rail in self.rails), elapsed_ns=limits.CHECK_PAIR_NS)
            return Outcome((low, high), (late if here[0] else None, late if here[1] else None)), limit_s
        common = [rail for rail in self.rails if all(self._has(node, rail) for node in (low, high))]
        fails = any(self.kind(node) == "unsteady" for node in (low, high)) and self.random.random() < 0.5
        legs: dict[int, list[Leg]] = {low: [], high: []}
        works = False
        for rail in common:
            there, back = (Way.LATE, Way.LATE) if fails else (self._way(low, high, rail), self._way(high, low, rail))
            times = [self._vary(self._rail_ns((low, high), rail)) for _ in range(2)]
            works |= (there, back) == (Way.OK, Way.OK)
            legs[low].append(self._leg(low, rail, (there, back), times))
            legs[high].append(self._leg(high, rail, (back, there), times[::-1]))
        real = {node: self._work(node) for node in (low, high)}
        sides = [
            self._side(node, tuple(legs[node]), real[node], (peer, real[peer]) if works else None)
            for node, peer in ((low, high), (high, low))
        ]
        lost = [
            side if self.kind(node) != "mute" and self.random.random() > LOST else None
            for node, side in zip((low, high), sides, strict=True)
        ]
        return Outcome((low, high), (lost[0], lost[1])), 0.2 if works else limit_s

    def _leg(self, node: int, rail: str, ways: tuple[Way, Way], times: Sequence[int]) -> Leg:
        """What one node sees of a rail. If nothing comes back to it, it gets no acknowledgement of what it has sent."""
        sent, received = ways
        if sent is Way.OK and received not in (Way.OK, Way.CORRUPT):
            sent = Way.LATE
        out_ns, into_ns = (self._clock(node, self._vary(time_ns)) for time_ns in times)
        return Leg(rail, sent, received, out_ns, into_ns)

    def _has(self, node: int, rail: str) -> bool:
        return self.kind(node) != "missing" or self.by_node[node].rail != rail

    def _side(self, node: int, legs: tuple[Leg, ...], work: Work, peer: tuple[int, Work] | None) -> Side:
        """What a node reports: as it is, or as it lies."""
        seen = None
        if peer is not None:
            delay = self.random.uniform(1.0, self._factor(node)) if self.kind(node) == "starved" else 1.0
            times = [self._clock(node, self._vary(one * delay)) for one in (peer[1].compute_ns, peer[1].memory_ns)]
            seen = Work(peer[1].right, times[0], times[1])
        if self.kind(node) == "accuses":
            legs = tuple(Leg(leg.rail, leg.sent, Way.LATE, leg.sent_ns) for leg in legs)
            seen = Work(False, seen.compute_ns, seen.memory_ns) if seen is not None else None
        elapsed_ns = sum(leg.sent_ns + leg.received_ns for leg in legs) + work.compute_ns
        return Side(legs, self._claim(node, work), seen, elapsed_ns)


def _possible(kind: str, rails: int, nodes: int) -> bool:
    """Whether so many nodes with so many rails can have such a fault."""
    return (kind not in NEEDS_RAILS or rails > 1) and (kind not in LINK_FAULTS or nodes > 1)
