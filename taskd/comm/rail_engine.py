"""The one rail engine of this process: which rails it has, which of them carry, and how its operations are ended.

rail.py makes the engine and needs torch and taskd._c10d for it. Code that only asks or orders uses this module and
loads neither: cpu.py, and the follower of the manager's orders. It finds no rail until a group has been made.
This module does NOT make the engine or a group.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

from taskd.errors import UsageError
from taskd.nics.choice import Rail

Place = tuple[str | None, str | None]
"""A host name or an interface, to use where no rails are named."""
ENDED = "its process has ended with exit code 0"
"""Words that follow those of rails about a peer that has left."""


class Met:
    """The endpoints of the members of one epoch's groups, from meetings in which all ranks make all groups anew. The
    members of a larger group have met already, so they need not meet for a smaller one. All members know this equally,
    because all make their groups in the same order."""

    def __init__(self) -> None:
        self._epoch = -1
        self._groups: list[dict[int, bytes]] = []

    def endpoints(self, epoch: int, members: Sequence[int]) -> list[bytes] | None:
        """The endpoints of these members, in their order; None: they have to meet."""
        known = self._groups if epoch == self._epoch else []
        return next(([one[rank] for rank in members] for one in known if one.keys() >= {*members}), None)

    def note(self, epoch: int, members: Sequence[int], endpoints: Sequence[bytes]) -> None:
        """Note that these members have met."""
        if epoch != self._epoch:
            self._epoch, self._groups = epoch, []
        self._groups.append(dict(zip(members, endpoints, strict=True)))


class Own:
    """What exists once per process: the engine and what belongs to it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.engine: Any = None
        self.key = b""
        self.place: Place = (None, None)
        self.rails: Sequence[Rail] = ()
        self.out: set[str] = set()  # rails that an order has taken out of use
        self.counts: dict[tuple[int, ...], int] = {}
        self.met = Met()
        self.inherited: list[Any] = []  # a parent's engines, whose threads do not exist here: never destroyed


own = Own()


def _after_fork() -> None:
    global own
    parents = own
    own = Own()
    own.inherited = [*parents.inherited, parents.engine]


os.register_at_fork(after_in_child=_after_fork)


def states() -> tuple[str, ...]:
    """The names of the rails of this process; none before its first group."""
    return tuple(one.name for one in own.rails)


def set_in_use(name: str, in_use: bool) -> None:
    """Let a rail carry nothing new (False), or let it carry again. Raises UsageError for an unknown name."""
    with own.lock:
        if name not in states():
            raise UsageError(f"there is no rail {name}; this process has {', '.join(states()) or 'none yet'}.")
        own.engine.set_rail(name, in_use)
        if in_use:
            own.out.discard(name)
        else:
            own.out.add(name)


def ranks_have_ended(epoch: int, ranks: Sequence[int]) -> None:
    """Wait no longer for what these ranks have not sent: their processes of this epoch have ended with exit code 0."""
    with own.lock:
        engine = own.engine
    for rank in ranks if engine is not None else ():
        engine.hear_of_end(epoch, rank, ENDED)


def end_epochs_before(epoch: int) -> None:
    """End the groups of all epochs before this one; afterwards none of their operations touches a tensor."""
    with own.lock:
        engine = own.engine
    if engine is not None and epoch > 0:
        engine.abort(epoch - 1, f"epoch {epoch} has begun")
