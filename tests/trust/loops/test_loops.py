"""Loops and what stands between them: whoever dies wherever, weights and samples are those of the undisturbed run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launched import Launched
from tests.trust.loops.stage import EPOCHS, PER_EPOCH
from tests.verdicts import same_bits

HERE = Path(__file__).parent
RANKS = 2

Run = Callable[..., Launched]
_calm: dict[tuple[str, str], Launched] = {}
pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path, free_port: Callable[[], int]) -> Run:
    """One training of this folder to its end; one rank dies at this place."""

    def start(case: str, kind: str = "", place: str = "", at: int = -1, who: int = 1, code: int | None = 0) -> Launched:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        words = ("--folder", str(folder), "--kind", kind, "--place", place, "--at", str(at), "--who", str(who))
        script = (str(HERE / f"{case}.py"), *words)
        name = f"loops-{os.getpid()}-{folder.name}"
        with Launched(folder, free_port(), "--nproc-per-node", str(RANKS), *script, job=name, warm=True) as job:
            job.end(code)
        return job

    return start


def calm(run: Run, case: str, kind: str) -> Launched:
    """The run in which nobody dies."""
    if (case, kind) not in _calm:
        _calm[case, kind] = run(case, kind)
    return _calm[case, kind]


def check_same(job: Launched, wanted: Launched) -> None:
    """Weights and samples; what a step that was given up has seen, it sees again."""
    same_bits(sorted(job.said("weights")), sorted(wanted.said("weights")), job.text)
    same_bits(sorted({*job.said("saw")}), sorted(wanted.said("saw")), job.text)


def check_healed(job: Launched, wanted: Launched) -> None:
    """One rank was replaced, nobody started over, and nothing else is different."""
    check_same(job, wanted)
    assert "respawn" not in job.text, job.text
    assert len(job.said("begin")) == RANKS + 1, job.text


@pytest.mark.parametrize("kind", ["distributed", "steps"])
def test_the_scripts_own_epochs_stand(run: Run, kind: str) -> None:
    plain = calm(run, "own_epochs", f"plain {kind}")
    check_same(calm(run, "own_epochs", kind), plain)
    order = {line.split(" ", 2)[2] for line in plain.said("saw")}
    assert len(order) == RANKS * EPOCHS * PER_EPOCH, "the epochs have one order, and the test could not fail"


@pytest.mark.parametrize(
    ("place", "at"),
    [
        ("backward", 1),
        ("forward", PER_EPOCH),
        ("reduced", PER_EPOCH),
        ("backward", 2 * PER_EPOCH - 1),
        ("reduced", 2 * PER_EPOCH - 1),
        ("updated", 2 * PER_EPOCH - 1),
        ("backward", 2 * PER_EPOCH + 2),
    ],
)
@pytest.mark.parametrize("kind", ["distributed", "steps"])
def test_the_scripts_own_epochs_stand_after_a_death(run: Run, kind: str, place: str, at: int) -> None:
    check_healed(run("own_epochs", kind, place, at), calm(run, "own_epochs", f"plain {kind}"))
