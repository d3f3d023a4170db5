"""The load that a large job puts on the core at one moment: its facts, part by part, and all agents' goodbyes."""

from __future__ import annotations

from typing import Any

import pytest

from taskd.core import limits
from taskd.core.limits import SECOND
from taskd.core.manager import Manager
from taskd.core.messages import Goodbye, Report
from taskd.core.records import NodeState
from taskd.core.types import RankState
from tests.core.builders import Node, manager, rank_report


def trained(nodes: int) -> tuple[Manager, list[Node]]:
    core = manager(2 * nodes, nodes)
    made = [Node(f"n{at:02}") for at in range(nodes)]
    for at, node in enumerate(made):
        core.step(1, node.hello(world_size=2 * nodes))
        core.step(1, node.report(rank_report(2 * at), rank_report(2 * at + 1)))
    return core, made


def test_how_a_large_job_stands_is_told_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    core, _ = trained(5)
    whole = core.facts(SECOND)
    assert whole["next"] is None and whole["states"] == {"alive": 10}
    monkeypatch.setattr(limits, "STATUS_ROWS", 4)
    parts: list[dict[str, Any]] = [core.facts(SECOND)]
    while parts[-1]["next"] is not None:
        parts.append(core.facts(SECOND, parts[-1]["next"]))
    assert [(len(part["nodes"]), len(part["ranks"])) for part in parts] == [(4, 4), (1, 4), (0, 2)]
    for key in ("nodes", "ranks"):
        assert [row for part in parts for row in part[key]] == whole[key]
    assert all(part["states"] == whole["states"] for part in parts)


def test_a_place_behind_the_last_rank_is_empty() -> None:
    facts = trained(1)[0].facts(SECOND, 10**17)
    assert facts["ranks"] == [] == facts["nodes"] and facts["next"] is None


def test_the_processes_of_a_host() -> None:
    core, _ = trained(2)
    assert core.processes("host-n01") == {7, 102, 103} and core.processes("elsewhere") == set()


def test_a_goodbye_looks_at_its_own_node_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    core, nodes = trained(20)
    looks: list[str] = []
    state = NodeState.UP

    class Watched(dict[str, Any]):
        def values(self) -> Any:
            looks.append("all nodes")
            return super().values()

    core._members.nodes = Watched(core._members.nodes)
    for at, node in enumerate(nodes[:-1]):
        left = [rank_report(rank, state=RankState.LEFT) for rank in (2 * at, 2 * at + 1)]
        core.step(SECOND, node.says(Report(False, 1, tuple(left))))
        core.step(SECOND, node.says(Goodbye("all workers of this node have ended in good order")))
    assert looks == [] and core._members.node_counts[state] == 1
    assert core.facts(SECOND)["over"] is None
    core.step(SECOND, nodes[-1].says(Report(False, 1, tuple(rank_report(at, state=RankState.LEFT) for at in (38, 39)))))
    assert core.facts(SECOND)["over"]["exit_code"] == 0
