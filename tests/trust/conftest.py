"""Fixtures that run the trainings of this folder: once undisturbed, and once with a death."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launched import Launched
from tests.verdicts import same_bits

Check = Callable[[str, str, int], Launched]
Train = Callable[..., Launched]
_calm: dict[tuple[Path, str], list[str]] = {}


@pytest.fixture
def train(request: pytest.FixtureRequest, tmp_path: Path, free_port: Callable[[], int]) -> Train:
    """Return a function that runs the script of this test file to its end, on two ranks or on the file's RANKS. Rank 1
    has a fault at this place of this step. `kind` says which training of the script it is. `code` is the exit code that
    the job must have. Further keywords are set in its environment. If ranks may be found unlike, UNLIKE says so."""
    script, ranks = script_of(request), str(getattr(request.module, "RANKS", 2))

    def start(kind: str, place: str, at: int, code: int = 0, **env: str) -> Launched:
        folder = tmp_path / f"{kind}-{place}{at}"
        folder.mkdir()
        words = [str(script), "--folder", str(folder), "--place", f"{kind}, {place}", "--at", str(at)]
        name = f"{script.stem}-{os.getpid()}-{len(list(tmp_path.iterdir()))}"
        with Launched(folder, free_port(), "--nproc-per-node", ranks, *words, env=env, job=name, warm=True) as job:
            job.unlike = getattr(request.module, "UNLIKE", False)
            job.end(code)
        return job

    return start


@pytest.fixture
def check(request: pytest.FixtureRequest, train: Train) -> Check:
    """Return a function like `train` that also compares the weights with those of the undisturbed run."""
    script = script_of(request)

    def compared(kind: str, place: str, at: int) -> Launched:
        if (script, kind) not in _calm:
            _calm[script, kind] = last_words(train(kind, "nowhere", -1))
        job = train(kind, place, at)
        same_bits(last_words(job), _calm[script, kind], job.text)
        return job

    return compared


def script_of(request: pytest.FixtureRequest) -> Path:
    """Return the script, which lies beside the test."""
    return request.path.with_name(f"{request.path.stem.removeprefix('test_')}.py")


def last_words(job: Launched) -> list[str]:
    """Return the last weights of each rank. A rank that refuses in its script's last line has printed others before."""
    return sorted({line.split()[0]: line for line in job.said("weights")}.values())
