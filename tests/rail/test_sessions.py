"""Sessions and the engine over real sockets that fail on purpose, built with sanitizers.

The tests themselves are C++ (sessions/). Their ranks are engines of one process, so that the sanitizers see all of
them. test_namespaces.py tests real interfaces.
"""

from __future__ import annotations

import pytest

from tests import sanitized
from tests.patience import BUILD_S


def run(kind: str, seeds: int, which: str) -> None:
    binary = sanitized.build("rail-sessions", kind)
    assert " passed\n" in sanitized.said(binary, kind, 1, seeds, which)


@pytest.mark.limit(BUILD_S)
@pytest.mark.parametrize(("which", "seeds"), [("short", 1), ("parts", 4)])
def test_parts_of_a_session(which: str, seeds: int) -> None:
    """They run in one thread, most of them in virtual time, so nothing can race."""
    run("memory", seeds, which)


@pytest.mark.limit(BUILD_S)
@pytest.mark.parametrize(("kind", "seeds"), [("memory", 1), ("memory", 10), ("races", 4)])
def test_engines(kind: str, seeds: int) -> None:
    run(kind, seeds, "engines")
