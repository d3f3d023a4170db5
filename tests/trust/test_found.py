"""Tensors that were made before a loop, from trained weights or by drawing. A newcomer cannot always make them again.

If a newcomer's tensors differ from those of the process before it, it refuses and names them. If they are the same, it
goes on in place.
"""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

UNLIKE = "and this newcomer has found something else there than its life before"

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("place", "at"), [("forward", 9), ("reduced", 13), ("updated", 12), ("updated", 6)])
@pytest.mark.parametrize(
    ("kind", "name"), [("teacher", "teacher"), ("closure", "more, more.teacher"), ("noise", "noise")]
)
def test_what_comes_out_otherwise_starts_over(check: Check, kind: str, name: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    again = (place, at) != ("updated", 6)  # between two loops it has the state, and makes all tensors as the others do
    assert (f"the loop uses {name}, {UNLIKE}" in job.text) == again or kind == "noise", job.text
    assert job.text.count("begin 0") == 2 or not again, job.text


@pytest.mark.parametrize(("place", "at"), [("forward", 9), ("updated", 15)])
def test_a_script_without_epochs(check: Check, place: str, at: int) -> None:
    job = check("plain", place, at)
    assert f"the loop uses teacher, {UNLIKE}" in job.text and job.text.count("begin 0") == 2, job.text


@pytest.mark.parametrize(("place", "at"), [("updated", 9), ("forward", 13)])
def test_what_is_kept_for_the_code_behind_the_loop_starts_over(check: Check, place: str, at: int) -> None:
    job = check("best", place, at)
    assert "best" in job.text and job.text.count("begin 0") == 2, job.text


@pytest.mark.parametrize(("place", "at"), [("forward", 9), ("updated", 12), ("reduced", 3)])
@pytest.mark.parametrize("kind", ["order", "frozen", "given", "drawn", "ahead"])
def test_what_comes_out_alike_heals(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert UNLIKE not in job.text and job.text.count("begin 0") == 1, job.text


@pytest.mark.parametrize(("place", "at"), [("forward", 1), ("updated", 9)])
def test_a_loop_that_takes_from_an_iterator_starts_over(check: Check, place: str, at: int) -> None:
    job = check("second", place, at)
    assert "the loop takes what comes next from second by itself" in job.text, job.text
    assert job.text.count("begin 0") == 2, job.text


@pytest.mark.parametrize(("place", "at"), [("forward", 4), ("updated", 9)])
def test_what_writes_into_parameters_is_named(check: Check, place: str, at: int) -> None:
    job = check("slow", place, at)
    assert "the loop hands optimizer.slow" in job.text and job.text.count("begin 0") == 2, job.text


@pytest.mark.parametrize(("place", "at", "again"), [("forward", 4, False), ("forward", 9, False), ("updated", 9, True)])
def test_momentum_by_hand(check: Check, place: str, at: int, again: bool) -> None:
    """A newcomer that begins with the second epoch finds it as the first one has left it. Its gradients are lost if it
    dies behind an update."""
    job = check("loose", place, at)
    assert UNLIKE not in job.text and ("gradients that each rank has for itself" in job.text) == again, job.text
    assert job.text.count("begin 0") == 1 + again, job.text
