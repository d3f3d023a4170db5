"""Numbers that were computed before a loop from trained weights. A newcomer takes them, or refuses and names them."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

OTHERWISE = "and this newcomer has reckoned something else there than all others"
UNLIKE = "and this newcomer has found something else there than its life before"

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "kind",
    [
        "weight",
        "mean",
        "passed",
        "trainer",
        "state",
        "history",
        "best",
        "rate",
        "clock",
        "judges",
        "property",
        "closure",
        "long",
        "window",
        "table",
        "score",
        "named",
    ],
)
@pytest.mark.parametrize(
    ("place", "at"),
    [("forward", 9), ("forward", 7), ("evaluated", 2), ("loading", 56), ("updated", 13), ("reduced", 16)],
)
def test_a_newcomer_takes_them(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert UNLIKE not in job.text and OTHERWISE not in job.text and job.text.count("begin 0") == 1, job.text


@pytest.mark.parametrize(("place", "at"), [("forward", 9), ("forward", 7), ("updated", 13), ("reduced", 16)])
def test_a_newcomer_takes_what_it_had_drawn_itself(check: Check, place: str, at: int) -> None:
    job = check("own", place, at)
    assert UNLIKE not in job.text and OTHERWISE not in job.text and job.text.count("begin 0") == 1, job.text


@pytest.mark.parametrize(("place", "at"), [("kept", 0), ("kept", 1), ("forward", 7), ("updated", 13)])
def test_the_rank_is_its_own(check: Check, place: str, at: int) -> None:
    job = check("defined", place, at)
    assert job.text.count("begin 0") == 1 and "healed in" in job.text, job.text


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("behind", f"weight, {UNLIKE}"),
        ("criterion", "criterion"),
        ("keeps", f"kept, {UNLIKE}"),
        ("plateau", f"a ReduceLROnPlateau, {UNLIKE}"),
        ("chosen", f"the loader's dataset.indices, {UNLIKE}"),
    ],
    ids=["behind", "criterion", "keeps", "plateau", "chosen"],
)
@pytest.mark.parametrize(("place", "at"), [("forward", 9), ("updated", 12)])
def test_what_it_cannot_take_starts_over(check: Check, kind: str, name: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert f"the loop uses {name}" in job.text and job.text.count("begin 0") == 2, job.text


@pytest.mark.parametrize(("place", "at"), [("forward", 9), ("updated", 13)])
def test_a_newcomer_that_reads_a_newer_checkpoint_refuses(check: Check, place: str, at: int) -> None:
    job = check("resumed", place, at)
    assert f"the loop uses epoch, {OTHERWISE}" in job.text and job.text.count("begin 0") == 2, job.text


@pytest.mark.parametrize(
    ("kind", "place", "at"),
    [("stops", "forward", 9), ("stops", "updated", 13), ("stops", "updated", 20), ("resumed", "updated", 20)],
)
def test_a_newcomer_that_leaves_its_epochs_on_its_way_refuses(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert "has come to the end of its script and not to the loop" in job.text, job.text
    assert job.text.count("begin 0") == 2, job.text
