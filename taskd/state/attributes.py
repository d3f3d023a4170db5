"""Plain attributes of optimizers: numbers that a script's own optimizer counts beside its state.

An update moves them like the state, in the same way on all ranks. So they are put back when a step is given up, and a
rank that takes the state of another rank takes them, too.

Failure modes: an attribute is a rank's own (its number, a seed, a path): its set-up differs, so it is left; it was or
became a tensor, a list or an object on one side: so it is left there, and never deleted. *Not kept:* what is not plain
(a proof finds a rank that went wrong by it), and what is set up equal on all ranks and moves differently on each: a
clock, or a rank's number that the first update asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PLAIN = (bool, int, float, str, type(None))
Space = dict[str, Any]
Told = dict[str, list[Space]]
"""By the name of the owner: its plain attributes at its set-up, and those now."""


@dataclass(slots=True, frozen=True)
class Own:
    """The attributes of one object at one moment."""

    plain: Space
    names: frozenset[str]
    """The names of all attributes."""


class Attributes:
    """The attributes of some objects, by name."""

    def __init__(self, owners: Mapping[str, Any]) -> None:
        self._owners = owners
        self._set_up: dict[str, Own] = {}

    def look(self) -> None:
        """A loop begins: note the set-up of each object that is new."""
        for name, owner in self._owners.items():
            if name not in self._set_up:
                self._set_up[name] = _own(owner)

    def note(self) -> dict[str, Own]:
        """Return all attributes as they are now."""
        return {name: _own(owner) for name, owner in self._owners.items()}

    def put_back(self, noted: dict[str, Own]) -> None:
        """Set the attributes back to what this rank has noted. Plain attributes that are new are deleted."""
        for name, before in noted.items():
            space = _space_of(self._owners[name])
            for key in _plain(space).keys() - before.names:
                del space[key]
            space.update(before.plain)

    def tell(self) -> Told:
        """Return the attributes for a rank that lacks them."""
        return {name: [own.plain, _plain(_space_of(self._owners[name]))] for name, own in self._set_up.items()}

    def take(self, told: Told) -> None:
        """Take another rank's attributes, if they began equal on both ranks and are plain on both."""
        for name, (set_up, now) in told.items():
            mine = self._set_up.get(name)
            if mine is None:
                continue
            space = _space_of(self._owners[name])
            for key, value in now.items():
                alike = key in set_up and key in mine.plain and _same(set_up[key], mine.plain[key])
                new = key not in set_up and key not in mine.names
                if (alike or new) and (key not in space or type(space[key]) in PLAIN):
                    space[key] = value


def _space_of(owner: Any) -> Space:
    space = getattr(owner, "__dict__", None)
    return space if type(space) is dict else {}


def _plain(space: Space) -> Space:
    return {key: value for key, value in space.items() if type(value) in PLAIN}


def _own(owner: Any) -> Own:
    space = _space_of(owner)
    return Own(_plain(space), frozenset(space))


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and (one == other or one != one)
