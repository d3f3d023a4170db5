"""A death is told to the core once, whatever breaks while its reason is looked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from taskd.agent.deaths import UNKNOWN_EXIT, Deaths
from taskd.agent.workers import Workers
from taskd.core.events import Gone


@pytest.mark.parametrize(("code", "told"), [(-9, -9), (None, UNKNOWN_EXIT)])
def test_a_death_is_told_whatever_breaks_on_the_way(code: int | None, told: int) -> None:
    deaths = Deaths(Workers(), None)

    def broken(_worker: Any) -> None:
        raise KeyError("planted")

    deaths.hear = broken
    worker: Any = SimpleNamespace(rank=1, incarnation=2, reported=False, check_at_ns=0, leaving=False)
    with pytest.raises(KeyError):
        deaths._report(worker, code)
    assert deaths.found(0) == [Gone(1, 2, told, "")]
    assert worker.reported and deaths.found(0) == []
