"""Loops that use, behind `with step:`, what the body sets at its update or behind it: they heal like others."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

KINDS = (
    *("value", "helper", "list", "meter", "rate", "closure", "reduced", "file", "error", "average", "passed"),
    *("inner", "flag", "decided", "log"),
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("place", "at"), [("forward", 2), ("backward", 6), ("updated", 9)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_newcomer_rehearses_what_the_script_needs(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert job.text.count("begin 0") == 1 and "healed in" in job.text, job.text


@pytest.mark.parametrize("at", [2, 9])
def test_a_flag_that_a_function_sets_is_named(check: Check, at: int) -> None:
    job = check("elsewhere", "forward", at)
    assert job.text.count("begin 0") == 2 and "a newcomer's rehearsal of a step has changed" in job.text, job.text
    assert "is_alone" in job.text, job.text
