"""What steps keep in files and read again: all start over, and the file is named. What a step reads of its own, or what
the set-up has made, prevents no repair."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check, Train

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("place", ["forward", "updated", "noted"])
@pytest.mark.parametrize("kind", ["mean", "shared", "lines", "base", "late", "handle", "saved", "tree", "both"])
def test_what_steps_keep_in_files_starts_over(check: Check, kind: str, place: str) -> None:
    job = check(kind, place, 4)
    assert ", which was written while the loops ran, and no repair puts a file back" in job.text, job.text
    assert job.text.count("begin 0") == 2, job.text


@pytest.mark.parametrize("kind", ["seldom", "first"])
def test_who_has_not_read_them_before_starts_over_as_well(check: Check, kind: str) -> None:
    """Nobody has said anything, or only the rank that dies."""
    job = check(kind, "forward", 4)
    assert "no repair puts a file back" in job.text and job.text.count("begin 0") == 2, job.text


@pytest.mark.parametrize("kind", ["own", "given", "log", "plotted", "copied", "added", "habit"])
def test_what_was_there_before_heals(check: Check, kind: str) -> None:
    job = check(kind, "forward", 4)
    assert job.text.count("begin 0") == 1 and "healed in" in job.text, job.text
    assert "no repair puts a file back" not in job.text, job.text


@pytest.mark.parametrize("place", ["forward", "noted"])
def test_a_log_that_is_opened_anew_has_all_lines(train: Train, place: str) -> None:
    calm, job = (train("log", where, at) for where, at in (("nowhere", -1), (place, 4)))
    assert job.text.count("begin 0") == 1 and "healed in" in job.text, job.text
    assert len(calm.said("log")) == 2 and sorted(job.said("log")) == sorted(calm.said("log")), job.text
