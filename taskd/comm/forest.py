"""What ranks tell each other about groups that were made late, so that all have the same groups after a repair.

A group that a script makes during training is not in the record of a rank's set-up. So a newcomer lacks it when the
others give all their groups a new inner group. Of the ranks that gave up a step, some may have made a group in it and
others not. But the next group must be the same on all ranks. Each rank therefore writes what it knows (guard.late) into
the store of the repair. Without such groups this takes a few keys for the whole job. Groups on devices are left alone.

It does NOT make sure that a script ever makes what the others have. A script that makes a group only in step 3 makes
none in the process that begins at step 7.
"""

from __future__ import annotations

import dataclasses
import json
from datetime import timedelta
from typing import Any

from taskd.comm import guard
from taskd.errors import BackendError


def agree(store: Any, epoch: int, rank: int, world_size: int, within: timedelta) -> None:
    """Agree on the late groups, on all ranks of an epoch before they rebuild. Raises BackendError if some are late."""
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
