"""Messages of older versions, as a journal may hold them, brought to the form of this version.

Two processes of different versions refuse each other; a journal cannot: it was written by the manager that this one
takes over from, or lies in an archive and is replayed for people. So for journals alone, what a version has added to
the messages that are journaled is written down here, with the value that means "it was not known then".

It does NOT check anything: what it cannot bring up to date is refused like any other row that does not fit.
"""

from __future__ import annotations

from typing import Any

from taskd.core.messages import Evidence, Report

OLDEST = 4
"""Of a version before this one no journal can be read."""
_ADDED: dict[int, dict[type, tuple[tuple[int, Any], ...]]] = {
    5: {Report: ((2, ""), (4, 0))},  # each rank: rail_words; each rail: pairs_starved
    7: {Report: ((2, 0),)},  # each rank: work
    10: {Report: ((2, 0),)},  # each rank: part
    11: {Report: ((2, 0),)},  # each rank: cover
}
"""By the version that added them: a field of a message, which is a list, and what each of its items has got at its
end."""
_GROWN: dict[int, dict[type, tuple[Any, ...]]] = {
    6: {Evidence: ("", 0)},  # operation, waited_ms
}
"""By the version that added them: what a message itself has got at its end."""


def renewed(version: int, kind: type, row: list[Any], now: int) -> list[Any]:
    """The fields of a message that was written by `version`, as version `now` would have written them."""
    row = list(row)
    for later in range(version + 1, now + 1):
        for index, value in _ADDED.get(later, {}).get(kind, ()):
            if index < len(row) and type(row[index]) is list:
                row[index] = [[*item, value] if type(item) is list else item for item in row[index]]
        row += _GROWN.get(later, {}).get(kind, ())
    return row
