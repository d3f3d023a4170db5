"""What tests of the rail transport between hosts ask for: two hosts, or four, with rails a and b and a control link.

The hosts themselves are taskd.bench.hosts, which the benchmarks use too. Which backend is tested is chosen here.
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
