"""Numbers that stand before a loop, reckoned from trained weights: a newcomer takes them, or refuses by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launched import Launched
from tests.verdicts import same_bits

SCRIPT = Path(__file__).with_name("reckoned.py")
OTHERWISE = "and this newcomer has reckoned something else there than all others"
UNLIKE = "and this newcomer has found something else there than its life before"

Run = Callable[..., Launched]
_calm: dict[str, list[str]] = {}
pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path, free_port: Callable[[], int]) -> Run:
    """One training to its end; rank 1 dies at this place of this step. `kind`: what is reckoned."""

    def start(kind: str, place: str, at: int) -> Launched:
        folder = tmp_path / f"{kind}-{place}{at}"
        folder.mkdir()
        words = [str(SCRIPT), "--folder", str(folder), "--place", f"{kind}, {place}", "--at", str(at)]
        name = f"reckoned-{os.getpid()}-{len(list(tmp_path.iterdir()))}"
        with Launched(folder, free_port(), "--nproc-per-node", "2", *words, job=name, warm=True) as job:
            job.end()
        return job

    return start


def check(run: Run, kind: str, place: str, at: int) -> Launched:
    """It ends as if nobody had died."""
    if kind not in _calm:
        _calm[kind] = last_words(run(kind, "nowhere", -1))
    job = run(kind, place, at)
    same_bits(last_words(job), _calm[kind], job.text)
    return job


def last_words(job: Launched) -> list[str]:
    """Of each rank: one that has refused in its script's last line has said something before."""
    return sorted({line.split()[0]: line for line in job.said("weights")}.values())


@pytest.mark.parametrize(
    "kind",
    [
        "weight",
        "mean",
        "passed",
        "trainer",
        "state",
        "history",
        "best",
        "rate",
        "clock",
        "own",
        "judges",
        "property",
        "closure",
        "long",
        "window",
        "table",
        "score",
    ],
)
@pytest.mark.parametrize(
    ("place", "at"), [("forward", 9), ("forward", 7), ("evaluated", 2), ("updated", 13), ("reduced", 16)]
)
def test_a_newcomer_takes_them(run: Run, kind: str, place: str, at: int) -> None:
    job = check(run, kind, place, at)
    assert UNLIKE not in job.text and OTHERWISE not in job.text and job.text.count("begin 0") == 1, job.text


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("behind", f"weight, {UNLIKE}"),
        ("criterion", f"criterion, {OTHERWISE}"),
        ("keeps", f"kept, {UNLIKE}"),
        ("named", f"named, {UNLIKE}"),
        ("delegate", f"state.inner.weight, {UNLIKE}"),
        ("plateau", f"a ReduceLROnPlateau, {UNLIKE}"),
        ("chosen", f"the loader's dataset.indices, {UNLIKE}"),
    ],
    ids=["behind", "criterion", "keeps", "named", "delegate", "plateau", "chosen"],
)
@pytest.mark.parametrize(("place", "at"), [("forward", 9), ("updated", 12)])
def test_what_it_cannot_take_starts_over(run: Run, kind: str, name: str, place: str, at: int) -> None:
    job = check(run, kind, place, at)
    assert f"the loop uses {name}" in job.text and job.text.count("begin 0") == 2, job.text


@pytest.mark.parametrize(("place", "at"), [("forward", 9), ("updated", 13)])
def test_a_newcomer_that_reads_a_newer_checkpoint_refuses(run: Run, place: str, at: int) -> None:
    job = check(run, "resumed", place, at)
    assert f"the loop uses epoch, {OTHERWISE}" in job.text and job.text.count("begin 0") == 2, job.text


@pytest.mark.parametrize(
    ("kind", "place", "at"),
    [("stops", "forward", 9), ("stops", "updated", 13), ("stops", "updated", 20), ("resumed", "updated", 20)],
)
def test_a_newcomer_that_leaves_its_epochs_on_its_way_refuses(run: Run, kind: str, place: str, at: int) -> None:
    job = check(run, kind, place, at)
    assert "has come to the end of its script and not to the loop" in job.text, job.text
    assert job.text.count("begin 0") == 2, job.text
