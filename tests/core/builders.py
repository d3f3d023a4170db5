"""Short constructors of the messages that agents send, for the tests of the core."""

from __future__ import annotations

from typing import Any

from taskd.core.events import Said, Sender
from taskd.core.manager import Manager
from taskd.core.messages import AgentHello, RankReport, Report
from taskd.core.types import Phase, RankState, Stage, Strategy

REPAIRS = frozenset({Strategy.IN_PLACE, Strategy.RESPAWN, Strategy.RECOVER})


def rank_report(rank: int, incarnation: int = 1, **changes: Any) -> RankReport:
    """Return the report of a healthy rank that the manager knows."""
    values: dict[str, Any] = {
        "rank": rank,
        "incarnation": incarnation,
        "pid": 100 + rank,
        "state": RankState.ALIVE,
        "exit_code": 0,
        "acknowledged": True,
        "epoch": 0,
        "stage": Stage.RUNNING,
        "updates": -1,
        "step": 5,
        "phase": Phase.BODY,
        "beat_age_ms": 1,
        "step_ms": 100,
        "reason": "",
        "ok": True,
        **changes,
    }
    return RankReport(**values)


def manager(ranks: int = 4, nodes: int = 2, recover: bool = True, **changes: Any) -> Manager:
    """Return a manager that may use every strategy."""
    values: dict[str, Any] = {"strategies": REPAIRS, "max_restarts": 3, **changes}
    return Manager("job", ranks, nodes, recover=recover, **values)


class Node:
    """An agent as the manager sees it. It sends hellos and reports with growing numbers."""

    def __init__(self, name: str, life: int = 1, spawns: bool = True, slots: int = 2) -> None:
        self.name, self.life, self.spawns, self.slots = name, life, spawns, slots
        self.sequence = 0

    def says(self, message: Any) -> Said:
        self.sequence += 1
        return Said(Sender(self.name, self.life, self.sequence), message)

    def hello(self, job: str = "job", world_size: int = 0) -> Said:
        return self.says(AgentHello(job, self.name, f"host-{self.name}", 7, world_size, self.spawns, self.slots, 100))

    def report(self, *ranks: RankReport, term: int = 1, full: bool = False) -> Said:
        return self.says(Report(full, term, ranks))
