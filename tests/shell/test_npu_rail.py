"""`taskd rail` and the NIC of an NPU: a process that uses HCCL follows an order, and answers when bytes have proved it.

Manager, agents and workers are real processes. torch_npu is a fake with its signatures. The driver's tool is a script
that prints what the fake's NICs have sent (trainer.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taskd.core import limits
from taskd.core.limits import SECOND
from tests.shell.manager_process import wait_for
from tests.shell.plane import Plane, Trainer

MEMBERS = (0, 2)
"""One rank on each node."""


@pytest.fixture
def plane(run_dir: Path, free_port: Callable[[], int]) -> Iterator[Plane]:
    with Plane(run_dir, free_port(), job=f"npu-{os.getpid()}") as made:
        made.manager.start()
        yield made
    made.wait_for_no_agents()


@pytest.fixture
def ranks(plane: Plane, tmp_path: Path) -> list[Trainer]:
    started = plane.train(*MEMBERS)
    for trainer in started:
        trainer.ask(f"npu {tmp_path}/npu{trainer.rank}")
    wait_for(lambda: len(rows(plane)) == 4, "both NICs of both nodes to be reported")
    return started


def rows(plane: Plane) -> dict[str, dict[str, Any]]:
    """Return the rows of `taskd rail list`, by rail and node."""
    listed = plane.manager.cli("rail", "list", "--json")
    return {f"{row['rail']}@{row['node']}": row for row in json.loads(listed.stdout)["rails"]}


def order(plane: Plane, *words: str) -> tuple[int, str]:
    done = plane.manager.cli("rail", *words)
    return done.returncode, done.stdout + done.stderr


def test_it_is_taken_out_and_put_back_and_bytes_prove_both(plane: Plane, ranks: list[Trainer]) -> None:
    assert {(row["state"], row["use"]) for row in rows(plane).values()} == {("up", "in use")}
    code, said = order(plane, "out", "npu")
    assert code == 0 and "every rank has followed; rank 0 (and 1 more): moved: others have carried" in said, said
    assert {name: row["use"] for name, row in rows(plane).items() if row["use"] != "in use"} == {
        "npu@left": "out",
        "npu@right": "out",
    }
    assert order(plane, "out", "npu-beside")[0] == 2, "nothing else is left"
    code, said = order(plane, "back", "npu")
    assert code == 0 and "bytes flow on every line and rank" in said, said
    assert {row["use"] for row in rows(plane).values()} == {"in use"}
    assert rows(plane)["npu@left"]["bytes_out"] > 0 < rows(plane)["npu-beside@left"]["bytes_out"]


def test_one_that_reports_success_and_moves_nothing_is_found_out(plane: Plane, ranks: list[Trainer]) -> None:
    ranks[1].ask("npu no-op")
    code, said = order(plane, "out", "npu")
    assert code == 1 and "rank 2 cannot follow: no-op: success was reported, but rail npu still carries" in said, said
    wait_for(lambda: {row["use"] for row in rows(plane).values()} == {"in use"}, "the order to be undone")


def test_a_way_back_that_moves_nothing_is_undone_and_tried_again(plane: Plane, ranks: list[Trainer]) -> None:
    assert order(plane, "out", "npu")[0] == 0
    ranks[0].ask("npu no-op")
    code, said = order(plane, "back", "npu")
    assert code == 1 and "rank 0 cannot follow: no-op: success was reported, but others have carried" in said, said
    assert rows(plane)["npu@left"]["use"] == "borrowed"
    ranks[0].ask("npu well")
    patience = 2 * (limits.RAIL_FOLLOW_NS + limits.RAIL_VERIFY_NS) // SECOND + 8 * limits.RAIL_QUIET_NS // SECOND
    wait_for(lambda: {row["use"] for row in rows(plane).values()} == {"in use"}, "its return", patience)


def test_one_that_cannot_switch_says_so(plane: Plane, ranks: list[Trainer]) -> None:
    ranks[0].ask("npu unsupported")
    code, said = order(plane, "out", "npu")
    assert code == 1 and "cannot follow: unsupported: this torch_npu has no _comm_switch_nic" in said, said
    wait_for(lambda: {row["use"] for row in rows(plane).values()} == {"in use"}, "the order to be undone")


def test_one_whose_bytes_nobody_counts_says_that_nothing_proves_it(
    plane: Plane, ranks: list[Trainer], tmp_path: Path
) -> None:
    for rank in MEMBERS:
        (tmp_path / f"npu{rank}" / "hccn_tool").unlink()
    code, said = order(plane, "out", "npu")
    assert code == 0 and "every rank has followed; rank 0 (and 1 more): asked: HCCL was asked to use" in said, said
    assert "nothing proves it" in said


def test_a_process_with_rails_of_two_transports_shows_both(plane: Plane, ranks: list[Trainer]) -> None:
    ranks[0].ask("rail red 2 right UP 1000")
    ranks[0].ask("rail blue 2 right UP 1000")
    wait_for(lambda: {"npu@left", "red@left"} <= set(rows(plane)), "rails of both")
    assert rows(plane)["red@left"]["bytes_out"] == 1000
