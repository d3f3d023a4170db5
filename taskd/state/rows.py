"""Lists, deques and dicts of numbers and texts that steps gather, as `losses.append(loss.item())` does.

They are each rank's own: no other rank can know them. So a rank that has not seen a step's end lacks what it would have
gathered there. This module keeps nothing. variables.py says when rows are looked at and put back.
"""

from __future__ import annotations

from collections.abc import Set

from taskd.state.counters import Loop, name_of
from taskd.state.plain import rows_of, unpacked
from taskd.state.script import Script, Values

Rows = dict[str, bytes]
"""Packed rows by the text of their place."""


def rows_at(script: Script, loop: Loop, known: Set[int]) -> Rows:
    """Return the rows of this loop as they are now. `known`: ids of objects that are restored in another way."""
    there = script.everything(loop.rows, known) if loop.rows else {}
    return {text: data for text, value in there.items() if (data := rows_of(value)) is not None}


def put_rows(script: Script, loop: Loop, known: Set[int], rows: Rows) -> None:
    """Give the rows of this loop these contents, if they have others."""
    if rows:
        now = rows_at(script, loop, known)
        changed = [place for place in loop.rows if place.text in rows and now.get(place.text) != rows[place.text]]
        script.give({place: unpacked(rows[place.text]) for place in changed})


def same_in(before: Rows, now: Rows) -> set[str]:
    """Return the names of rows that are now as they were before."""
    return {text for text, data in now.items() if before.get(text) == data}


def used_in(loop: Loop, values: Values, rows: Rows) -> list[str]:
    """Return the names of rows, and of those counters that the loop moves and uses."""
    computes = {*map(name_of, loop.computes)}
    return sorted({name for one in values for name in one if name in computes and loop.moves(name)} | rows.keys())
