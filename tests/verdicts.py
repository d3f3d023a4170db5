"""The verdicts that no second run takes back: wrong bits, also those that a proof has found, and a wrong exit code.

A test that says them with these words is red at once, however often it passes afterwards: tools/gate.py knows them.
Everything else a test asserts is its own affair.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

UNLIKE = re.compile(r"after update \d+ ranks? .* (holds? other contents of|do not hold the same of) ")
"""What the manager says of a difference (core/proof/proofs.py)."""
HANGS = re.compile(r"no progress for \d+\.\d s: ")
"""What it says of a hang (core/hangs.py)."""


def same_bits(found: Any, wanted: Any, text: str) -> None:
    """Fails the test unless what came out is what comes out when nothing fails; `text` says what was seen."""
    if found != wanted:
        pytest.fail(f"wrong bits: {found} and not {wanted}\n{text}", pytrace=False)


def no_difference(text: str) -> None:
    """Fails the test if a job has found that its ranks do not hold the same."""
    for line in text.splitlines():
        if UNLIKE.search(line):
            pytest.fail(f"wrong bits: {line}\n{text}", pytrace=False)


def no_hang(text: str) -> None:
    """Fails the test if a job was said to stand still."""
    for line in text.splitlines():
        if HANGS.search(line):
            pytest.fail(f"a false alarm: {line}\n{text}", pytrace=False)


def exit_codes(found: list[int], wanted: int, text: str) -> None:
    """Fails the test unless all of these processes ended with this code."""
    if any(code != wanted for code in found):
        pytest.fail(f"wrong exit code: {found} and not {wanted}\n{text}", pytrace=False)
