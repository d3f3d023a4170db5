"""A newcomer that fails in the first step that it does: all start over, since the script may be right."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check, Train

LACKS = "a newcomer has failed in the first step that it did"

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("place", "at"), [("updated", 3), ("begun", 4)])
def test_what_a_newcomer_lacks_ends_no_job(check: Check, place: str, at: int) -> None:
    job = check("all", place, at)
    assert f"{LACKS}, and may lack what earlier steps have left: LookupError" in job.text, job.text
    assert job.text.count("begin 0") == 2, job.text


def test_the_scripts_own_error_ends_the_job_nevertheless(train: Train) -> None:
    job = train("wrong", "begun", 5, 1)
    assert LACKS in job.text and job.text.count("begin 0") == 2, job.text
    assert job.text.count("Traceback (most recent call last)") >= 2, job.text  # the newcomer's own, too
    assert "ValueError: the script's own error" in job.text, job.text
