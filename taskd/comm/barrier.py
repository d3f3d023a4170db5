"""A barrier that knows who is missing: it tells every rank that came which ranks did not, by their global numbers.

In torch's own monitored barrier only rank 0 looks for missing ranks, over the connections that may be the trouble. This
barrier meets in the store in which the groups were made. So it works over every inner group, tells all ranks the same,
and leaves the group as it was. After a failure the ranks that came may meet again.

Failure modes: a rank that comes too late passes alone, because all the others came; torch's barrier does the same. If a
step is given up, the wait ends with StepAbandoned. The barrier decides nothing about the ranks that are missing.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from taskd import _c10d
from taskd.comm import stand_in
from taskd.comm.guard import meeting_store
from taskd.errors import BackendError, UsageError

SLICE = timedelta(milliseconds=200)
"""The store is asked to wait this long at a time. Between two slices signals are served and the mode is checked."""

_turns: Counter[tuple[str, int]] = Counter()
"""How often a group has met in an epoch. A newcomer counts the same, because every repair begins a new epoch."""
os.register_at_fork(after_in_child=_turns.clear)


def monitored_barrier(group: Any = None, timeout: timedelta | None = None) -> None:
    """Return when all ranks of the group have called it. Without a timeout, the group's own one holds.

    Raises BackendError naming the ranks that did not come in time, UsageError if the group is not guarded.
    """
    guard = _guard_of(group or dist.group.WORLD)
    _c10d.control.wait_until_running()
    if _c10d.control.mode == _c10d.Mode.SANDBOX:
        return  # a newcomer's set-up or rehearsal: the others met long ago
    place = (guard.identity, _c10d.control.epoch)
    for past in [one for one in _turns if one[1] < place[1]]:
        del _turns[past]
    _turns[place] += 1
    turn, me, size = _turns[place], guard.rank(), guard.size()
    store = dist.PrefixStore(f"barrier/epoch{place[1]}/{guard.identity}", meeting_store())
    keys = [f"{turn}/{rank}" for rank in range(size)]
    store.set(keys[me], b"")
    allowed = timeout or guard.timeout
    if _all_came(store, keys, time.monotonic() + allowed.total_seconds()):
        # All have come to this turn, so no rank needs the keys of the turn before. A store that cannot delete, or is
        # just going away, keeps a key of a few bytes. That is no reason to fail: the barrier was reached.
        with contextlib.suppress(RuntimeError, NotImplementedError):
            store.delete_key(f"{turn - 1}/{me}")
        return
    missing = [rank for rank, key in zip(guard.members, keys, strict=True) if not store.check([key])]
    if missing:
        raise BackendError(
            f"rank {', '.join(map(str, missing))} of group {guard.identity} did not come to barrier {turn} within "
            f"{allowed.total_seconds():g} s; look at what {'it does' if len(missing) == 1 else 'they do'}."
        )


def _all_came(store: Any, keys: list[str], until_s: float) -> bool:
    while (left := until_s - time.monotonic()) > 0:
        slice_ends = time.monotonic() + min(left, SLICE.total_seconds()) / 2
        try:
            store.wait(keys, min(SLICE, timedelta(seconds=left)))
            return True
        except RuntimeError:  # every store raises this when the time is up
            if time.monotonic() < slice_ends:
                raise  # a store that is broken says so at once
            _c10d.control.wait_until_running()
    return False


def _guard_of(group: Any) -> _c10d.Guard:
    if not dist.is_initialized() or group == dist.GroupMember.NON_GROUP_MEMBER:
        raise UsageError("this process is in no such group; call monitored_barrier() on the group's members alone.")
    for device in group._device_types:
        backend = stand_in.plain_of(group._get_backend(device))
        if isinstance(backend, _c10d.Guard):
            return backend
    raise UsageError("the group is not guarded; call taskd.guard() after init_process_group, on every rank.")
