"""A job whose nodes report rails and follow orders at once. The tests of the rails machine run on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from taskd.core.effects import ManagerEffect, Tell
from taskd.core.events import ManagerEvent, RailWish, Tick
from taskd.core.limits import MS, SECOND
from taskd.core.messages import RailOrder, RailReport, Report
from taskd.core.types import RailState
from tests.core.builders import Node, manager, rank_report

UP = RailReport("red", "b", RailState.UP, 1_000, 1, 1, 1, 0, 0, 50_000, 0, 0, 0, 0, 0)


class Job:
    """A manager and its nodes. Each node has one rank, reports its rails and follows every order at once."""

    def __init__(
        self, nodes: Sequence[str] = "ab", rails: tuple[str, ...] = ("red", "blue"), recover: bool = True
    ) -> None:
        self.core = manager(len(nodes), len(nodes), recover=recover)
        self.nodes = {name: Node(name, slots=1) for name in nodes}
        self.rails = rails
        self.lines = {
            (one, rail, other): replace(UP, rail=rail, peer=other)
            for one in nodes
            for other in nodes
            if one != other
            for rail in rails
        }
        self.orders: dict[str, RailOrder] = {}
        self.told: list[tuple[int, str, RailOrder]] = []
        self.journal: list[tuple[int, ManagerEvent]] = []
        self.effects: list[ManagerEffect] = []
        self.trouble = self.words = ""  # what every rank reports about any order
        self.now = SECOND
        for node in self.nodes.values():
            self.step(node.hello(world_size=len(nodes)))
        self.run(SECOND)

    def step(self, event: ManagerEvent) -> None:
        effects = self.core.step(self.now, event)
        if self.core.to_journal():
            self.journal += [(self.now, row) for row in self.core.to_journal()]
            self.effects += effects
        for effect in effects:
            if isinstance(effect, Tell) and isinstance(effect.message, RailOrder):
                self.orders[effect.node] = effect.message
                self.told.append((self.now, effect.node, effect.message))

    def run(self, duration_ns: int, traffic: int = 1 << 20) -> None:
        """Send the beats of all nodes. With each beat, every rail that is in use and up carries `traffic` bytes."""
        end = self.now + duration_ns
        while self.now < end:
            self.now += 100 * MS
            for rank, (name, node) in enumerate(self.nodes.items()):
                self.beat(name, node, rank, traffic)
            self.step(Tick())

    def beat(self, name: str, node: Node, rank: int, traffic: int) -> None:
        order = self.orders.get(name)
        out = order.out if order is not None else ()
        for key, line in self.lines.items():
            if key[0] == name and line.state is RailState.UP and line.rail not in out:
                self.lines[key] = replace(line, bytes_out=line.bytes_out + traffic, bytes_in=line.bytes_in + traffic)
        number = order.number if order is not None else 0
        rails = tuple(line for key, line in self.lines.items() if key[0] == name)
        said = rank_report(rank, rail_order=number, rail_trouble=self.trouble, rail_words=self.words)
        self.step(node.says(Report(True, 1, (said,), 0, rails, number)))

    def change(self, rail: str, *pairs: Sequence[str], **changes: Any) -> None:
        """Change lines of a rail. A pair is the line from a to b: `ab`, or the names of both nodes."""
        for pair in pairs:
            line = self.lines[pair[0], rail, pair[1]]
            self.lines[pair[0], rail, pair[1]] = replace(line, **changes)

    def down(self, rail: str, *pairs: Sequence[str]) -> None:
        for pair in pairs:
            downs = self.lines[pair[0], rail, pair[1]].downs + 1
            self.change(rail, pair, state=RailState.DOWN, pairs_up=0, pairs_moved=0, downs=downs)

    def up(self, rail: str, *pairs: Sequence[str]) -> None:
        self.change(rail, *pairs, state=RailState.UP, pairs_up=1, pairs_moved=1)

    def uses(self) -> dict[str, str]:
        return {f"{row['rail']}@{row['node']}": row["use"] for row in self.core.rails(self.now)["rails"]}

    def states(self) -> set[str]:
        return {row["state"] for row in self.core.rails(self.now)["rails"]}

    def well(self) -> bool:
        """Whether every rail is up, and in use unless an operator has taken it out, and no rail incident is open."""
        broken = [incident for incident in self.open() if incident["kind"] == "rail"]
        return set(self.uses().values()) <= {"in use", "out"} and self.states() == {"up"} and not broken

    def open(self) -> list[dict[str, Any]]:
        return [one for one in self.core.incidents(self.now) if one["outcome"] == "open"]


def wish(job: Job, rail: str, node: str, out: bool) -> None:
    found = job.core.rail_wish(rail, node, out)
    assert isinstance(found, RailWish), found
    job.step(found)
