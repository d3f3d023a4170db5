"""Plays checks of simulated nodes, and compares the verdicts with the truth: exact, nobody healthy expelled, bounded.

The rules that each check has to keep, whatever the faults are:

- no node leaves that is not sick, and none that is only suspected;
- there are CHECK_ROUNDS rounds at most, no node is in two tests of a turn, and every turn has a limit;
- where two healthy nodes can meet, every verdict about a node is the right one, with the right component, and so is
  every verdict about a rail. With everyone meeting everyone, every sick link is named; in larger jobs those that two
  tests have met. No rail and no link is named that is well.

The last rule is measured and not demanded where faults take all third nodes away. This module knows the truth from
check_faults.py, and nothing of how core/check finds its verdicts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from taskd.core import limits
from taskd.core.check.check import Check
from taskd.core.check.findings import Finding, Harm, Report
from taskd.sim.check_faults import BEGINS_LATER, FAULTS, SOFT, right_components, right_findings
from taskd.sim.cluster import Cluster

MOST_SHOWN = 5


@dataclass(slots=True)
class Played:
    """One check, and what was wrong with its verdicts."""

    cluster: Cluster
    report: Report
    seconds: float
    wrong: list[tuple[str, str]] = field(default_factory=list)
    """The kind of the fault that was not named rightly (empty: none), and the sentence."""
    expelled: list[int] = field(default_factory=list)
    """Nodes without a fault that leave, or that are only suspected."""
    broken: list[str] = field(default_factory=list)
    """Rules that the machine itself has broken."""

    @property
    def decidable(self) -> bool:
        """Whether two healthy nodes can meet, so that the rest can be told from them."""
        cluster, count = self.cluster, len(self.cluster.nodes)
        well = [node for node in cluster.nodes if node not in cluster.by_node]
        clocks = sum(1 for fault in cluster.by_node.values() if fault.kind == "clock")
        half = 2 * len(cluster.by_node) <= count and 2 * clocks < count  # wrong clocks may agree with each other
        enough = len(well) > (2 if cluster.dead_rails else 1) and count > (3 if cluster.dead_rails else 2)
        return half and enough and not any(cluster.alone(node) for node in well)


def play(count: int, faults: int, seed: int, kinds: Sequence[str] = tuple(FAULTS)) -> Played:
    """Play one check and compare."""
    cluster = Cluster(count, faults, seed, kinds)
    own = {node: one for node in cluster.nodes if (one := cluster.own(node)) is not None}
    contacts = {node: cluster.contact(node) for node in cluster.nodes}
    check = Check(cluster.nodes, own, contacts, cluster.beside)
    seconds = 0.5 if len(own) == count else limits.CHECK_SELF_NS / limits.SECOND
    broken = []
    while check.turn is not None:
        turn = check.turn
        busy = [node for both in turn.pairs for node in both]
        if len(set(busy)) < len(busy) or not set(busy) <= set(cluster.nodes) or turn.limit_ns <= 0:
            broken.append(f"turn {turn} is none")
        answers, took = cluster.answer(turn)
        seconds += took
        check.take(answers)
        if turn.round >= limits.CHECK_ROUNDS or len(check.elapsed(turn.round)) > count:
            broken.append(f"round {turn.round} is one too many")
            break
    assert check.report is not None
    played = Played(cluster, check.report, seconds, broken=broken)
    _compare(played)
    return played


def _compare(played: Played) -> None:
    cluster, report = played.cluster, played.report
    for verdict in report.nodes:
        fault = cluster.by_node.get(verdict.node)
        if fault is not None and fault.kind in BEGINS_LATER:
            after = [turn for turn in cluster.tested[verdict.node] if turn >= fault.begins]
            if fault.begins and (len(after) < 2 or after[0] >= report.turns - limits.CHECK_MORE_TURNS):
                if verdict.finding not in (Finding.DOWN, Finding.UNDECIDED, Finding.HEALTHY):
                    played.wrong.append((fault.kind, f"node {verdict.node}, which left last, is called {verdict}"))
                continue
        kind = fault.kind if fault is not None else ""
        right = right_findings(fault, len(cluster.rails_left)) if fault is not None else {Finding.HEALTHY}
        parts = right_components(fault) if fault is not None else set[str]()
        if verdict.finding in (Finding.DOWN, Finding.WRONG, Finding.UNLIKE):
            parts = set()
        said = set(verdict.components)
        if verdict.finding not in right or (parts is not None and said != parts):
            played.wrong.append((kind, f"node {verdict.node} has {kind or 'no fault'}: {verdict}"))
        if verdict.leaves(True) and not cluster.alone(verdict.node) and (fault is None or fault.kind == "mute"):
            played.expelled.append(verdict.node)
        if verdict.leaves(True) and len(verdict.witnesses) < 2 and "itself" not in verdict.witnesses:
            played.broken.append(f"one witness only: {verdict}")
    _compare_rails(played)
    _compare_links(played)


def _compare_rails(played: Played) -> None:
    cluster = played.cluster
    harms = {"rail": Harm.DEAD, "one way": Harm.DEAD, "damaged rail": Harm.CORRUPT, "slow rail": Harm.SLOW}
    harms |= {"missing": Harm.MISSING}
    wanted: dict[tuple[int | None, str], tuple[Harm, str]] = {}
    for fault in cluster.faults:
        if fault.kind in harms and not (len(cluster.rails_left) == 1 and fault.kind != "slow rail"):
            wanted[(fault.nodes[0], fault.rail)] = (harms[fault.kind], fault.kind)
    wanted |= {(None, rail): (Harm.DEAD, "switch") for rail in cluster.dead_rails}
    loose = {node for node, fault in cluster.by_node.items() if fault.kind in SOFT}
    for verdict in played.report.rails:
        right = wanted.pop((verdict.node, verdict.rail), None)
        if verdict.node not in loose and (right is None or right[0] is not verdict.harm):
            played.wrong.append((right[1] if right else "", f"{verdict}"))
    for (node, rail), (_, kind) in wanted.items():
        if rail not in cluster.dead_rails or node is None:
            played.wrong.append((kind, f"rail {rail} of node {node} is not named"))


def _compare_links(played: Played) -> None:
    cluster = played.cluster
    harms = {"link": Harm.DEAD, "rail of a link": Harm.DEAD, "slow link": Harm.SLOW, "damaged link": Harm.CORRUPT}
    loose = {node for node, fault in cluster.by_node.items() if fault.kind in SOFT | BEGINS_LATER}
    named = set()
    for verdict in played.report.links:
        fault = cluster.by_link.get(verdict.nodes)
        named.add(verdict.nodes)
        if fault is None:
            if not loose & set(verdict.nodes) and verdict.harm is not Harm.UNDECIDED:
                played.wrong.append(("", f"{verdict}"))
        elif verdict.harm not in (harms[fault.kind], Harm.UNDECIDED) or verdict.rail not in ("", fault.rail):
            played.wrong.append((fault.kind, f"{verdict}"))
    if len(cluster.nodes) <= limits.CHECK_ALL_PAIRS:
        for nodes, fault in cluster.by_link.items():
            if nodes not in named and fault.rail not in cluster.dead_rails:
                played.wrong.append(
                    (fault.kind, f"the {fault.kind} between nodes {nodes} on {fault.rail} is not named")
                )


@dataclass(slots=True)
class Tally:
    """What many checks have shown."""

    nodes: int
    faults: int
    seeds: int = 0
    decidable: int = 0
    exact: int = 0
    expelled: int = 0
    longest_s: float = 0.0
    rounds: Counter[int] = field(default_factory=Counter)
    drawn: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    shown: list[str] = field(default_factory=list)

    def add(self, seed: int, played: Played) -> None:
        """Count one check."""
        self.seeds += 1
        self.rounds[played.report.rounds] += 1
        self.longest_s = max(self.longest_s, played.seconds)
        self.expelled += len(played.expelled)
        wrong = [f"{text}" for _, text in played.wrong] if played.decidable else []
        self.drawn.update(fault.kind for fault in played.cluster.faults)
        if played.decidable:
            self.decidable += 1
            self.exact += not played.wrong
            self.missed.update({kind or "none" for kind, _ in played.wrong})
        for text in [*played.broken, *wrong, *(f"node {node} leaves" for node in played.expelled)][:1]:
            if len(self.shown) < MOST_SHOWN:
                self.shown.append(f"seed {seed}: {text}")

    @property
    def ok(self) -> bool:
        """Whether all rules were kept."""
        return not self.shown

    def as_json(self) -> dict[str, Any]:
        """All of it, for one JSON object."""
        return {
            "nodes": self.nodes,
            "faults": self.faults,
            "seeds": self.seeds,
            "decidable": self.decidable,
            "exact_share": round(self.exact / self.decidable, 6) if self.decidable else None,
            "healthy_expelled": self.expelled,
            "rounds_max": max(self.rounds, default=0),
            "rounds": {str(number): self.rounds[number] for number in sorted(self.rounds)},
            "longest_s": round(self.longest_s, 1),
            "kinds": {kind: self.drawn[kind] for kind in FAULTS if self.drawn[kind]},
            "not_exact": dict(sorted(self.missed.items())),
            "ok": self.ok,
            "found": self.shown,
        }


def tally(count: int, faults: int, seeds: Iterable[int], kinds: Sequence[str] = tuple(FAULTS)) -> Tally:
    """Play one check for each seed."""
    found = Tally(count, faults)
    for seed in seeds:
        found.add(seed, play(count, faults, seed, kinds))
    return found
