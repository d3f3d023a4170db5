"""A script may catch an error of its own and do the step again in another way."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

pytestmark = pytest.mark.slow
PLACES = [
    *(
        ("nowhere", -2),
        ("begin 8", 2),
        ("backward 8", 2),
        ("begin 4", 2),
        ("backward 4", 2),
        ("backward 2", 2),
        ("end", 2),
    ),
    *(("backward 2", 4), ("begin 2", 5), ("backward 1", 5), ("end", 5)),
]


@pytest.mark.parametrize(("place", "at"), PLACES)
@pytest.mark.parametrize("kind", ["scale", "object", "rate", "behind"])
def test_what_it_has_set_meanwhile_stays(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert job.text.count("scale 0.5") == 2 and job.text.count("begin 0") == 1, job.text
