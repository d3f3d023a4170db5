"""Plain attributes of optimizers: what one of the script's own counts beside its state.

An update moves them like the state, on all ranks alike: so they are put back with a step that is given up, and go to a
newcomer with the state. Only what differs from the set-up goes there, for the rest may be a rank's own (its number, a
device). What it does NOT keep: attributes that are containers, tensors or objects; a proof finds what those led astray.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PLAIN = (bool, int, float, str, type(None))
Own = dict[str, dict[str, Any]]
"""By the name of its owner, the attributes."""


class Attributes:
    """Of some objects, by name; only of those that there were when the first loop began."""

    def __init__(self, owners: Mapping[str, Any]) -> None:
        self._owners = owners
        self._set_up: Own | None = None

    def look(self) -> None:
        """The script has set them up, and its first loop begins. What is known already stays."""
        if self._set_up is None:
            self._set_up = self.note()

    def note(self) -> Own:
        """All, as they are now."""
        return {name: _plain_of(owner) for name, owner in self._owners.items()}

    def changed(self) -> Own:
        """What differs from the set-up."""
        then, now = self._set_up or {}, self.note()
        return {
            name: {key: value for key, value in now[name].items() if key not in own or own[key] != value}
            for name, own in then.items()
        }

    def put_back(self, noted: Own) -> None:
        """Let them be as they were noted; what is new since then is no more."""
        for name, before in noted.items():
            own = _space_of(self._owners[name])
            for key in _plain_of(self._owners[name]).keys() - before.keys():
                del own[key]
            own.update(before)

    def adopt(self, changed: Own) -> None:
        """Let them differ from the set-up like this."""
        self.put_back({name: own | changed.get(name, {}) for name, own in (self._set_up or {}).items()})


def _space_of(owner: Any) -> dict[str, Any]:
    own = getattr(owner, "__dict__", None)
    return own if type(own) is dict else {}


def _plain_of(owner: Any) -> dict[str, Any]:
    return {key: value for key, value in _space_of(owner).items() if isinstance(value, PLAIN)}
