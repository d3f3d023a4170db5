"""taskd rail list, out and back, with a real manager. The agents report cables and follow orders over the wire."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from taskd.core.messages import RailOrder, Report
from taskd.sim.rails import Cables, RailHands
from tests.shell.manager_process import HandAgent, ManagerProcess, wait_for

LOCK = threading.Lock()


@dataclass
class Hand:
    """One rank with its rails."""

    rank: int
    rails: RailHands = field(default_factory=RailHands)
    training: bool = True


class RailAgent(HandAgent):
    """An agent whose ranks follow rail orders, and whose reports say what goes over the cables."""

    cables: Cables
    crews: dict[str, list[Any]]
    order = RailOrder(0, 0, (), "")
    deaf = False

    def report(self) -> None:
        while (message := self.receive(0)) is not None:
            if isinstance(message, RailOrder) and not self.deaf:
                self.order = message
                for hand in self.crews[self.node]:
                    said = hand.rails.follow(hand.rank, 1, message)
                    self.states[hand.rank] = {"rail_order": said.number, "rail_trouble": said.reason}
        with LOCK:
            rails = self.cables.reports(self.node, self.crews, time.monotonic_ns())
        self.say(Report(True, self.term, self.rows(), self.epoch, rails, self.order.number))


@dataclass
class Plane:
    manager: ManagerProcess
    cables: Cables
    agents: dict[str, RailAgent]

    def cli(self, *words: str) -> Any:
        return self.manager.cli("rail", *words)

    def rows(self) -> dict[str, dict[str, Any]]:
        answer = json.loads(self.cli("list", "--json").stdout)
        return {f"{row['rail']}@{row['node']}": row for row in answer["rails"]}

    def wait_for(self, what: str, **wanted: str) -> None:
        def there() -> bool:
            row = self.rows().get(what, {})
            return all(row.get(name) == value for name, value in wanted.items())

        wait_for(there, f"{what} to be {wanted}")


@pytest.fixture
def plane(run_dir: Path, free_port: Callable[[], int]) -> Iterator[Plane]:
    manager = ManagerProcess(run_dir, free_port()).start()
    cables = Cables(("red", "blue"))
    crews: dict[str, list[Any]] = {"a": [Hand(0), Hand(1)], "b": [Hand(2), Hand(3)]}
    with contextlib.ExitStack() as stack:
        agents = {}
        for name, hands in crews.items():
            agent = stack.enter_context(RailAgent(manager, name, tuple(hand.rank for hand in hands)))
            agent.cables, agent.crews = cables, crews
            HandAgent.join(agent)
            agents[name] = agent
        for agent in agents.values():
            stack.enter_context(agent.beating())
        one = Plane(manager, cables, agents)
        wait_for(lambda: len(one.rows()) == 4, "all rails to be reported")
        yield one
    assert manager.end() == 0, manager.said()


def test_a_job_without_rails_says_so(run_dir: Path, free_port: Callable[[], int]) -> None:
    manager = ManagerProcess(run_dir, free_port()).start()
    assert "no rail is reported" in manager.cli("rail", "list").stdout
    unknown = manager.cli("rail", "out", "red")
    assert unknown.returncode == 2 and "there is no rail 'red'" in unknown.stderr
    assert manager.end() == 0, manager.said()


def test_a_lost_rail_is_shown_borrowed_and_given_back(plane: Plane) -> None:
    with LOCK:
        plane.cables.breaks("b", "red", "down", time.monotonic_ns())
    plane.wait_for("red@b", state="down", use="borrowed")
    table = plane.cli("list").stdout
    (line,) = [line for line in table.splitlines() if line.split()[:2] == ["b", "red"]]
    assert "borrowed" in line and "blue" in line and "Network is down" in line, table
    lines = plane.cli("list", "--lines").stdout
    assert lines.splitlines()[0].split()[:4] == ["NODE", "RAIL", "PEER", "STATE"] and "0/4" in lines
    wait_for(lambda: plane.agents["b"].order.out == ("red",), "the order to reach b")
    with LOCK:
        plane.cables.heals("b", "red", time.monotonic_ns())
    plane.wait_for("red@b", state="up", use="in use")
    wait_for(lambda: not plane.agents["b"].order.out, "the rail to be put back at b")

    def closed() -> bool:
        (incident,) = json.loads(plane.manager.cli("incidents", "--json").stdout)["incidents"]
        return bool(incident["outcome"] == "healed" and incident["cost"]["borrowed_bytes"])

    wait_for(closed, "the incident to be closed with its cost")


def test_an_operator_takes_a_rail_out_and_puts_it_back(plane: Plane) -> None:
    out = plane.cli("out", "red")
    assert out.returncode == 0 and "every rank has followed" in out.stdout, out.stdout + out.stderr
    assert all(hand.rails.out == {"red"} for crew in plane.agents["a"].crews.values() for hand in crew)
    assert plane.rows()["red@a"]["use"] == "out" == plane.rows()["red@b"]["use"]
    for words, why in (
        (("out", "red"), "out of use already"),
        (("out", "blue"), "only one"),
        (("back", "blue"), "in use"),
    ):
        refused = plane.cli(*words)
        assert refused.returncode == 2 and why in refused.stderr, refused.stderr
    back = plane.cli("back", "red", "--json")
    change = json.loads(back.stdout)
    assert back.returncode == 0 and change["outcome"] == "done" and "bytes flow" in change["words"], back.stdout


def test_one_node_alone(plane: Plane) -> None:
    assert plane.cli("out", "red", "--node", "a").returncode == 0
    assert plane.rows()["red@a"]["use"] == "out" and plane.rows()["red@b"]["use"] == "in use"
    nowhere = plane.cli("out", "red", "--node", "x")
    assert nowhere.returncode == 2 and "node x has no rail red" in nowhere.stderr
    spaced = plane.cli("out", "the red one", "--node", "node x")
    assert spaced.returncode == 2 and "there is no rail 'the red one'" in spaced.stderr, "names may have spaces"


def test_switch_is_another_name(plane: Plane) -> None:
    done = plane.cli("switch", "--node", "a", "--rail", "red", "--to", "standby")
    assert done.returncode == 0 and "rail red: " in done.stdout, done.stdout + done.stderr
    assert plane.rows()["red@a"]["use"] == "out" and plane.rows()["red@b"]["use"] == "in use"
    again = plane.cli("switch", "--node", "a", "--rail", "red", "--to", "standby")
    assert again.returncode == 2 and "out of use already" in again.stderr
    assert plane.cli("switch", "--node", "a", "--rail", "red", "--to", "primary").returncode == 0
    assert plane.rows()["red@a"]["use"] == "in use"
    for words, why in (
        (("--node", "a", "--device", "1"), "device 1 of node a has no rail for itself, for its ranks share them"),
        (("--node", "x", "--device", "1"), "there is no node x: known are a, b"),
        (("--node", "a"), "one of the arguments --rail --device is required"),
    ):
        refused = plane.cli("switch", *words, "--to", "standby")
        assert refused.returncode == 2 and why in refused.stderr, refused.stderr


def test_busy_unsupported_and_late(plane: Plane) -> None:
    plane.agents["b"].deaf = True
    waiting = plane.cli("out", "red", "--timeout", "1")
    assert waiting.returncode == 1 and "not ended yet" in waiting.stdout, waiting.stdout + waiting.stderr
    busy = plane.cli("out", "blue")
    assert busy.returncode == 2 and "busy" in busy.stderr
    for hand in plane.agents["b"].crews["b"]:
        hand.rails.unable = "unsupported: no rail to choose"
    plane.agents["b"].deaf = False
    plane.wait_for("red@a", use="in use")
    undone = plane.cli("out", "red")
    assert undone.returncode == 1 and "cannot follow: unsupported" in undone.stdout, undone.stdout


def test_the_manager_remembers_what_is_out(plane: Plane) -> None:
    assert plane.cli("out", "red").returncode == 0
    plane.manager.kill()
    plane.manager.start()
    wait_for(lambda: len(plane.rows()) == 4, "the agents to be back")
    assert plane.rows()["red@a"]["use"] == "out" == plane.rows()["red@b"]["use"]
    assert plane.cli("back", "red").returncode == 0
    assert not plane.agents["a"].order.out
