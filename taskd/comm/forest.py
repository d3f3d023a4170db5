"""The groups that others have and a newcomer has not made yet.

A group that a script makes late, in its third step say, does not stand in the record of a rank's set-up. So a newcomer
lacks it when the others give all of their groups a new inner one, and they would wait for it there. Each rank therefore
tells in the store of the repair which groups it has; a newcomer makes those that it is a member of ahead, and hands
them out when its script comes to make them (guard.make_ahead). Groups on devices are left alone.

It does NOT make sure that the script ever comes to that: one that makes a group in step 3 and only there has none in
the process that begins at step 7.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from taskd import _c10d
from taskd.comm import guard
from taskd.errors import BackendError


def tell(store: Any, epoch: int, rank: int) -> None:
    """Say which groups this rank has."""
    found = [
        [one.members, one.ordinal, one.backend, one.timeout.total_seconds()]
        for one in _c10d.live_guards()
        if not one.stream_ordered
    ]
    store.set(_key(epoch, rank), json.dumps(found))


def complete(store: Any, epoch: int, rank: int, world_size: int, within: timedelta) -> list[str]:
    """Make what this rank lacks of what others have told, in their order; the identities. Raises BackendError."""
    others = [_key(epoch, other) for other in range(world_size) if other != rank]
    try:
        store.wait(others, within)
        told = [json.loads(store.get(key)) for key in others]
    except RuntimeError as error:
        raise BackendError(f"the other ranks have not said which groups they have: {error}") from None
    made = []
    for members, ordinal, backend, seconds in (group for groups in told for group in groups):
        if rank in members:
            made.append(guard.make_ahead(members, ordinal, backend, timedelta(seconds=seconds), rank))
    return [identity for identity in made if identity]


def _key(epoch: int, rank: int) -> str:
    return f"forest/epoch{epoch}/{rank}"
