"""Transition tables of state machines. A module of its own: every machine of the core has a table, all printed alike.

A machine is a list of rows (state x event -> state). Everything else is printed or derived from it. Code asks the table
for the next state instead of assigning one. So a transition that is not in the table fails an assertion at the place
where it happens, and the diagrams in docs/diagrams are always true. What a transition *does* is not here: the machine
does it, next to the place where it asks the table.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Generic, TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class Table(Generic[S, E]):
    """The transitions of one machine. Rows are (from, event, to); `from` and `starts` may be several states at once."""

    def __init__(
        self, name: str, about: str, starts: S | tuple[S, ...], rows: Iterable[tuple[S | tuple[S, ...], E, S]]
    ) -> None:
        self.name = name
        self.about = about
        self.starts: tuple[S, ...] = starts if isinstance(starts, tuple) else (starts,)
        self._next: dict[tuple[S, E], S] = {}
        for sources, event, target in rows:
            for source in sources if isinstance(sources, tuple) else (sources,):
                assert (source, event) not in self._next, f"{name}: two rows for {source.name} and {event.name}"
                self._next[source, event] = target

    def after(self, state: S, event: E) -> S:
        """Return the state that follows. An event without a row here is a bug of ours."""
        key = (state, event)
        assert key in self._next, f"{self.name}: {event.name} cannot happen in {state.name}"
        return self._next[key]

    def allows(self, state: S, event: E) -> bool:
        """Whether there is a row. Call it before `after` if the event comes from outside."""
        return (state, event) in self._next

    def rows(self) -> list[tuple[S, E, S]]:
        """All transitions, in the order of the table."""
        return [(source, event, target) for (source, event), target in self._next.items()]

    def mermaid(self) -> str:
        """The table as a Mermaid state diagram; arrows between the same two states share one line."""
        arrows: dict[tuple[str, str], list[str]] = {}
        for source, event, target in self.rows():
            arrows.setdefault((source.name, target.name), []).append(event.name.lower().replace("_", " "))
        lines = ["stateDiagram-v2", *(f"    [*] --> {start.name}" for start in self.starts)]
        lines += [f"    {source} --> {target}: {', '.join(events)}" for (source, target), events in arrows.items()]
        leaving = {source for source, _ in arrows}
        ends = dict.fromkeys(target for _, target in arrows if target not in leaving)
        lines += [f"    {end} --> [*]" for end in ends]
        return "\n".join(lines) + "\n"
