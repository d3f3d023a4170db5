"""An operator lets a rank be replaced, or a node be drained, in a real job. The weights are those of a calm run.

Rank 0 is held in an early step until the manager has the operator's wish, so there are steps left for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taskd.core.words import STOPPED_CODE
from tests.launched import Launched, wait_until
from tests.patience import PATIENCE_S
from tests.verdicts import same_bits

SCRIPT = Path(__file__).parent / "workers" / "heal_ddp.py"
STEPS = 12
RANKS = 4
HELD = ("--hold", "0:4", "--hold-again", "0:9")
_calm: dict[int, list[str]] = {}

Start = Callable[..., Any]
Calm = Callable[[int], list[str]]


@pytest.fixture
def start(tmp_path: Path, free_port: Callable[[], int]) -> Start:
    """Run the training on this number of nodes, with spares."""

    @contextlib.contextmanager
    def run(*more: str, nodes: int = 1, spares: int = 0) -> Iterator[Launched]:
        folder = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        words = [
            "--nproc-per-node",
            str(RANKS // nodes),
            "--nnodes",
            f"{nodes}:{nodes + spares}",
            "--max-restarts",
            "1",
        ]
        words += [str(SCRIPT), "--folder", str(folder), "--steps", str(STEPS), *more]
        meet = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
        places = [["--node-rank", str(node), *meet] for node in range(nodes + spares)]
        with Launched(folder, free_port(), *words, nodes=places, job=folder.name, warm=True) as launched:
            launched.stands = True  # rank 0 does, until the test lets it go on
            yield launched

    return run


@pytest.fixture
def calm(start: Start) -> Calm:
    """Return a function that gives all ranks' weights if nobody asks for anything, on this number of nodes."""

    def find(nodes: int) -> list[str]:
        if nodes not in _calm:
            with start(nodes=nodes) as launched:
                launched.end()
                _calm[nodes] = sorted(launched.said("weights"))
        return _calm[nodes]

    return find


