"""docs/diagrams are printed from the transition tables. A picture cannot be wrong, and this test keeps it current."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import pytest

from taskd.core.errands.errands import ERRAND
from taskd.core.local import LOCAL
from taskd.core.pause.pauses import PAUSE
from taskd.core.rails.records import RAIL, USE
from taskd.core.records import NODE, RANK
from taskd.core.repair.decision import DECISION
from taskd.core.repair.incident import INCIDENT
from taskd.core.repair.stages import ATTEMPT
from taskd.core.table import Table
from taskd.core.worker import WORKER
from taskd.worker.step_state import STEP

ROOT = Path(__file__).resolve().parents[2]
TABLES = [RANK, NODE, LOCAL, INCIDENT, DECISION, ATTEMPT, WORKER, RAIL, USE, PAUSE, ERRAND, STEP]


def page(table: Table[Enum, Enum]) -> str:
    """Return one diagram as a page that GitHub and similar sites render."""
    return (
        f"# {table.name.capitalize()}\n\n{table.about} Printed from its transition table; "
        f"`pytest tests/scripts --rewrite` prints it again.\n\n```mermaid\n{table.mermaid()}```\n"
    )


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_diagram_is_current(table: Table[Enum, Enum], rewrite: bool) -> None:
    path = ROOT / "docs" / "diagrams" / f"{table.name.replace(' ', '_')}.md"
    if rewrite:
        path.parent.mkdir(exist_ok=True)
        path.write_text(page(table))
    else:
        assert path.read_text() == page(table), f"{path.name} is old: pytest tests/scripts --rewrite"
