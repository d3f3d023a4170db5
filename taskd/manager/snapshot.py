"""Converts the manager's state to one blob of the journal and back: the core's values and the notes for people.

The blob replaces the rows before it in the journal, so that a journal never grows beyond what can be replayed.
It does NOT know when a snapshot is due (memory.py) or where it is kept (journal.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

import msgpack

from taskd.core import snapshot
from taskd.core.effects import Note
from taskd.core.manager import Manager
from taskd.manager.record import Unreadable


class Told(NamedTuple):
    """One note, with its number in this journal and its wall-clock time."""

    number: int
    wall_ns: int
    note: Note


def packed(core: Manager, notes: Iterable[Told]) -> bytes:
    """Pack the core's values and the notes into a blob."""
    rows = [[told.number, told.wall_ns, *dataclasses.astuple(told.note)] for told in notes]
    data: bytes = msgpack.packb([snapshot.taken(core), rows], use_bin_type=True, unicode_errors="replace")
    return data


def unpacked(data: bytes) -> tuple[Manager, list[Told]]:
    """Unpack the core and the notes from a blob; raises Unreadable."""
    try:
        values, rows = msgpack.unpackb(data, raw=False, strict_map_key=False)
        return snapshot.restored(values), [Told(number, wall_ns, Note(*fields)) for number, wall_ns, *fields in rows]
    except (ValueError, TypeError, snapshot.Unfit, msgpack.UnpackException) as error:
        raise Unreadable(f"a snapshot that cannot be read ({error})") from None
