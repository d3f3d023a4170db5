"""Wherever steps keep a value, a death gives the weights of the undisturbed run: it is healed, or all start over."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

pytestmark = pytest.mark.slow

PLACES = [("forward", 4), ("reduced", 9), ("updated", 10), ("behind", 6), ("between", 0), ("between", 1)]
HEALED = ["NumPy", "setattr", "callbacks", "context", "thread", "default", "partial", "cell", "class", "hook"]
HEALED += ["optimizer hook", "flag", "flag in a dict", "None", "generator", "Decimal"]
OTHERS = ["None before", "module", "Enum", "property", "cache"]
"""What cannot be made again, or is refused for another reason."""


@pytest.mark.parametrize(("place", "at"), PLACES)
@pytest.mark.parametrize("kind", [*HEALED, *OTHERS])
def test_the_weights_are_right(check: Check, kind: str, place: str, at: int) -> None:
    check(kind, place, at)


@pytest.mark.parametrize("kind", HEALED)
def test_before_the_update_it_heals(check: Check, kind: str) -> None:
    assert check(kind, "forward", 4).text.count("begin 0") == 1
