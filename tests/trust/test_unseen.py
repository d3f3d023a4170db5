"""What a loop changes without showing it is given back. Only what no repair puts back is named."""

from __future__ import annotations

import re

import pytest

from tests.trust.conftest import Check

NAMED = re.compile(r"the loop has changed (.*?) in a way that its source does not show")
COUNTED = re.compile(r"the script counts (.*?) in its loop in a way that no repair puts back")

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("place", ["backward", "updated"])
def test_only_what_no_repair_puts_back_is_named(check: Check, place: str) -> None:
    job = check("all", place, 3)
    assert job.text.count("begin 0") == 1, job.text
    assert NAMED.findall(job.text) == [], job.text
    assert COUNTED.findall(job.text) == [], job.text
