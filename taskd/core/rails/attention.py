"""The list of lines that need a look. A module of its own: reports and rounds add lines, and the judge removes them.

A job has many lines, and most of them are well. Only an odd line costs more than its report. Nothing of this is needed
after a restart. The module does NOT know what is odd about a line.
"""

from __future__ import annotations

from collections.abc import Iterable

from taskd.core.rails.sightings import Key


class Attention:
    """The odd lines, and those of them that need a look now."""

    def __init__(self) -> None:
        self.odd: dict[Key, None] = {}  # in the order in which they became odd
        self._now: dict[tuple[str, str], dict[str, None]] = {}  # by node and rail: the peers

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
        """Take the lines of one rail of one node that need a look: node and rail, and the peers. None: no more."""
        if not self._now:
            return None
        where = next(iter(self._now))
        return where, self._now.pop(where)

    def dismiss(self, key: Key) -> None:
        """The line is not odd any more."""
        del self.odd[key]

    def forget(self, node: str) -> None:
        """A node is gone. Forget every line from it and to it."""
        self.odd = {key: None for key in self.odd if node not in (key[0], key[2])}
        self._now.clear()

    def restart(self, lines: Iterable[Key]) -> None:
        """The manager was restarted. `lines`: lines with a decision. Look at them until they are reported."""
        self._now.clear()
        self.odd = dict.fromkeys(lines)
