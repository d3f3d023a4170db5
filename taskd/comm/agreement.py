"""What the members of a group on the CPU tell each other before they connect: over what, and where each one is.

Ranks over different inner groups would wait for each other until the group's timeout, and so would everybody for a rank
that has no rail. So each says over what it goes, or why it cannot, and whoever reads a contradiction names it. Nothing
here or elsewhere lets a rank take another inner group than the one that was set: what one did by itself, the others
could not follow.

It does not choose, and it does not connect.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from taskd.errors import BackendError

KEY = "taskd/inner"
"""Store key, followed by the rank in the group: over what this rank goes and where it is, in two parts."""
HEARD_KEY = "taskd/inner/heard"
"""Store key, followed by the rank in the group: it knows that there will be no group."""
DECLINED = b"declined"
SLICE_S = 1.0
"""The store is asked to wait this long at a time; between two slices signals are served."""
FAREWELL_S = 2.0
"""How long one that will raise stays, so that the store, which may be its own, tells the others the same."""


def exchange(store: Any, rank: int, members: Sequence[int], over: str, where: bytes, timeout: timedelta) -> list[bytes]:
    """What every member gives, in the order of ranks, once all have come and all go over the same.

    Raises BackendError that names who did not come, who cannot, or who goes over what.
    """
    store.set(f"{KEY}/{rank}", over.encode() + b"\0" + where)
    names = [f"{KEY}/{other}" for other in range(len(members))]
    _wait(store, names, members, timeout)
    values = store.multi_get(names) if store.has_extended_api() else [store.get(name) for name in names]
    parts = [bytes(value).partition(b"\0") for value in values]
    trouble = _contradiction(members, [part[0] for part in parts], [part[2] for part in parts])
    if trouble:
        _let_others_hear(store, rank, len(members))
        raise BackendError(trouble)
    return [part[2] for part in parts]


@contextlib.contextmanager
def or_decline(store: Any, rank: int, size: int) -> Iterator[None]:
    """Tells the others why this rank cannot come, if that is what is raised inside."""
    try:
        yield
    except Exception as error:
        with contextlib.suppress(RuntimeError):  # a store that is gone has told them already
            store.set(f"{KEY}/{rank}", DECLINED + b"\0" + str(error).encode())
        _let_others_hear(store, rank, size)
        raise


def _wait(store: Any, names: list[str], members: Sequence[int], timeout: timedelta) -> None:
    until = time.monotonic() + timeout.total_seconds()
    while True:
        left = until - time.monotonic()
        slice_s = max(0.001, min(SLICE_S, left))
        begun = time.monotonic()
        try:
            store.wait(names, timedelta(seconds=slice_s))
            return
        except RuntimeError as error:  # which every store raises when the time is up
            if left > SLICE_S and time.monotonic() - begun >= slice_s / 2:
                continue
            missing = [str(members[other]) for other, name in enumerate(names) if not store.check([name])]
            raise BackendError(
                f"rank {', '.join(missing) or '?'} did not come within {timeout.total_seconds():g} s ({error}); check "
                "that every rank runs, and under taskd"
            ) from error


def _contradiction(members: Sequence[int], overs: list[bytes], wheres: list[bytes]) -> str:
    """Why there can be no group; empty: there can."""
    declined = [
        f"rank {member} cannot come: {where.decode(errors='replace')}"
        for member, over, where in zip(members, overs, wheres, strict=True)
        if over == DECLINED
    ]
    if declined:
        return "; ".join(declined)
    if len(set(overs)) == 1:
        return ""
    sides = []
    for over in sorted(set(overs)):
        ranks = ", ".join(str(member) for member, theirs in zip(members, overs, strict=True) if theirs == over)
        sides.append(f"rank {ranks} over {over.decode(errors='replace')}")
    return f"the ranks go over different inner groups, {' and '.join(sides)}; set the same TASKD_INNER on all of them"


def _let_others_hear(store: Any, rank: int, size: int) -> None:
    with contextlib.suppress(RuntimeError):
        store.set(f"{HEARD_KEY}/{rank}", b"")
        store.wait([f"{HEARD_KEY}/{other}" for other in range(size)], timedelta(seconds=FAREWELL_S))
