"""Brings messages of older versions, which a journal may hold, to the form of this version.

Two processes of different versions refuse each other. A journal cannot be refused: it was written by the manager from
which this one takes over, or it is in an archive and is replayed for people. So this module lists what each version has
added to the journaled messages, with the value that means "it was not known then". It is used for journals only.

It does NOT check anything: a message that it cannot bring up to date is refused like any other row that does not fit.
"""

from __future__ import annotations

from typing import Any

from taskd.core.messages import Evidence, Report, Stop
from taskd.core.types import StopKind

OLDEST = 4
"""The oldest version whose journals can be read."""
_ADDED: dict[int, dict[type, tuple[tuple[int, Any], ...]]] = {
    5: {Report: ((2, ""), (4, 0))},  # each rank: rail_words; each rail: pairs_starved
    7: {Report: ((2, 0),)},  # each rank: work
    10: {Report: ((2, 0),)},  # each rank: part
    11: {Report: ((2, 0),)},  # each rank: cover
    16: {Report: ((2, False),)},  # each rank: saves
    17: {Report: ((2, -1), (2, -1))},  # each rank: kept_from, kept_to
}
"""By the version that added them: the index of a list field of a message, and the value that was appended to each item
of that list."""
_GROWN: dict[int, dict[type, tuple[Any, ...]]] = {
    6: {Evidence: ("", 0)},  # operation, waited_ms
}
"""By the version that added them: the values that were appended to the message itself."""
_STOPS = {"an operator has stopped the job": StopKind.ASKED, "an operator has drained node": StopKind.DRAINED}
"""Until version 14 the beginning of a reason was all that said why an agent was told to stop."""


def stop_kind(reason: Any) -> StopKind:
    """Why an agent was told to stop, or the job ended, by a reason that a version before 15 wrote."""
    told = (kind for words, kind in _STOPS.items() if isinstance(reason, str) and reason.startswith(words))
    return next(told, StopKind.OVER)


def renewed(version: int, kind: type, row: list[Any], now: int) -> list[Any]:
    """The fields of a message that `version` wrote, in the form that version `now` would have written."""
    row = list(row)
    for later in range(version + 1, now + 1):
        for index, value in _ADDED.get(later, {}).get(kind, ()):
            if index < len(row) and type(row[index]) is list:
                row[index] = [[*item, value] if type(item) is list else item for item in row[index]]
        row += _GROWN.get(later, {}).get(kind, ())
    if version < 15 and kind is Stop:
        row.append(int(stop_kind(row[-1] if row else "")))
    return row
