"""What loops that are over have left: a newcomer finds it, although it has not done their steps."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("what", ["mean", "norm", "window"])
@pytest.mark.parametrize("epochs", ["plain", "epochs"])
@pytest.mark.parametrize("at", [4, 10, 17])
def test_a_newcomer_finds_what_they_have_left(check: Check, what: str, epochs: str, at: int) -> None:
    job = check(f"{what} {epochs}", "forward", at)
    assert job.text.count("begin 0") == 1 and "healed in" in job.text, job.text
