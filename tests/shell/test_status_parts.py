"""`taskd status` of a job that is too large for one answer: it asks several times and puts the answers together."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from taskd.cli.ask import Asker
from taskd.core import limits
from taskd.core.limits import SECOND
from taskd.manager import answers
from tests.core.builders import Node, manager, rank_report

MANAGER = {"pid": 1}


@pytest.fixture
def facts() -> Callable[[int], dict[str, Any]]:
    core = manager(10, 5)
    for at in range(5):
        node = Node(f"n{at}")
        core.step(1, node.hello(world_size=10))
        core.step(1, node.report(rank_report(2 * at), rank_report(2 * at + 1)))
    return lambda first: core.facts(SECOND, first)


def test_it_asks_until_it_has_all(facts: Callable[[int], dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = facts(0) | {"manager": MANAGER}
    monkeypatch.setattr(limits, "STATUS_ROWS", 3)
    asked: list[str] = []

    def ask(_: Asker, topic: str, argument: str = "") -> dict[str, Any]:
        assert topic == "status"
        asked.append(argument)
        found: dict[str, Any] = json.loads(answers.status(facts, argument, MANAGER).text)
        return found

    monkeypatch.setattr(Asker, "ask", ask)
    assert Asker.status(object.__new__(Asker)) == whole
    assert asked == ["", "3", "6", "9"]


def test_what_is_no_place_is_refused(facts: Callable[[int], dict[str, Any]]) -> None:
    for argument in ("ten", "-1", "\N{SUPERSCRIPT TWO}"):
        assert not answers.status(facts, argument, MANAGER).ok
    assert answers.status(facts, "9" * 100, MANAGER).ok
