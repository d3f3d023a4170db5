"""The benchmark of the control plane: it measures what it says. The jobs are small, and each of their ranks takes part
in what is counted. These tests do not ask whether a figure is good.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from taskd.bench import control
from taskd.bench.meeting import Meeting
from taskd.bench.nodes import Nodes
from taskd.bench.report import Goal
from taskd.core.types import Strategy
from taskd.errors import UsageError
from taskd.manager.store_desk import StoreDesk


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("MEETINGS", {16: Goal("<=", 1)}),
        ("MEETING_TURNS", 2),
        ("RAIL_NODES", 4),
        ("RAIL_S", 3),
        ("ORDER_RANKS", 32),
        ("JOURNAL_RANKS", 16),
        ("REPAIRS", 2),
        ("LEAVING_NODES", 5),
    ):
        monkeypatch.setattr(control, name, value)


@pytest.mark.usefixtures("small")
def test_every_figure_is_measured() -> None:
    figures = control.measure()
    assert set(figures) >= {
        "meeting_16_s",
        "rail_loss_64_nodes_ms",
        "order_100k_s",
        "journal_rows_per_repair",
        "status_100k_ms",
        "goodbyes_5000_s",
        "standstill_10k_ms",
    }
    assert all(figure.value is not None for figure in figures.values())
    assert len(figures["meeting_16_s"].runs) == 2


def test_a_part_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="no part"):
        control.measure(["metings"])


def test_whoever_meets_learns_of_all(tmp_path: Path) -> None:
    desk = StoreDesk(str(tmp_path))
    desk.begin(fresh=True, epoch=1)
    meeting = Meeting(desk, "epoch1/g", 20)
    meeting.hold()
    assert meeting.asked >= 2 * 20 and meeting.busy_s > 0
    assert len(desk.store.waits) == 0
    desk.close()


def test_nodes_go_through_a_whole_repair() -> None:
    manager = control._Core(12, 3, Strategy.IN_PLACE)
    job = Nodes(3, 4, manager.take)
    job.begin()
    for rank in (0, 7):
        job.repair(rank)
    found = manager.core.incidents(manager.now)
    assert [one["outcome"] for one in found] == ["healed", "healed"]
    facts = manager.core.facts(manager.now)
    assert [rank["incarnation"] for rank in facts["ranks"]] == [2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1]
    assert {rank["updates"] for rank in facts["ranks"]} == {7}


def test_a_rail_that_is_lost_is_found_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "RAIL_NODES", 3)
    made: list[control._Core] = []
    core = control._Core
    monkeypatch.setattr(control, "_Core", lambda *words: made.append(core(*words)) or made[-1])
    control.measure(["rails"])
    states = {row["rail"]: row["state"] for row in made[0].core.rails(made[0].now)["rails"]}
    assert states["red"] != "up" and states["blue"] == "up"
