"""What ranks tell each other of the groups that were made late, so that all have the same ones after a repair.

A group that a script makes in its training does not stand in the record of a rank's set-up. So a newcomer lacks it when
the others give all of their groups a new inner one; ranks that have given up a step may have come to make one or not;
and the next that is made has to be the same on all. Each rank therefore tells in the store of the repair what it knows
(guard.late), in a few keys for the whole job as long as there are no such groups. Groups on devices are left alone.

It does NOT make sure that a script ever comes to make what the others have: one that makes a group in step 3 and only
there has none in the process that begins at step 7.
"""

from __future__ import annotations

import dataclasses
import json
from datetime import timedelta
from typing import Any

from taskd.comm import guard
from taskd.errors import BackendError


def agree(store: Any, epoch: int, rank: int, world_size: int, within: timedelta) -> None:
    """All ranks of an epoch do this before they rebuild. Raises BackendError when not all have told in time."""
    place = f"forest/epoch{epoch}"
    known = guard.late()
    if known is not None:
        at = store.add(f"{place}/late", 1)
        store.set(f"{place}/late/{at}", json.dumps(dataclasses.asdict(known)))
    if store.add(f"{place}/told", 1) == world_size:
        store.set(f"{place}/all", "")
    try:
        store.wait([f"{place}/all"], within)
        count = store.add(f"{place}/late", 0)
        told = [guard.Late(**json.loads(store.get(f"{place}/late/{at}"))) for at in range(1, count + 1)]
    except RuntimeError as error:
        raise BackendError(f"the other ranks have not said which groups they have: {error}") from None
    guard.join_late(told, rank)
