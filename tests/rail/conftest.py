"""Fixtures for tests of the rail transport between hosts: two or four hosts with rails a and b and a control link.

The hosts themselves are those of taskd.bench.hosts, which the benchmarks use too. Each test chooses its backend.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from taskd.bench.hosts import Hosts


@pytest.fixture
def two_hosts() -> Iterator[Hosts]:
    with Hosts(2) as hosts:
        yield hosts


@pytest.fixture
def four_hosts() -> Iterator[Hosts]:
    with Hosts(4) as hosts:
        yield hosts
