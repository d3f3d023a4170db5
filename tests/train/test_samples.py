"""Runs the samples as they are, once undisturbed and once with killed ranks: both end with the same weights."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launched import Launched, wait_until
from tests.source import ROOT

Run = Callable[..., Launched]


@pytest.fixture
def run(tmp_path: Path, free_port: Callable[[], int]) -> Run:
    """Return a function that runs a sample to its end. After this line these ranks are killed, each once the last one
    is replaced. The sample needs so many steps that it cannot end before that."""

    def start(sample: str, ranks: int, words: str, line: str = "", kills: tuple[int, ...] = ()) -> Launched:
        folder = tmp_path / ("killed" if kills else "calm")
        folder.mkdir()
        command = ["--nproc-per-node", str(ranks), str(ROOT / "samples" / f"{sample}.py")]
        command += words.format(folder=folder).split()
        with Launched(folder, free_port(), *command, job=folder.name, warm=True) as job:
            pids = wait_until(lambda: len(found := job.pids()) == ranks and found, "all ranks alive")
            if kills:
                job.wait_for_line(line)
            for count, rank in enumerate(kills, 1):
                os.kill(pids[rank], signal.SIGKILL)
                told = f"{count} ranks replaced"
                wait_until(
                    lambda n=count: job.text.count("healed in") == n or job.launchers[0].poll() is not None, told
                )
                assert job.text.count("healed in") == count, job.text
            job.end()
        return job

    return start


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sample", "ranks", "words", "line", "kills"),
    [
        ("train_hsdp", 4, "--steps 50", "step 20", (3,)),
        ("train_function", 2, "--steps 200", "step 20", (1, 0)),
        ("train_epochs", 2, "--steps 90 --checkpoint {folder}/last.pt", "epoch 0: ", (1, 0)),
    ],
)
def test_a_sample_heals(run: Run, sample: str, ranks: int, words: str, line: str, kills: tuple[int, ...]) -> None:
    calm, killed = run(sample, ranks, words), run(sample, ranks, words, line, kills)
    assert len(calm.said("weights")) == 1 and killed.said("weights") == calm.said("weights"), killed.text
