"""Runs the samples as they are, once undisturbed and once with killed ranks: both end with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launched import Launched
from tests.source import ROOT

Run = Callable[..., Launched]


@pytest.fixture
def run(tmp_path: Path, free_port: Callable[[], int]) -> Run:
    """Return a function that runs a sample to its end. After these of its lines, these ranks are killed."""

    def start(sample: str, ranks: int, *words: str, **kills: int) -> Launched:
        folder = tmp_path / ("killed" if kills else "calm")
        folder.mkdir()
        command = ["--nproc-per-node", str(ranks), str(ROOT / "samples" / f"{sample}.py"), *words]
        with Launched(folder, free_port(), *command, job=folder.name, warm=True) as job:
            for place, rank in kills.items():
                job.wait_for_line(place.replace("_", " "))
                job.kill(rank)
            job.end()
        return job

    return start


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sample", "ranks", "words", "kills"),
    [
        ("train_hsdp", 4, ("--steps", "60"), {"step_20": 3}),
        ("train_function", 2, ("--steps", "40"), {"step_20": 1, "step_50": 0}),
    ],
)
def test_a_sample_heals(run: Run, sample: str, ranks: int, words: tuple[str, ...], kills: dict[str, int]) -> None:
    calm, killed = run(sample, ranks, *words), run(sample, ranks, *words, **kills)
    assert len(calm.said("weights")) == 1 and killed.said("weights") == calm.said("weights"), killed.text
    assert killed.text.count("healed in") == len(kills), killed.text
