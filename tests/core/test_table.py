"""Transition tables: a transition that is not in the table cannot happen, and a diagram shows exactly the table."""

from __future__ import annotations

from enum import Enum, auto

import pytest

from taskd.core.local import LOCAL
from taskd.core.records import NODE, RANK
from taskd.core.repair.decision import DECISION
from taskd.core.repair.incident import INCIDENT
from taskd.core.repair.stages import ATTEMPT
from taskd.core.table import Table
from taskd.core.worker import WORKER

TABLES = [RANK, NODE, LOCAL, INCIDENT, DECISION, ATTEMPT, WORKER]


class Lamp(Enum):
    OFF = auto()
    ON = auto()
    BROKEN = auto()


class Hand(Enum):
    PRESS = auto()
    DROP = auto()


LAMP = Table(
    "lamp", "A lamp.", Lamp.OFF, [(Lamp.OFF, Hand.PRESS, Lamp.ON), ((Lamp.OFF, Lamp.ON), Hand.DROP, Lamp.BROKEN)]
)


def test_a_row_is_followed() -> None:
    assert LAMP.after(Lamp.OFF, Hand.PRESS) is Lamp.ON
    assert LAMP.after(Lamp.ON, Hand.DROP) is Lamp.BROKEN


def test_what_has_no_row_is_our_bug() -> None:
    assert not LAMP.allows(Lamp.BROKEN, Hand.PRESS)
    with pytest.raises(AssertionError, match="lamp: PRESS cannot happen in BROKEN"):
        LAMP.after(Lamp.BROKEN, Hand.PRESS)


def test_two_rows_for_one_event_are_refused() -> None:
    with pytest.raises(AssertionError, match="two rows"):
        Table("lamp", "", Lamp.OFF, [(Lamp.OFF, Hand.PRESS, Lamp.ON), (Lamp.OFF, Hand.PRESS, Lamp.BROKEN)])


def test_the_diagram_shows_start_arrows_and_end() -> None:
    assert LAMP.mermaid().splitlines() == [
        "stateDiagram-v2",
        "    [*] --> OFF",
        "    OFF --> ON: press",
        "    OFF --> BROKEN: drop",
        "    ON --> BROKEN: drop",
        "    BROKEN --> [*]",
    ]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_state_can_be_reached(table: Table[Enum, Enum]) -> None:
    reached, rest = set(table.starts), True
    while rest:
        found = {target for source, _, target in table.rows() if source in reached} - reached
        reached |= found
        rest = bool(found)
    named = {state for source, _, target in table.rows() for state in (source, target)}
    assert reached == named, f"{table.name} never reaches {named - reached}"
