"""Builds the native tests with sanitizers and runs them: once for memory and undefined behaviour, once for data races.

Python is not involved: what the bindings add is tested by the other files of this folder.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import sanitized
from tests.patience import BUILD_S

NATIVE = sanitized.SOURCES / "native"
UNITS = [
    *sorted({*NATIVE.glob("*.cpp")} - {*NATIVE.glob("module*.cpp")}),
    *sorted(Path(__file__).parent.glob("*.cpp")),
]


@pytest.mark.limit(BUILD_S)
@pytest.mark.parametrize("kind", sanitized.SANITIZERS)
def test_native(kind: str) -> None:
    assert " passed\n" in sanitized.said(sanitized.build("native", UNITS, kind, ["native"]), kind)
