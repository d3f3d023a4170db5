"""The guard's lanes and modes, which know no torch, in a storm under the sanitizers for memory and for data races.

What torch adds to them is tested with real ranks in the other files of this folder.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import sanitized
from tests.patience import BUILD_S

HERE = Path(__file__).resolve().parent
UNITS = [
    *(HERE / f"guard_{name}.cpp" for name in ("stress", "parts")),
    *(
        sanitized.SOURCES / "c10d" / f"{name}.cpp"
        for name in ("control", "lane", "lane_judge", "pool", "record", "rhythm", "watch")
    ),
]


@pytest.mark.limit(BUILD_S)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("kind", sanitized.SANITIZERS)
def test_storm_over_lanes(kind: str, seed: int) -> None:
    binary = sanitized.build("guard", UNITS, kind, ["c10d"])
    assert sanitized.said(binary, kind, seed, 400, leaks=False).startswith("done ")
