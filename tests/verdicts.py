"""The two verdicts that no second run takes back: wrong bits and a wrong exit code.

A test that says them with these words is red at once, however often it passes afterwards: tools/gate.py knows them.
Everything else a test asserts is its own affair.
"""

from __future__ import annotations

from typing import Any

import pytest


def same_bits(found: Any, wanted: Any, text: str) -> None:
    """Fails the test unless what came out is what comes out when nothing fails; `text` says what was seen."""
    if found != wanted:
        pytest.fail(f"wrong bits: {found} and not {wanted}\n{text}", pytrace=False)


def exit_codes(found: list[int], wanted: int, text: str) -> None:
    """Fails the test unless all of these processes ended with this code."""
    if any(code != wanted for code in found):
        pytest.fail(f"wrong exit code: {found} and not {wanted}\n{text}", pytrace=False)
