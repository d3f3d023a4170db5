"""What the members of a group on the CPU tell each other before they connect: over what, and where each one is.

Ranks over different inner groups would wait for each other until the group's timeout, and so would everybody for a rank
that has no rail. So each says over what it goes, or why it cannot, and whoever reads a contradiction names it. Nothing
here or elsewhere lets a rank take another inner group than the one that was set: what one did by itself, the others
could not follow.

It does not choose, and it does not connect.

All passes through one store, so a member may cost it a constant number of operations, whatever the group's size: it
adds its word to those of its part of the group and counts itself; who finds that it is the last puts all words together
and says so under one key, for which the others wait. Of a store that cannot append, each member is a part of its own.
A member that gave up may come again and is counted once more. So the count only says when it is worth to look, and the
words say whether all are there.
"""

from __future__ import annotations

import contextlib
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from taskd.errors import BackendError

KEY = "taskd/inner/said"
"""Store key, followed by the number of a part of the group: over what its members go and where they are."""
CAME_KEY = "taskd/inner/came"
"""Store key: how many members have said so."""
ALL_KEY = "taskd/inner/all"
"""Store key: the first piece of what all members have said; the others are below it, by who put them together."""
HEARD_KEY = "taskd/inner/heard"
"""Store key: how many members know that there will be no group; and, when all do, a key below it."""
DECLINED = b"declined"
PART = 128
"""Members whose words are under one key: a store bounds what a value may have."""
MOST_BYTES = 4_096
"""Of one member's word."""
PIECE = 512 << 10
"""Of what all have said, under one key."""
SLICE_S = 1.0
"""The store is asked to wait this long at a time; between two slices signals are served."""
FAREWELL_S = 2.0
"""How long one that will raise stays, so that the store, which may be its own, tells the others the same."""
_HEAD = struct.Struct("<II")
"""Of a word: the member's rank in the group, and how many bytes follow."""
_PIECES = struct.Struct("<QII")
"""Before the first piece: what was counted when they were put together, how many pieces there are, and how many bytes
they are of when unpacked."""


def exchange(store: Any, rank: int, members: Sequence[int], over: str, where: bytes, timeout: timedelta) -> list[bytes]:
    """What every member gives, in the order of ranks, once all have come and all go over the same.

    Raises BackendError that names who did not come, who cannot, or who goes over what.
    """
    size = len(members)
    _say(store, rank, size, over.encode() + b"\0" + where)
    _wait(store, members, timeout)
    said = _words(_taken(store, size))
    if len(said) != size:
        raise BackendError(f"{len(said)} ranks of {size} have said where they are, and counted as all")
    parts = [said[other].partition(b"\0") for other in range(size)]
    trouble = _contradiction(members, [part[0] for part in parts], [part[2] for part in parts])
    if trouble:
        _let_others_hear(store, size)
        raise BackendError(trouble)
    return [part[2] for part in parts]


@contextlib.contextmanager
def or_decline(store: Any, rank: int, size: int) -> Iterator[None]:
    """Tells the others why this rank cannot come, if that is what is raised inside."""
    try:
        yield
    except Exception as error:
        with contextlib.suppress(RuntimeError):  # a store that is gone has told them already
            _say(store, rank, size, (DECLINED + b"\0" + str(error).encode())[:MOST_BYTES])
        _let_others_hear(store, size)
        raise


# ---- what all say -----------------------------------------------------------------------------------------------


def _say(store: Any, rank: int, size: int, word: bytes) -> None:
    """Add this member's word to the others'; the last one puts them together."""
    assert len(word) <= MOST_BYTES, f"{len(word)} bytes to say where rank {rank} is"
    if store.has_extended_api():
        store.append(f"{KEY}/{rank // PART}", _framed(rank, word))
    else:
        store.set(f"{KEY}/{rank}", _framed(rank, word))
    came = store.add(CAME_KEY, 1)
    if came >= size:
        _put_together(store, size, came)


def _put_together(store: Any, size: int, came: int) -> None:
    """What all have said, for all; nothing if somebody is still to come, who does it then."""
    names = _part_names(store, size)
    said = _words(b"".join(_values(store, names))) if store.check(names) else {}
    if len(said) < size:
        return
    words = b"".join(_framed(rank, word) for rank, word in said.items())  # the last one of each
    packed = zlib.compress(words, 1)
    pieces = [packed[at : at + PIECE] for at in range(0, len(packed), PIECE)]
    for at, piece in enumerate(pieces[1:], 1):
        store.set(f"{ALL_KEY}/{came}/{at}", piece)
    store.set(ALL_KEY, _PIECES.pack(came, len(pieces), len(words)) + pieces[0])


def _framed(rank: int, word: bytes) -> bytes:
    return _HEAD.pack(rank, len(word)) + word


def _part_names(store: Any, size: int) -> list[str]:
    return [f"{KEY}/{part}" for part in range(-(-size // PART) if store.has_extended_api() else size)]


def _values(store: Any, names: list[str]) -> list[bytes]:
    found = store.multi_get(names) if store.has_extended_api() else [store.get(name) for name in names]
    return [bytes(value) for value in found]


def _taken(store: Any, size: int) -> bytes:
    """What the last one has put together."""
    first = bytes(store.get(ALL_KEY))
    came, count, length = _PIECES.unpack_from(first)
    rest = _values(store, [f"{ALL_KEY}/{came}/{at}" for at in range(1, count)]) if count > 1 else []
    if not 0 < length <= size * (MOST_BYTES + _HEAD.size):
        raise BackendError(f"the members are said to have told {length} bytes, which cannot be")
    return zlib.decompressobj().decompress(b"".join([first[_PIECES.size :], *rest]), length)


def _words(data: bytes) -> dict[int, bytes]:
    """The word of each member in it."""
    found, at = {}, 0
    while at + _HEAD.size <= len(data):
        rank, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size + length
        found[rank] = data[at - length : at]
    return found


def _wait(store: Any, members: Sequence[int], timeout: timedelta) -> None:
    until = time.monotonic() + timeout.total_seconds()
    while True:
        left = until - time.monotonic()
        slice_s = max(0.001, min(SLICE_S, left))
        begun = time.monotonic()
        try:
            store.wait([ALL_KEY], timedelta(seconds=slice_s))
            return
        except RuntimeError as error:  # which every store raises when the time is up
            if left > SLICE_S and time.monotonic() - begun >= slice_s / 2:
                continue
            raise BackendError(
                f"rank {_missing(store, members)} did not come within {timeout.total_seconds():g} s ({error}); check "
                "that every rank runs, and under taskd"
            ) from error


def _missing(store: Any, members: Sequence[int]) -> str:
    """Who has said nothing so far."""
    said: dict[int, bytes] = {}
    for name in _part_names(store, len(members)):
        if store.check([name]):
            said |= _words(bytes(store.get(name)))
    return ", ".join(str(member) for rank, member in enumerate(members) if rank not in said) or "?"


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


def _let_others_hear(store: Any, size: int) -> None:
    with contextlib.suppress(RuntimeError):
        if store.add(HEARD_KEY, 1) >= size:
            store.set(f"{HEARD_KEY}/all", b"")
        store.wait([f"{HEARD_KEY}/all"], timedelta(seconds=FAREWELL_S))
