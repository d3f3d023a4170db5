"""What the members of a group on the CPU tell each other before they connect: their transport, and where each one is.

Ranks with different transports would wait for each other until the group's timeout. All ranks would also wait that long
for a rank that has no rail. So each member says which transport it uses, or why it cannot come. A member that reads a
contradiction names it in its error. Nothing here or elsewhere lets a rank take another transport than the one that was
set, because the other ranks could not follow it.

This module does not choose a transport, and it does not connect.

All words pass through one store, so each member may cost it only a constant number of operations, whatever the group's
size. A member adds its word to those of its part of the group, and adds one to a count. The last member puts all words
together and writes them under one key. The others wait for that key. If the store cannot append, each member is a part
of its own. A member that gave up may come again and is then counted once more. So the count only says when to look, and
the words say whether all members are there.
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
"""Store key, followed by the number of a part of the group: the transport and the place of each of its members."""
CAME_KEY = "taskd/inner/came"
"""Store key: how many members have added their word."""
ALL_KEY = "taskd/inner/all"
"""Store key: the first piece of all words. The other pieces are below it, by the count when they were put together."""
HEARD_KEY = "taskd/inner/heard"
"""Store key: how many members know that there will be no group. Once all know it, a key below this one is set."""
DECLINED = b"declined"
PART = 128
"""The number of members whose words share one key: a store limits the size of a value."""
MOST_BYTES = 4_096
"""The largest size of one member's word."""
PIECE = 512 << 10
"""The largest size of one piece of all words, which is under one key."""
SLICE_S = 1.0
"""The store is asked to wait this long at a time; between two slices signals are served."""
FAREWELL_S = 2.0
"""How long a member waits for the others before it raises: its process may serve the store that tells them the same."""
_HEAD = struct.Struct("<II")
"""The header of a word: the member's rank in the group, and how many bytes follow."""
_PIECES = struct.Struct("<QII")
"""The header of the first piece: the count when the words were put together, how many pieces there are, and how many
bytes all pieces have when unpacked."""


def exchange(store: Any, rank: int, members: Sequence[int], over: str, where: bytes, timeout: timedelta) -> list[bytes]:
    """Return what every member gives, in the order of ranks, once all have come and all use the same transport.

    Raises BackendError. It names the ranks that did not come, the ranks that cannot come, or each rank's transport.
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
    """Tell the others why this rank cannot come, if the body raises."""
    try:
        yield
    except Exception as error:
        with contextlib.suppress(RuntimeError):  # if the store is gone, the others have noticed it already
            _say(store, rank, size, (DECLINED + b"\0" + str(error).encode())[:MOST_BYTES])
        _let_others_hear(store, size)
        raise


# ---- what all say -----------------------------------------------------------------------------------------------


def _say(store: Any, rank: int, size: int, word: bytes) -> None:
    """Add this member's word to the others'; the last member puts all words together."""
    assert len(word) <= MOST_BYTES, f"{len(word)} bytes to say where rank {rank} is"
    if store.has_extended_api():
        store.append(f"{KEY}/{rank // PART}", _framed(rank, word))
    else:
        store.set(f"{KEY}/{rank}", _framed(rank, word))
    came = store.add(CAME_KEY, 1)
    if came >= size:
        _put_together(store, size, came)


def _put_together(store: Any, size: int, came: int) -> None:
    """Put all words together under one key. If a member has yet to come, do nothing: that member does it later."""
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
    """Return what the last member has put together."""
    first = bytes(store.get(ALL_KEY))
    came, count, length = _PIECES.unpack_from(first)
    rest = _values(store, [f"{ALL_KEY}/{came}/{at}" for at in range(1, count)]) if count > 1 else []
    if not 0 < length <= size * (MOST_BYTES + _HEAD.size):
        raise BackendError(f"the members are said to have told {length} bytes, which cannot be")
    return zlib.decompressobj().decompress(b"".join([first[_PIECES.size :], *rest]), length)


def _words(data: bytes) -> dict[int, bytes]:
    """The word of each member in these bytes, by the member's rank."""
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
        except RuntimeError as error:  # every store raises this when the time is up
            if left > SLICE_S and time.monotonic() - begun >= slice_s / 2:
                continue
            raise BackendError(
                f"rank {_missing(store, members)} did not come within {timeout.total_seconds():g} s ({error}); check "
                "that every rank runs, and under taskd"
            ) from error


def _missing(store: Any, members: Sequence[int]) -> str:
    """Name the ranks that have said nothing so far."""
    said: dict[int, bytes] = {}
    for name in _part_names(store, len(members)):
        if store.check([name]):
            said |= _words(bytes(store.get(name)))
    return ", ".join(str(member) for rank, member in enumerate(members) if rank not in said) or "?"


def _contradiction(members: Sequence[int], overs: list[bytes], wheres: list[bytes]) -> str:
    """The reason why there can be no group; empty if there can be one."""
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