class Asked:
    """A command of an operator that runs beside the test."""

    def __init__(self, launched: Launched, *words: str) -> None:
        self.launched = launched
        command = [sys.executable, "-m", "taskd", *words, "--json", "--wait", str(PATIENCE_S)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=launched.environment, text=True, **pipes)  # type: ignore[call-overload]

    def answer(self) -> dict[str, Any]:
        """Return the answer of a wish that was followed."""
        try:
            printed, errors = self.process.communicate(timeout=PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()
        assert self.process.returncode == 0, f"{printed}{errors}\n{self.launched.text}"
        found: dict[str, Any] = json.loads(printed)
        return found


def refusal(launched: Launched, *words: str) -> str:
    """Return why a command is refused. Empty: it is not."""
    done = subprocess.run(
        [sys.executable, "-m", "taskd", *words], env=launched.environment, capture_output=True, text=True
    )
    return done.stderr if done.returncode == 2 else ""


def wait_for_cover(launched: Launched) -> None:
    """Wait until the manager knows that a death is healed. Until then a wish is refused for that, whatever it is."""
    launched.wait_for_line("holds 0")

    def known() -> bool:
        facts = launched.ask("status") or {"ranks": []}
        covers = [row["cover"] for row in facts["ranks"]]
        return covers == ["healed"] * RANKS

    wait_until(known, "ranks that say that a death is healed")


def under_way(launched: Launched) -> None:
    wait_until(lambda: (launched.ask("status") or {}).get("pause"), "a pause that the manager knows of")


def go_on(launched: Launched) -> None:
    """Let the job come to its end."""
    (launched.folder / "go").touch()
    (launched.folder / "go-again").touch()
    launched.end()


def stop(launched: Launched) -> None:
    """Let an operator stop the job while rank 0 is held in its step. All launchers end with the code for that."""
    launched.wait_for_line("holds 0")
    wait_until(lambda: len(launched.pids()) == RANKS, "all ranks")
    asked = Asked(launched, "stop")
    under_way(launched)
    (launched.folder / "go").touch()
    assert asked.answer()["done"]
    assert launched.end(code=None) == [STOPPED_CODE] * len(launched.launchers), launched.text


def operators_incident(launched: Launched) -> dict[str, Any]:
    (incident,) = launched.ask("incidents")["incidents"]
    assert incident["kind"] == "operator" and incident["outcome"] == "healed", incident
    assert "asked for it" in incident["reason"], incident
    found: dict[str, Any] = incident
    return found


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_is_replaced_between_two_steps(start: Start, calm: Calm, rank: int) -> None:
    wanted = calm(1)
    with start(*HELD) as launched:
        wait_for_cover(launched)
        before = launched.pids()
        asked = Asked(launched, "restart-rank", str(rank), "--request", "mine")
        under_way(launched)
        assert "has asked to restart" in refusal(launched, "restart-rank", "1"), "one operator at a time"
        (launched.folder / "go").touch()
        (row,) = asked.answer()["ranks"]
        assert row["replaced"] and (row["rank"], row["incarnation_now"]) == (rank, 2), row
        again = launched.ask("restart-rank", str(rank), "--request", "mine")
        assert again["done"] and again["ranks"] == [row], "a repeated request is not followed twice"
        after = launched.pids()
        assert all((after[one] == before[one]) is (one != rank) for one in range(RANKS)), (before, after)
        assert operators_incident(launched)["strategy"] == "recover-in-place"
        go_on(launched)
        same_bits(sorted(launched.said("weights")), wanted, launched.text)


def test_it_uses_up_no_restart(start: Start, calm: Calm) -> None:
    """One restart is allowed, and the rank that was replaced for an operator still has it when it dies."""
    wanted = calm(1)
    with start(*HELD, "--kills", "2:9:backward") as launched:
        wait_for_cover(launched)
        asked = Asked(launched, "restart-rank", "2")
        under_way(launched)
        (launched.folder / "go").touch()
        asked.answer()
        go_on(launched)
        same_bits(sorted(launched.said("weights")), wanted, launched.text)
        assert "respawn" not in launched.text, launched.text


def test_the_manager_is_started_again_half_way(start: Start, calm: Calm) -> None:
    wanted = calm(1)
    with start(*HELD) as launched:
        wait_for_cover(launched)
        asked = Asked(launched, "restart-rank", "1")
        under_way(launched)
        os.kill(launched.ask("status")["manager"]["pid"], signal.SIGKILL)
        wait_until(lambda: launched.text.count("ready: manager of job") == 2, "another manager")
        (launched.folder / "go").touch()
        assert [row["incarnation_now"] for row in asked.answer()["ranks"]] == [2]
        go_on(launched)
        same_bits(sorted(launched.said("weights")), wanted, launched.text)


def test_a_script_without_a_session_is_left_alone(start: Start) -> None:
    with start("--plain", *HELD) as launched:
        launched.wait_for_line("holds 0")
        wait_until(lambda: len(launched.pids()) == RANKS, "all ranks")
        why = wait_until(lambda: refusal(launched, "restart-rank", "2"), "a refusal")
        assert "start" in why and ("over" in why or "all" in why), why
        go_on(launched)
        assert not launched.text.count("incarnation 2"), launched.text


def test_a_node_is_drained(start: Start, calm: Calm) -> None:
    wanted = calm(2)
    with start(*HELD, nodes=2, spares=1) as launched:
        launched.wait_for_line("node spare-1 is here")
        wait_for_cover(launched)
        assert "began the job" in refusal(launched, "drain-node", "node-0")
        assert "no rank is on node spare-1" in refusal(launched, "drain-node", "spare-1")
        assert "there is no node x: known are node-0, node-1" in refusal(launched, "drain-node", "x")
        asked = Asked(launched, "drain-node", "node-1")
        under_way(launched)
        (launched.folder / "go").touch()
        found = asked.answer()
        assert [row["node_now"] for row in found["ranks"]] == ["spare-1"] * 2, found
        assert launched.launchers[1].wait(PATIENCE_S) == 0, launched.text
        assert "node node-1 is drained" in launched.text, launched.text
        assert operators_incident(launched)["strategy"] == "recover"
        assert "no node waits as a spare" in refusal(launched, "drain-node", "spare-1")
        go_on(launched)
        same_bits(sorted(launched.said("weights")), wanted, launched.text)


def test_a_job_is_stopped(start: Start) -> None:
    """All ranks have done the same steps, the launchers and the spare's end with the same code, nothing has failed."""
    with start("--hold", "0:4", nodes=2, spares=1) as launched:
        launched.wait_for_line("node spare-1 is here")
        stop(launched)
        assert launched.text.count("an operator has stopped the job: ") >= 3, launched.text
        assert "ChildFailedError" not in launched.text and "Traceback" not in launched.text, launched.text
        done = {file.name for file in (launched.folder / "ids").glob("*-4")}
        assert len(done) == RANKS and not list((launched.folder / "ids").glob("*-5")), launched.text


def test_a_script_without_a_session_is_stopped(start: Start) -> None:
    with start("--plain", "--hold", "0:4") as launched:
        stop(launched)
