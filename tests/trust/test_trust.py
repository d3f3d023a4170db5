"""What a rank keeps of a step that is given up. After any death the weights are those of the undisturbed run.

Each case is a small training of this folder, which does in its step what many scripts do. Where taskd cannot reach the
same weights, it must say so and let all start over. It must never end with other weights.
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
TWO_WAYS = {"extra": ["version"], "perturbed": ["in place"], "teacher": ["plain"]}
"""Trainings that work in another way if the place contains these words."""

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
        name = f"trust-{os.getpid()}-{len(list(tmp_path.iterdir()))}"
        with Launched(folder, free_port(), "--nproc-per-node", str(RANKS), *script, job=name, warm=True) as job:
            job.end()
        return job

    return start


def calm(run: Run, case: str, place: str = "") -> list[str]:
    """Return what every rank ends with when no rank dies. `place`: for trainings that depend on it."""
    if (case, place) not in _calm:
        _calm[case, place] = sorted(run(case, place, NEVER).said("weights"))
        assert len(_calm[case, place]) == RANKS
    return _calm[case, place]


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


@pytest.mark.parametrize(
    ("case", "place"),
    [
        ("batch_entry", "forward"),
        ("batch_entry", "backward"),
        ("modes", "evaluation"),
        ("modes", "evaluation after the update"),
        ("attributes", "backward"),
        ("attributes", "metric"),
        ("extra", "backward blob"),
        ("extra", "backward version"),
        ("named", "between"),
        ("named", "backward"),
        ("named", "metric"),
        ("perturbed", "second forward"),
        ("perturbed", "second forward in place"),
        ("swapped", "evaluation"),
        ("swapped", "evaluation after the update"),
        ("teacher", "metric"),
        ("teacher", "second metric"),
        ("teacher", "plain metric"),
        ("teacher", "plain second metric"),
    ],
)
@pytest.mark.parametrize("at", ["3", "4"])
def test_a_step_that_is_done_again_finds_all_as_the_first_attempt_did(run: Run, case: str, place: str, at: str) -> None:
    otherwise = place if case in TWO_WAYS and any(word in place for word in TWO_WAYS[case]) else ""
    check_healed(run(case, place, at), calm(run, case, otherwise))


def test_what_changes_after_the_backward_began_is_in_no_record(run: Run) -> None:
    """If a rank dies when the others have done its step, its record is from the end of its forward."""
    job = run("attributes", "end", "4")
    check_started_over(job, calm(run, "attributes"), "attributes of modules change after a step's backward has begun")


def test_what_a_forward_hands_on_is_not_known_by_an_extra_state_that_lacks_it(run: Run) -> None:
    """The extra state is given to the newcomer, but what the forward has left is in no record behind the update."""
    job = run("extra", "metric version", "4")
    sentence = "nobody knows what the script's model.largest would be after step 4"
    check_started_over(job, calm(run, "extra", "metric version"), sentence)


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("backward", "scheduler.step() is called in the loop and outside of `with step:`"),
        ("backward, before", "scheduler.step() is called in the loop and outside of `with step:`"),
        ("backward, clip", "the parameters are changed in the loop and outside of `with step:`"),
    ],
)
def test_what_is_done_outside_of_the_step_is_said_and_starts_over(run: Run, place: str, sentence: str) -> None:
    job = run("outside", place, "3")
    check_started_over(job, calm(run, "outside", place), sentence)
    said = [line for line in job.lines if line.startswith("taskd[rank 0]: ") and sentence in line]
    assert len(said) == 2, job.text  # once in each of rank 0's two processes


@pytest.mark.parametrize(("place", "at"), [("backward", "1"), ("behind", "2"), ("backward", "3"), ("behind", "5")])
def test_a_loader_that_communicates_starts_over(run: Run, place: str, at: str) -> None:
    """A newcomer would open the loader alone."""
    sentence = "the loader communicates when it is opened or asked for a batch"
    check_started_over(run("talking", place, at), calm(run, "talking"), sentence)
