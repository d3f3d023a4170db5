"""Scripts that take up their own checkpoint. A newcomer begins where its predecessor did, or names what it has read."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

NEWER = "last.pt, written after that of its life before"
LATER = [("reduced", 14), ("updated", 20)]
KINDS = ["first", "counted", "skipped", "together", "newest", "drawn", "tensor", "alias", "failed"]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["returned", "begun"])
@pytest.mark.parametrize(("place", "at"), [("forward", 3), ("forward", 9), *LATER])
def test_a_newcomer_begins_where_its_predecessor_began(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert job.text.count("begin 0") == 1 and job.text.count("healed in") == 1, job.text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("place", "at"), LATER)
def test_however_the_script_takes_it_up(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert job.text.count("begin 0") == 1 and job.text.count("healed in") == 1, job.text


@pytest.mark.parametrize("kind", ["plain", "object"])
@pytest.mark.parametrize(("place", "at"), [("forward", 9), ("updated", 20)])
def test_a_newcomer_that_has_read_a_newer_file_says_so(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert NEWER in job.text and job.text.count("begin 0") == 2, job.text
