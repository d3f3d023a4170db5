"""A script as people write them. After a death anywhere, its weights and sums are those of the undisturbed run.

A rank dies in the middle of an epoch, in its last step or in its first one. So a newcomer's record may be of the epoch
before.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launched import Launched
from tests.verdicts import same_bits

SCRIPT = Path(__file__).with_name("everyday.py")
RANKS = 2

Run = Callable[[str, int], Launched]
_calm: dict[str, list[str]] = {}
pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path, free_port: Callable[[], int]) -> Run:
    """Runs one training to its end. Rank 1 dies at this place of this step."""

    def start(place: str, at: int) -> Launched:
        folder = tmp_path / f"{place}{at}"
        folder.mkdir()
        words = [str(SCRIPT), "--folder", str(folder), "--place", place, "--at", str(at)]
        name = f"everyday-{os.getpid()}-{place}{at}"
        with Launched(folder, free_port(), "--nproc-per-node", str(RANKS), *words, job=name, warm=True) as job:
            job.end()
        return job

    return start


def calm(run: Run) -> dict[str, list[str]]:
    """Return what every rank ends with when no rank dies."""
    if not _calm:
        job = run("nowhere", -1)
        _calm.update({word: sorted(job.said(word)) for word in ("weights", "sums")})
        assert len(_calm["weights"]) == len(_calm["sums"]) == RANKS
    return _calm


@pytest.mark.parametrize("at", [3, 6, 7, 9])  # an epoch has seven steps
@pytest.mark.parametrize("place", ["begun", "reduced", "counted", "updated"])
def test_a_death_changes_nothing_that_a_script_counts(run: Run, place: str, at: int) -> None:
    job = run(place, at)
    same_bits(sorted(job.said("weights")), calm(run)["weights"], job.text)
    assert "respawn" not in job.text and job.text.count("begin 1") == 2, job.text
    assert "in a way that no repair puts back" not in job.text, job.text
    assert f"received {signal.SIGUSR1.value}" in job.text, job.text
    assert sorted(job.said("sums")) == calm(run)["sums"], "the sums of the last epoch are whole: " + job.text
