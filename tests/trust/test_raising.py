"""Errors of the script in a step. All do the step again, and no rank is replaced. A repeated error ends the job."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check, Train

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("at", [5, 9])
@pytest.mark.parametrize(
    ("kind", "place", "error"),
    [
        ("once", "forward", "ValueError: a bad sample of rank 1"),
        ("once", "loss", "ValueError: a bad sample of rank 1"),
        ("hook", "backward", "ValueError: a bad sample of rank 1"),
        ("once", "reduced", "ValueError: a bad sample of rank 1"),
        ("memory", "loss", "torch.OutOfMemoryError: no more"),
        ("ddp", "forward", "ValueError: a bad sample of rank 1"),
        ("ddp", "loss", "ValueError: a bad sample of rank 1"),
        ("amp", "loss", "ValueError: a bad sample of rank 1"),
        ("amp", "reduced", "ValueError: a bad sample of rank 1"),
    ],
)
def test_a_passing_error_costs_nothing(check: Check, kind: str, place: str, error: str, at: int) -> None:
    job = check(kind, place, at)
    assert f"rank 1 raised {error}" in job.text and f"in step {at}: healed in" in job.text, job.text
    assert job.text.count("begin 1") == 1 and "died" not in job.text and "Traceback" not in job.text, job.text


@pytest.mark.parametrize("at", [1, 5, 7, 13])
@pytest.mark.parametrize("how", ["", " drawn"])
@pytest.mark.parametrize("kind", ["loader", "processes", "staying"])
def test_a_loader_that_fails_is_asked_once_more(check: Check, kind: str, how: str, at: int) -> None:
    job = check(kind + how, "sample", at)
    assert "rank 1 raised FileNotFoundError" in job.text and f"in step {at}: healed in" in job.text, job.text
    assert job.text.count("begin 0") == job.text.count("begin 1") == 1, job.text


@pytest.mark.parametrize("at", [5, 9])
@pytest.mark.parametrize("how", ["", " drawn"])
def test_a_stream_that_fails_is_not_asked_again(check: Check, how: str, at: int) -> None:
    """The stream would continue after the batch that could not be read."""
    job = check("stream" + how, "sample", at)
    assert "rank 1 died (exit code 1: FileNotFoundError: no sample" in job.text, job.text
    assert job.text.count("begin 0") == 2 and "the loader has an iterator in it" in job.text, job.text


@pytest.mark.parametrize("at", [7, 13])
@pytest.mark.parametrize("how", ["", " drawn"])
def test_a_process_of_the_loader_may_die(check: Check, how: str, at: int) -> None:
    """It loads ahead, so it dies some steps before. The error is raised when the next batch is asked for, perhaps as a
    broken connection."""
    job = check(f"killed{how}", "sample", at)
    assert "rank 1 raised " in job.text and ": healed in" in job.text, job.text
    assert job.text.count("begin 0") == job.text.count("begin 1") == 1, job.text


@pytest.mark.parametrize("kind", ["twice loader", "all loader"])
def test_a_sample_that_is_never_there_ends_the_job(train: Train, kind: str) -> None:
    job = train(kind, "sample", 5, 1)
    assert job.text.count("begin 1") == 1 and "raised once more when the step was done again: FileNotF" in job.text, (
        job.text
    )
    assert job.text.count("[rank1]: Traceback") == 1 and "is no passing error: exit" in job.text, job.text


def test_a_backward_of_ddp_that_was_left_in_its_middle_takes_a_newcomer(check: Check) -> None:
    job = check("ddp", "backward", 5)
    assert job.text.count("begin 1") == 2 and "rank 1 died (exit code 1: ValueError: a bad sample" in job.text, job.text


@pytest.mark.parametrize("kind", ["twice", "all"])
def test_an_error_that_comes_again_ends_the_job(train: Train, kind: str) -> None:
    job = train(kind, "forward", 5, 1)
    assert job.text.count("raises 1 5") == 2 and job.text.count("begin 1") == 1, job.text
    assert "raised once more when the step was done again: ValueError: a bad sample of rank" in job.text, job.text
    assert job.text.count("[rank1]: Traceback") == 1 and "is no passing error: exit" in job.text, job.text


def test_an_error_in_the_first_step_ends_the_job_at_once(train: Train) -> None:
    job = train("all", "forward", 0, 1)
    assert job.text.count("raises") == 2 and "every rank failed in its set-up" in job.text, job.text


@pytest.mark.parametrize(("kind", "times"), [("stop", (3, 4)), ("late", (3,)), ("flawed", (2,))])
def test_a_script_may_leave_its_loop_by_an_error(train: Train, kind: str, times: tuple[int, ...]) -> None:
    """All try the step once more, unless that would make all start over."""
    job = train(kind, "forward", 5)
    assert job.text.count("raises") in times and job.text.count("begin 1") == 1, job.text
    assert len(job.said("stopped")) == 2 and len({line.split()[1] for line in job.said("weights")}) == 1, job.text


def test_an_error_that_the_script_means_is_raised_at_once(train: Train) -> None:
    job = train("stop", "forward", 5, TASKD_RECOVER_NEVER_RETRY="KeyError, Stop")
    assert job.text.count("raises") == 2 and len(job.said("stopped")) == 2, job.text
