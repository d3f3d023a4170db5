"""Sessions and the engine over real sockets that fail on purpose, built with sanitizers.

The tests themselves are C++ (sessions/): ranks are engines of one process, so that the sanitizers see all of them. What
real interfaces do is in test_namespaces.py.
"""

from __future__ import annotations

import subprocess

import pytest

from tests.rail import building

RAIL = building.ROOT / "csrc" / "rail"
SEEDS = {"memory": 10, "races": 4}


@pytest.mark.limit(600)
@pytest.mark.parametrize("kind", building.SANITIZERS)
def test_sessions(kind: str) -> None:
    units = [*sorted(RAIL.glob("*.cpp")), *sorted((building.HERE / "sessions").glob("*.cpp"))]
    binary = building.build("rail-sessions", units, kind)
    result = subprocess.run(
        [*building.command(binary, kind), "1", str(SEEDS[kind])],
        env=building.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert result.returncode == 0 and " passed\n" in result.stdout, result.stdout
