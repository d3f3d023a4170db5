"""What stands before a loop and was reckoned from trained weights, or drawn, is no newcomer's to make again.

Such a newcomer refuses, with the name; one that finds what its life before has found goes on in place.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launched import Launched
from tests.verdicts import same_bits

SCRIPT = Path(__file__).with_name("found.py")
UNLIKE = "and this newcomer has found something else there than its life before"

Run = Callable[..., Launched]
_calm: dict[str, list[str]] = {}
pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path, free_port: Callable[[], int]) -> Run:
    """One training to its end; rank 1 dies at this place of this step. `kind`: what the loop uses."""

    def start(kind: str, place: str, at: int) -> Launched:
        folder = tmp_path / f"{kind}-{place}{at}"
        folder.mkdir()
        words = [str(SCRIPT), "--folder", str(folder), "--place", f"{kind}, {place}", "--at", str(at)]
        name = f"found-{os.getpid()}-{len(list(tmp_path.iterdir()))}"
        with Launched(folder, free_port(), "--nproc-per-node", "2", *words, job=name, warm=True) as job:
            job.end()
        return job

    return start


def check(run: Run, kind: str, place: str, at: int) -> Launched:
    """It ends as if nobody had died."""
    if kind not in _calm:
        _calm[kind] = sorted(run(kind, "nowhere", -1).said("weights"))
    job = run(kind, place, at)
    same_bits(sorted(job.said("weights")), _calm[kind], job.text)
    return job


@pytest.mark.parametrize(("place", "at"), [("forward", 9), ("reduced", 13), ("updated", 12), ("updated", 6)])
@pytest.mark.parametrize(
    ("kind", "name"), [("teacher", "teacher"), ("closure", "more, more.teacher"), ("noise", "noise")]
)
def test_what_comes_out_otherwise_starts_over(run: Run, kind: str, name: str, place: str, at: int) -> None:
    job = check(run, kind, place, at)
    again = (place, at) != ("updated", 6)  # between two loops it has the state, and makes all that as the others do
    assert (f"the loop uses {name}, {UNLIKE}" in job.text) == again or kind == "noise", job.text
    assert job.text.count("begin 0") == 2 or not again, job.text


@pytest.mark.parametrize(("place", "at"), [("forward", 9), ("updated", 15)])
def test_a_script_without_epochs(run: Run, place: str, at: int) -> None:
    job = check(run, "plain", place, at)
    assert f"the loop uses teacher, {UNLIKE}" in job.text and job.text.count("begin 0") == 2, job.text


@pytest.mark.parametrize(("place", "at"), [("forward", 9), ("updated", 12), ("reduced", 3)])
@pytest.mark.parametrize("kind", ["order", "frozen", "given", "drawn", "ahead"])
def test_what_comes_out_alike_heals(run: Run, kind: str, place: str, at: int) -> None:
    job = check(run, kind, place, at)
    assert UNLIKE not in job.text and job.text.count("begin 0") == 1, job.text


@pytest.mark.parametrize(("place", "at"), [("forward", 1), ("updated", 9)])
def test_a_loop_that_takes_from_an_iterator_starts_over(run: Run, place: str, at: int) -> None:
    job = check(run, "second", place, at)
    assert "the loop takes what comes next from second by itself" in job.text, job.text
    assert job.text.count("begin 0") == 2, job.text


@pytest.mark.parametrize(("place", "at"), [("forward", 4), ("updated", 9)])
@pytest.mark.parametrize(("kind", "name"), [("loose", "velocity"), ("slow", "optimizer.slow")])
def test_what_writes_into_parameters_is_named(run: Run, kind: str, name: str, place: str, at: int) -> None:
    job = check(run, kind, place, at)
    assert f"the loop hands {name}" in job.text and job.text.count("begin 0") == 2, job.text
