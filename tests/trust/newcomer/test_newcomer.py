"""State that a newcomer lacks. It ends with the weights of the undisturbed run, or all start over and say why.

Each case is a small training of this folder, which carries something besides its model from step to step. Rank 1 dies
before its gradients are out ("backward": the step is done again) or after that ("reduced": the others have done it).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launched import Launched
from tests.verdicts import same_bits

HERE = Path(__file__).parent
RANKS = 2
NEVER = "-1"

Run = Callable[..., Launched]
_calm: dict[tuple[str, str], list[str]] = {}
pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path, free_port: Callable[[], int]) -> Run:
    """Runs one training of this folder to its end. Rank 1 dies at this place of this step."""

    def start(case: str, place: str, at: str) -> Launched:
        folder = tmp_path / f"{case}-{place}{at}".replace(" ", "-")
        folder.mkdir()
        script = [str(HERE / f"{case}.py"), "--folder", str(folder), "--place", place, "--at", at]
        name = f"newcomer-{os.getpid()}-{len(list(tmp_path.iterdir()))}"
        with Launched(folder, free_port(), "--nproc-per-node", str(RANKS), *script, job=name, warm=True) as job:
            job.end()
        return job

    return start


def calm(run: Run, case: str, kind: str = "") -> list[str]:
    """Return what every rank ends with when no rank dies. `kind`: for trainings of several kinds."""
    if (case, kind) not in _calm:
        _calm[case, kind] = sorted(run(case, kind, NEVER).said("weights"))
        assert len(_calm[case, kind]) == RANKS
    return _calm[case, kind]


def check_healed(job: Launched, weights: list[str]) -> None:
    """Check that one rank was replaced, no rank started over, and nothing else is different."""
    same_bits(sorted(job.said("weights")), weights, job.text)
    assert "respawn" not in job.text, job.text
    assert job.text.count("begin 0") == 1 and job.text.count("begin 1") == 2, job.text


def check_started_over(job: Launched, weights: list[str], sentence: str) -> None:
    """Check that all started again for this reason, and that nothing else is different."""
    same_bits(sorted(job.said("weights")), weights, job.text)
    decision = next((line for line in job.lines if line.endswith("so all start again: respawn")), "")
    assert sentence in decision, job.text
    assert job.text.count("begin 0") == 2, job.text


@pytest.mark.parametrize("at", ["3", "4"])
@pytest.mark.parametrize("place", ["backward", "reduced", "averaged"])
def test_buffers_of_averages(run: Run, place: str, at: str) -> None:
    """They are this rank's own. They are computed again where the record is one update behind."""
    check_healed(run("averages", place, at), calm(run, "averages"))


@pytest.mark.parametrize("at", ["2", "3"])
@pytest.mark.parametrize("place", ["backward", "reduced"])
def test_moments_in_their_own_dtype_and_what_is_switched(run: Run, place: str, at: str) -> None:
    check_healed(run("mixed", place, at), calm(run, "mixed"))


@pytest.fixture
def compiled(tmp_path: Path, free_port: Callable[[], int]) -> Callable[[str], tuple[Launched, list[str]]]:
    """Runs the compiled training without and with a death, once the standby has the compiler. Returns the disturbed run
    and what the calm one has ended with."""

    def start(name: str, place: str, at: str) -> Launched:
        folder = tmp_path / name
        folder.mkdir()
        os.mkfifo(folder / "go")
        words = [str(HERE / "compiled.py"), "--folder", str(folder), "--place", place, "--at", at]
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
        return Launched(folder, free_port(), "--nproc-per-node", str(RANKS), *words, env=cache, job=name, warm=True)

    def both(place: str) -> tuple[Launched, list[str]]:
        with start("calm", place, NEVER) as calm:
            calm.end()
        with start("killed", place, "3") as job:
            job.wait_for_line("this node's standby has the compiler imported by now")
            os.close(os.open(tmp_path / "killed" / "go", os.O_WRONLY))
            job.end()
        return job, sorted(calm.said("weights"))

    return both


@pytest.mark.parametrize("place", ["all backward", "inside backward"])
def test_a_compiled_model(compiled: Callable[[str], tuple[Launched, list[str]]], place: str) -> None:
    """The newcomer does not compile again what the dead rank had compiled. It finds the compiler imported."""
    job, weights = compiled(place)
    check_healed(job, weights)
    assert sorted(job.said("compiler")) == ["is to come 0", "is to come 1", "was there 1"], job.text
    (of_the_newcomer,) = [line.split()[1:] for line in job.said("caches") if line.startswith("1 ")]
    hits, misses = map(int, of_the_newcomer)
    assert hits > 0 and misses == 0, job.text


@pytest.mark.parametrize("place", ["forward", "updated"])
@pytest.mark.parametrize("way", ["fullgraph", "overhead", "dynamic", "lengths", "breaks", "update"])
def test_a_compiled_model_in_other_ways(
    compiled: Callable[[str], tuple[Launched, list[str]]], way: str, place: str
) -> None:
    check_healed(*compiled(f"{way} {place}"))
