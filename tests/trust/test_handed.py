"""Tensors that a loop hands on by itself: such a job says so in its first steps, and a death starts it over.

What nobody uses but to sum it up is no reason; what is registered is put back.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launched import Launched
from tests.verdicts import same_bits

SCRIPT = Path(__file__).with_name("handed.py")
HANDS_ON = "on from step to step, and nobody registered that"

Run = Callable[..., Launched]
_calm: dict[str, list[str]] = {}
pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path, free_port: Callable[[], int]) -> Run:
    """One training to its end; rank 1 dies at this place of this step. `kind`: what is handed on."""

    def start(kind: str, place: str, at: int) -> Launched:
        folder = tmp_path / f"{kind}-{place}{at}"
        folder.mkdir()
        words = [str(SCRIPT), "--folder", str(folder), "--place", f"{kind}, {place}", "--at", str(at)]
        name = f"handed-{os.getpid()}-{len(list(tmp_path.iterdir()))}"
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


@pytest.mark.parametrize(("place", "at"), [("forward", 3), ("reduced", 3), ("updated", 1), ("backward", 0)])
@pytest.mark.parametrize(("kind", "name"), [("hidden", "hidden"), ("dict", "averages[name]")])
def test_what_is_handed_on_starts_over(run: Run, kind: str, name: str, place: str, at: int) -> None:
    job = check(run, kind, place, at)
    assert f"the loop hands {name} {HANDS_ON}" in job.text, job.text
    assert job.text.count("begin 0") == 2, job.text


@pytest.mark.parametrize(("place", "at"), [("forward", 4), ("updated", 2), ("updated", 1)])
def test_what_is_copied_once_starts_over(run: Run, place: str, at: int) -> None:
    job = check(run, "target", place, at)
    assert f"the loop hands target {HANDS_ON}" in job.text, job.text
    assert job.text.count("begin 0") == 2, job.text


@pytest.mark.parametrize(("place", "at"), [("forward", 1), ("forward", 4), ("updated", 0)])
@pytest.mark.parametrize("kind", ["centre", "losses"])
def test_what_a_newcomer_rehearses_is_right(run: Run, kind: str, place: str, at: int) -> None:
    check(run, kind, place, at)


@pytest.mark.parametrize(("place", "at"), [("forward", 4), ("updated", 2)])
@pytest.mark.parametrize(("kind", "name"), [("late", "centre"), ("losses", "losses")])
def test_what_a_newcomer_has_otherwise_starts_over(run: Run, kind: str, name: str, place: str, at: int) -> None:
    job = check(run, kind, place, at)
    assert f"the loop leaves {name} to its next steps, and the step that is done again finds" in job.text, job.text
    assert job.text.count("begin 0") >= 2, job.text  # the rank that refuses may be the survivor


@pytest.mark.parametrize(("place", "at"), [("forward", 3), ("updated", 3)])
@pytest.mark.parametrize("kind", ["sum", "kept"])
def test_what_is_registered_or_only_summed_up_is_no_reason(run: Run, kind: str, place: str, at: int) -> None:
    job = check(run, kind, place, at)
    assert HANDS_ON not in job.text and job.text.count("begin 0") == 1, job.text
    assert "the script counts total in its loop in a way that no repair puts back" in job.text, job.text
