"""An operator pauses a real job: all ranks stand before the same step, and the weights are those of a calm run.

Rank 0 is held in an early step until the manager has the operator's wish, so the named step is never behind.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import taskd
from tests.launched import Launched, wait_until
from tests.patience import PATIENCE_S
from tests.verdicts import same_bits

SCRIPT = Path(__file__).parent / "workers" / "heal_ddp.py"
STEPS = 12
RANKS = 4
STEP = 6
_calm: dict[tuple[str, ...], list[str]] = {}

Start = Callable[..., Any]


@pytest.fixture
def start(tmp_path: Path, free_port: Callable[[], int]) -> Start:
    @contextmanager
    def run(*more: str) -> Iterator[Launched]:
        folder = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        words = ["--nproc-per-node", str(RANKS), str(SCRIPT), "--folder", str(folder), "--steps", str(STEPS), *more]
        with Launched(folder, free_port(), *words, job=folder.name, warm=True) as launched:
            yield launched

    return run


@pytest.fixture
def calm(start: Start) -> Callable[..., list[str]]:
    """Return a function that gives all ranks' weights without a pause."""

    def find(*more: str) -> list[str]:
        if more not in _calm:
            with start(*more) as launched:
                launched.end()
                _calm[more] = sorted(launched.said("weights"))
        return _calm[more]

    return find


def paused(launched: Launched, *words: str) -> dict[str, Any]:
    """Pause the job while rank 0 is held in step 2, let that rank go on, and return what the command has printed."""
    launched.wait_for_line("holds 0")
    command = [sys.executable, "-m", "taskd", "pause", "--json", "--at-step", str(STEP), "--wait", str(PATIENCE_S)]
    asking = subprocess.Popen([*command, *words], env=launched.environment, stdout=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: (launched.ask("status") or {}).get("pause"), "a pause that the manager knows of")
        (launched.folder / "go").touch()
        printed, _ = asking.communicate(timeout=PATIENCE_S)
    finally:
        asking.kill()
        asking.wait()
    assert asking.returncode == 0, f"{printed}\n{launched.text}"
    found: dict[str, Any] = json.loads(printed)
    assert [row["next_step"] for row in found["ranks"]] == [STEP] * RANKS, found
    assert all(row["stands"] for row in found["ranks"]), found
    return found


def begun(launched: Launched, step: int) -> list[str]:
    """Return the ranks that have begun this step."""
    return sorted(file.name for file in (launched.folder / "ids").glob(f"*-{step}"))


def test_a_rank_dies_while_all_stand(start: Start, calm: Callable[..., list[str]]) -> None:
    wanted = calm()
    with start("--hold", "0:2") as launched:
        paused(launched)
        assert len(begun(launched, STEP - 1)) == RANKS and not begun(launched, STEP)
        launched.kill(2)

        def stands_again() -> bool:
            facts = launched.ask("status") or {"ranks": [], "pause": None}
            newcomer = any(row["rank"] == 2 and row["incarnation"] == 2 for row in facts["ranks"])
            return newcomer and facts["pause"] is not None and facts["pause"]["state"] == "paused"

        wait_until(stands_again, "a newcomer that stands with the others")
        assert not begun(launched, STEP), "a rank has trained on"
        resumed = launched.ask("resume")
        assert resumed is not None and resumed["done"]
        launched.end()
        same_bits(sorted(launched.said("weights")), wanted, launched.text)
        assert "respawn" not in launched.text, launched.text


def test_without_a_session_and_without_an_operator(start: Start, calm: Callable[..., list[str]]) -> None:
    """A script without a session stands before its optimizer step, and goes on when the lease ends."""
    wanted = calm("--plain")
    with start("--plain", "--hold", "0:2") as launched:
        paused(launched, "--timeout", "1")
        launched.end()
        same_bits(sorted(launched.said("weights")), wanted, launched.text)
        assert "nobody has renewed it in time" in launched.text


def test_the_client_renews_and_resumes(start: Start, calm: Callable[..., list[str]]) -> None:
    wanted = calm()
    with start("--hold", "0:2") as launched:
        paused(launched)
        port = int(launched.environment["TASKD_MANAGER_PORT"])
        with taskd.Client(launched.job, port=port) as client:
            again = client.pause(seconds=1000)
            assert again.done and again.step == STEP and again.left_seconds is not None
            assert 900 < again.left_seconds <= 1000
            assert [one.next_step for one in again.ranks if one.stands] == [STEP] * RANKS
            with pytest.raises(taskd.UsageError, match="resume it first"):
                client.pause(at_step=STEP + 1)
            assert client.status()["pause"]["place"] == f"before step {STEP}"
            assert client.resume().words == "all ranks go on"
            assert client.resume().words == "nothing is paused"
        launched.end()
        same_bits(sorted(launched.said("weights")), wanted, launched.text)
