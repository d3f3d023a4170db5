"""A script may catch an error of its own and do the step again in another way."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

pytestmark = pytest.mark.slow
UNLIKE = True
"""If a rank dies while others raise, these may be in their second attempt when a newcomer is in its first. A proof sees
that their scales differ, and all start over."""
PLACES = [("nowhere", -2), ("begin", 2), ("backward", 2), ("end", 2), ("backward", 4), ("begin", 5), ("end", 5)]


@pytest.mark.parametrize(("place", "at"), PLACES)
@pytest.mark.parametrize("kind", ["scale", "object"])
def test_what_it_has_set_meanwhile_stays(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert job.text.count("scale 0.5") == 2, job.text
