"""A rank that is killed after its work was done does not fail the job. A rank that still had work to do is named.

docs/architecture/endings.md has the table of cases. Each case is a small training of two ranks, and the cases differ in
the last lines of the script. The final weights are compared with those of the undisturbed run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launched import Launched
from tests.verdicts import same_bits

SCRIPT = Path(__file__).with_name("done.py")
WHOLE = ["begin", "end"]
"""The lines of rank 0's file."""

Run = Callable[..., Launched]
_calm: list[str] = []
pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path, free_port: Callable[[], int]) -> Run:
    """Runs the training to its end. A rank dies at this place, and the job ends with this exit code."""

    def start(place: str, code: int = 0, nodes: int = 1) -> Launched:
        folder = tmp_path / (place or "calm")
        folder.mkdir()
        words = ["--nproc-per-node", str(2 // nodes)]
        if nodes > 1:
            words += ["--nnodes", str(nodes), "--rdzv-backend", "c10d", "--rdzv-id", "done"]
            words += ["--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
        script = [str(SCRIPT), "--folder", str(folder), "--place", place, "--at", "-1"]
        name = f"done-{os.getpid()}-{len(list(tmp_path.iterdir()))}"
        own = [()] * nodes
        with Launched(folder, free_port(), *words, *script, nodes=own, job=name, warm=True) as job:
            job.end(code)
        return job

    return start


def calm(run: Run) -> list[str]:
    """Return what every rank ends with when no rank dies."""
    if not _calm:
        job = run("")
        assert "Exception ignored" not in job.text, job.text
        _calm.extend(sorted(job.said("weights")))
        assert len(_calm) == 2
    return _calm


def final(job: Launched) -> list[str]:
    """Return the lines of the file that rank 0 has written."""
    return (job.folder / "final").read_text().splitlines()


@pytest.mark.parametrize("place", ["inside", "after", "exit"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_rank_whose_work_was_done_fails_no_job(run: Run, place: str, nodes: int) -> None:
    job = run(place, nodes=nodes)
    same_bits(sorted(job.said("weights")), calm(run), job.text)
    assert job.said("dies") == ["1"] and job.text.count("begin") == 2, job.text
    assert final(job) == WHOLE
    said = [line for line in job.lines if "when its work was done: that is no failure" in line]
    assert len(said) == 1 and "rank 1 died (SIGKILL)" in said[0], job.text


@pytest.mark.parametrize("place", ["gone", "writes after"])
def test_a_rank_that_has_a_file_to_write_is_not_done(run: Run, place: str) -> None:
    """Rank 0 always has one, even after its group is gone. Another rank has one once it has opened a file."""
    job = run(place, 1)
    who = "0" if place == "gone" else "1"
    assert job.said("dies") == [who], job.text
    (said,) = [line for line in job.lines if line.startswith("taskd[launcher]: the job ends: ")]
    assert said.removeprefix("taskd[launcher]: the job ends: ").startswith(f"rank {who} died (SIGKILL)"), job.text
    assert "that is no failure" not in job.text


def test_rank_0_dies_while_it_writes_the_final_file(run: Run) -> None:
    """No other rank can write it, and the other rank waits at a barrier. So all start over, and the file is whole."""
    job = run("saves, barrier")
    same_bits(sorted(set(job.said("weights"))), calm(run), job.text)
    assert job.said("dies") == ["0"] and final(job) == WHOLE
    assert job.text.count("begin 0") >= 2 and "that is no failure" not in job.text, job.text


def test_others_that_have_left_cannot_bring_back_one_that_had_work_to_do(run: Run) -> None:
    """It died in its last lines, before its group was destroyed. Nobody knows what these lines would have done."""
    job = run("before", 1)
    (said,) = [line for line in job.lines if line.startswith("taskd[launcher]: the job ends: ")]
    assert said.removeprefix("taskd[launcher]: the job ends: ").startswith("rank 1 died (SIGKILL)"), job.text
    assert final(job) == WHOLE and "that is no failure" not in job.text
