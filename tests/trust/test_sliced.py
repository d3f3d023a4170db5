"""A model whose layers are sliced over all ranks: a replaced rank takes its slices from what it has kept."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

RANKS = 4
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("place", "at"), [("loss", 4), ("forward", 1), ("reduced", 5), ("updated", 5), ("behind", 6)])
@pytest.mark.parametrize("kind", ["plain", "both"])
def test_a_slice_comes_from_what_its_rank_has_kept(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert "healed in" in job.text and job.text.count("begin 0") == 1 and job.text.count("begin 1") == 2, job.text
