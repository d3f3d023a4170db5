"""Runs the guard's lanes and modes, which do not use torch, in a storm under the sanitizers for memory and data races.

What torch adds to them is tested with real ranks in the other files of this folder.
"""

from __future__ import annotations

import pytest

from tests import sanitized
from tests.patience import BUILD_S


@pytest.mark.limit(BUILD_S)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("kind", sanitized.SANITIZERS)
def test_storm_over_lanes(kind: str, seed: int) -> None:
    binary = sanitized.build("guard", kind)
    assert sanitized.said(binary, kind, seed, 400, leaks=False).startswith("done ")
