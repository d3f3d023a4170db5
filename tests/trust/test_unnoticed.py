"""What no repair puts back is seen by the loss of the step that is done again."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check
from tests.trust.unnoticed import KINDS

pytestmark = pytest.mark.slow
UNNOTICED = ("mocked", "scripted", "pool")
PUT_BACK = ("context", "local")


@pytest.mark.parametrize("at", [4, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_seen_or_put_back(check: Check, kind: str, at: int) -> None:
    job = check(kind, "backward", at)
    assert ("its backward begins with" in job.text) is (kind in UNNOTICED), job.text
    assert job.text.count("begin 0") == (1 if kind in PUT_BACK else 2), job.text
