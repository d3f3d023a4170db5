"""Which lines are to be looked at. Alone, since reports and rounds call for a look, and the judge ends it.

A job has many lines, and most are well: only an odd one costs more than its report. Nothing of this is needed after a
restart, and it does NOT know what is odd about a line.
"""

from __future__ import annotations

from collections.abc import Iterable

from taskd.core.rails.sightings import Key


class Attention:
    """Lines that are odd, and those of them that are to be looked at now."""

    def __init__(self) -> None:
        self.odd: dict[Key, None] = {}  # in the order in which they became so
        self._now: dict[tuple[str, str], dict[str, None]] = {}  # node and rail, and peers

    def call(self, key: Key) -> None:
        """Look at this line now, and again until it is dismissed."""
        node, name, peer = key
        self.odd[key] = None
        self._now.setdefault((node, name), {})[peer] = None

    def call_all(self, more: Iterable[Key]) -> None:
        """Look at every odd line, and at these."""
        self.odd.update(dict.fromkeys(more))
        for key in self.odd:
            self.call(key)

    def call_rail(self, name: str) -> None:
        """Look at all odd lines of a rail, on all nodes."""
        for key in self.odd:
            if key[1] == name:
                self.call(key)

    def take(self) -> tuple[tuple[str, str], Iterable[str]] | None:
        """The lines of one rail of a node that are to be looked at now: node and rail, and peers. None: no more."""
        if not self._now:
            return None
        where = next(iter(self._now))
        return where, self._now.pop(where)

    def dismiss(self, key: Key) -> None:
        """It is odd no more."""
        del self.odd[key]

    def forget(self, node: str) -> None:
        """A node is gone, with every line from it and to it."""
        self.odd = {key: None for key in self.odd if node not in (key[0], key[2])}
        self._now.clear()

    def restart(self, lines: Iterable[Key]) -> None:
        """The manager was away: these lines, of which something was decided, are looked at until they are seen."""
        self._now.clear()
        self.odd = dict.fromkeys(lines)
