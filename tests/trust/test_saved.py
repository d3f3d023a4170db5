"""A last checkpoint is written when training cannot go on: with it, a job that is started again loses no step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.launched import Launched, wait_until
from tests.patience import PATIENCE_S
from tests.trust.conftest import last_words
from tests.verdicts import same_bits

SCRIPT = Path(__file__).with_name("saved.py")
pytestmark = pytest.mark.slow

Run = Callable[..., Launched]
_calm: dict[tuple[str, int], list[str]] = {}


@pytest.fixture
def start(tmp_path: Path, free_port: Callable[[], int]) -> Run:
    """Starts the training, in the same folder each time. A rank dies at this place of this step."""

    def launch(
        kind: str, place: str, at: int, restarts: int = 0, ranks: int = 2, nodes: int = 1, spares: int = 0
    ) -> Launched:
        words = ["--nproc-per-node", str(ranks // nodes), "--max-restarts", str(restarts)]
        words += ["--nnodes", f"{nodes}:{nodes + spares}"]
        script = [str(SCRIPT), "--folder", str(tmp_path), "--place", f"{kind}, {place}", "--at", str(at)]
        name, meet = f"saved-{os.getpid()}-{free_port()}", str(free_port())
        places = [["--node-rank", str(node), "--master-port", meet] for node in range(nodes + spares)]
        places = places if nodes > 1 else [[]]
        return Launched(tmp_path, free_port(), *words, *script, nodes=places, job=name, warm=True)

    return launch


@pytest.fixture
def run(start: Run) -> Run:
    """Runs the training to its end."""

    def whole(kind: str, place: str, at: int, code: int = 0, restarts: int = 0, ranks: int = 2) -> Launched:
        with start(kind, place, at, restarts, ranks) as job:
            job.end(code)
        return job

    return whole


def stop(job: Launched) -> tuple[int, str]:
    """Let an operator stop the job, with a last checkpoint, while a step is under way. Return what he is told."""
    job.wait_for_line("holds")
    command = [sys.executable, "-m", "taskd", "stop", "--dump", "--wait", str(PATIENCE_S)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, env=job.environment, text=True, **pipes) as asked:  # type: ignore[call-overload]
        paused = wait_until(
            lambda: asked.poll() is not None or (job.ask("status") or {}).get("pause"), "a pause, or an answer"
        )
        (job.folder / "go").touch()
        told = asked.communicate(timeout=PATIENCE_S)[0]
    assert paused, told
    return asked.returncode, told


def tell_to_end(job: Launched, *launchers: int) -> None:
    """Send SIGTERM to these launchers, while a step is under way. Let it go on when the manager knows."""
    job.wait_for_line("holds")
    for at in launchers:
        job.launchers[at].send_signal(signal.SIGTERM)
    wait_until(lambda: ended(job) or (job.ask("status") or {}).get("pause"), "a pause, or the end")
    (job.folder / "go").touch()


def ended(job: Launched) -> bool:
    return any(one.poll() is not None for one in job.launchers)


def as_undisturbed(run: Run, job: Launched, kind: str, ranks: int = 2) -> None:
    """Check that a job has ended with the weights of a job in which nobody dies."""
    if (kind, ranks) not in _calm:
        (job.folder / "last.pt").unlink()
        _calm[kind, ranks] = last_words(run(kind, "nowhere", -1, ranks=ranks))
    same_bits(last_words(job), _calm[kind, ranks], job.text)


@pytest.mark.parametrize(
    ("kind", "place", "at"), [("plain", "reduced", 8), ("first", "forward", 5), ("one", "updated", 7)]
)
def test_a_job_without_restarts_loses_no_step(run: Run, kind: str, place: str, at: int) -> None:
    """`first`: rank 0 dies. `one`: only rank 0 has the function."""
    ended = run(kind, place, at, code=1)
    saver = 1 if kind == "first" else 0
    assert len(ended.said("saves")) == 1, ended.text
    done = torch.load(ended.folder / "last.pt")["done"]
    least = at - (kind == "first")  # rank 1 may not have ended the step before, and nobody has its update then
    assert least <= done <= at + 1
    assert f"rank {saver} wrote the last checkpoint, after {done} updates" in ended.text, ended.text
    job = run(kind, "nowhere", -1)
    assert job.said("goes") == [f"on from {done}"] * 2, job.text
    as_undisturbed(run, job, kind)


@pytest.mark.parametrize(("place", "at"), [("forward", 5), ("reduced", 8), ("updated", 9)])
def test_what_the_script_counts_is_put_back(run: Run, place: str, at: int) -> None:
    """The learning rate depends on it. If no rank knows it any more, nothing is written."""
    ended = run("counts", place, at, code=1)
    unknown = "no rank that could write it knows what the last step has left in seen" in ended.text
    assert unknown != (ended.folder / "last.pt").exists(), ended.text
    assert not unknown or place != "forward", ended.text
    job = run("counts", "nowhere", -1)
    (job.folder / "last.pt").touch()
    as_undisturbed(run, job, "counts")


@pytest.mark.parametrize(("place", "at"), [("forward", 5), ("reduced", 8)])
def test_what_moves_behind_the_step_is_put_back(run: Run, place: str, at: int) -> None:
    ended = run("moves", place, at, code=1)
    assert len(ended.said("saves")) == 1 and (ended.folder / "last.pt").exists(), ended.text
    as_undisturbed(run, run("moves", "nowhere", -1), "moves")


def test_a_tensor_that_steps_hand_on_is_not_written(run: Run) -> None:
    job = run("carries", "reduced", 8, code=1)
    assert "it would hold what steps have left in carried" in job.text, job.text
    assert not (job.folder / "last.pt").exists()


def test_a_start_of_all_ranks_takes_it_up(run: Run) -> None:
    """A rank finds in its step that going on would be wrong. Its checkpoints need not have what it lacks."""
    job = run("refuses", "reduced", 9, restarts=3)
    assert "going on would be wrong" in job.text and len(job.said("saves")) == 1, job.text
    assert "started over 1 time: no step lost that is not in the last checkpoint" in job.text, job.text
    as_undisturbed(run, job, "refuses")


@pytest.mark.parametrize(("at", "restarts"), [(10, 0), (9, 3)])
def test_what_nobody_accounts_for_is_not_written(run: Run, at: int, restarts: int) -> None:
    """The function saves what steps keep somewhere, and this is not registered. The rank that would write it may have
    it from the step that is given up, or may be a newcomer that lacks it."""
    job = run("hides", "reduced", at, code=0 if restarts else 1, restarts=restarts)
    assert "it would hold what steps have left in " in job.text, job.text
    assert len(job.said("saves")) == 1 and not (job.folder / "last.pt").exists()
    if restarts:
        (job.folder / "last.pt").touch()
        as_undisturbed(run, job, "hides")


def test_a_rank_that_dies_while_it_writes_is_replaced_by_the_next_one(run: Run) -> None:
    ended = run("dies", "forward", 6, code=1, ranks=3)
    assert [line.split()[0] for line in ended.said("saves")] == ["0", "2"], ended.text
    job = run("dies", "nowhere", -1, ranks=3)
    assert len(job.said("goes")) == 3, job.text
    as_undisturbed(run, job, "dies", ranks=3)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("fails", "rank 0 could not save: OSError: no space left on device"),
        ("communicates", "rank 0 could not save: the function for the last checkpoint communicates"),
    ],
)
def test_why_it_cannot_be_written_is_said(run: Run, kind: str, words: str) -> None:
    job = run(kind, "forward", 4, code=1)
    assert f"exit; no last checkpoint: {words}" in job.text, job.text
    assert "may not be started again" in job.text and not (job.folder / "last.pt").exists(), job.text


@pytest.mark.parametrize(("kind", "place"), [("plain", "forward"), ("counts", "updated")])
def test_an_operator_stops_the_job_with_it(start: Run, run: Run, kind: str, place: str) -> None:
    with start(kind, f"holds {place}", 5) as job:
        code, told = stop(job)
        assert job.end(code=None) == [75], job.text
    done = torch.load(job.folder / "last.pt")["done"]
    assert code == 0 and f"wrote the last checkpoint, after {done} updates" in told, told
    again = run(kind, "nowhere", -1)
    assert again.said("goes") == [f"on from {done}"] * 2, again.text
    as_undisturbed(run, again, kind)


def test_a_job_whose_checkpoint_cannot_be_written_is_not_stopped(start: Run, run: Run) -> None:
    with start("fails", "holds forward", 5) as job:
        code, told = stop(job)
        job.end()
    assert code == 1 and "no space left on device" in told and "the job is not stopped" in told, told
    assert len(job.said("saves")) == 1 and not (job.folder / "last.pt").exists(), job.text
    (job.folder / "last.pt").touch()
    as_undisturbed(run, job, "fails")


def test_a_stop_with_a_checkpoint_that_nobody_can_write_is_refused(start: Run) -> None:
    with start("none", "holds forward", 5) as job:
        job.wait_for_line("holds")
        code, told = stop(job)
        job.end()
    assert code == 2 and "no rank can write a last checkpoint" in told, told


@pytest.mark.parametrize(("nodes", "told"), [(1, [0]), (2, [1]), (2, [0, 1])])
def test_sigterm_of_a_launcher_stops_the_job_with_it(start: Run, run: Run, nodes: int, told: list[int]) -> None:
    with start("plain", "holds forward", 5, nodes=nodes) as job:
        tell_to_end(job, *told)
        assert job.end(code=None) == [75] * nodes, job.text
    done = torch.load(job.folder / "last.pt")["done"]
    assert f"wrote the last checkpoint, after {done} updates" in job.text, job.text
    assert job.text.count("and waits for this first") == len(told), job.text
    again = run("plain", "nowhere", -1)
    assert again.said("goes") == [f"on from {done}"] * 2, again.text
    as_undisturbed(run, again, "plain")


@pytest.mark.parametrize("told", [1, 2])
def test_a_spare_takes_the_ranks_of_a_node_after_sigterm(start: Run, run: Run, told: int) -> None:
    """Or the spare is told to end."""
    with start("still", "holds forward", 8, restarts=1, nodes=2, spares=1) as job:
        job.wait_for_line("holds")
        wait_until(lambda: len((job.ask("status") or {"nodes": []})["nodes"]) == 3, "the spare")
        job.launchers[told].send_signal(signal.SIGTERM)
        if told == 1:
            job.wait_for_line("and waits for this first")
        else:
            wait_until(lambda: job.launchers[2].poll() is not None, "the end of the spare")
        (job.folder / "go").touch()
        assert job.end(code=None) == ([0, 0, 0] if told == 1 else [0, 0, 1]), job.text
    assert job.text.count("begin 0") == 1 and job.text.count("begin 1") == (2 if told == 1 else 1), job.text
    assert not job.said("saves"), job.text
    (job.folder / "last.pt").touch()
    as_undisturbed(run, job, "still")


def test_sigterm_ends_a_job_whose_checkpoint_cannot_be_written(start: Run) -> None:
    with start("stays", "holds forward", 5) as job:
        tell_to_end(job, 0)
        assert job.end(code=None) == [1], job.text
    assert "this launcher got SIGTERM and ends now: " in job.text and "no space left on device" in job.text, job.text
    assert "the job was ended by SIGTERM" in job.text and not (job.folder / "last.pt").exists(), job.text


def test_another_signal_ends_the_job_at_once(start: Run) -> None:
    """Its step does not end, so nothing is written. Two SIGTERMs in a row are one."""
    with start("plain", "holds forward", 5) as job:
        job.wait_for_line("holds")
        job.launchers[0].send_signal(signal.SIGTERM)
        job.launchers[0].send_signal(signal.SIGTERM)
        job.wait_for_line("another signal ends it at once")
        job.launchers[0].send_signal(signal.SIGINT)
        assert job.end(code=None) == [1], job.text
    assert "the job was ended by SIGINT" in job.text and not (job.folder / "last.pt").exists(), job.text


def test_sigterm_ends_a_job_that_has_no_checkpoint(start: Run) -> None:
    with start("none", "holds forward", 5) as job:
        tell_to_end(job, 0)
        assert job.end(code=None) == [1], job.text
    assert "no rank can write a last checkpoint" in job.text and "ended by SIGTERM" in job.text, job.text


def test_sigterm_during_an_operators_stop_waits_for_it(start: Run) -> None:
    with start("plain", "holds forward", 5) as job:
        job.wait_for_line("holds")
        command = [sys.executable, "-m", "taskd", "stop", "--dump", "--wait", str(PATIENCE_S)]
        with subprocess.Popen(command, env=job.environment) as asked:
            wait_until(lambda: (job.ask("status") or {}).get("pause"), "a pause")
            job.launchers[0].send_signal(signal.SIGTERM)
            job.wait_for_line("and waits for this first")
            (job.folder / "go").touch()
            assert asked.wait(PATIENCE_S) == 0
        assert job.end(code=None) == [75], job.text
    assert (job.folder / "last.pt").exists()


def test_sigterm_in_a_repair_waits_for_its_end(start: Run) -> None:
    with start("twice", "holds forward", 5, restarts=1) as job:
        job.wait_for_line("holds")
        job.kill(1)
        job.wait_for_line("rank 1 died (SIGKILL)")
        job.launchers[0].send_signal(signal.SIGTERM)
        job.wait_for_line("a repair is under way")
        (job.folder / "go").touch()
        job.wait_for_line("and waits for this first")
        (job.folder / "again").touch()
        assert job.end(code=None) == [75], job.text
    assert "healed in" in job.text and (job.folder / "last.pt").exists(), job.text
