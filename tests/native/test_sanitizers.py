"""Builds the native tests with sanitizers and runs them: once for memory and undefined behaviour, once for data races.

Python is not involved. The other files of this folder test what the bindings add.
"""

from __future__ import annotations

import pytest

from tests import sanitized
from tests.patience import BUILD_S


@pytest.mark.limit(BUILD_S)
@pytest.mark.parametrize("kind", sanitized.SANITIZERS)
def test_native(kind: str) -> None:
    assert " passed\n" in sanitized.said(sanitized.build("native", kind), kind)
