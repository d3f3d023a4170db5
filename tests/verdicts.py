"""The verdicts that no second run can take back: wrong bits, also those that a proof has found, and a wrong exit code.

tools/gate.py knows the words of these verdicts. A test that fails with them is red at once, however often it passes
afterwards. All other assertions are up to the tests.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests import starve

UNLIKE = re.compile(r"after update \d+ ranks? .* (holds? other contents of|do not hold the same of) ")
"""The manager's words about a difference (core/proof/proofs.py)."""
HANGS = re.compile(r"no progress for \d+\.\d s: ")
"""The manager's words about a hang (core/hangs.py)."""
STOPPED = " is stopped by a signal "
"""Its words about a process that does not run. Under --starve it is right: these tests stop processes."""


def same_bits(found: Any, wanted: Any, text: str) -> None:
    """Fail the test unless the result equals that of a run without faults. `text` says what was seen."""
    if found != wanted:
        pytest.fail(f"wrong bits: {found} and not {wanted}\n{text}", pytrace=False)


def no_difference(text: str) -> None:
    """Fail the test if a job has reported that its ranks do not hold the same."""
    for line in text.splitlines():
        if UNLIKE.search(line):
            pytest.fail(f"wrong bits: {line}\n{text}", pytrace=False)


def no_hang(text: str) -> None:
    """Fail the test if a job has reported a hang."""
    for line in text.splitlines():
        if HANGS.search(line) and not (starve.begun and STOPPED in line):
            pytest.fail(f"a false alarm: {line}\n{text}", pytrace=False)


def exit_codes(found: list[int], wanted: int, text: str) -> None:
    """Fail the test unless all of these processes ended with this code."""
    if any(code != wanted for code in found):
        pytest.fail(f"wrong exit code: {found} and not {wanted}\n{text}", pytrace=False)
