"""The values of the job's store, and the operations on them that are done at once.

An operation does what torch's HashStore and TCPStore agree on. The number and the size of the values are limited. An
operation that exceeds a limit is refused with a sentence. Changed values and new keys are noted, for the file and for
the waits.

It does NOT wait for keys (store_waits.py), and it knows no epochs and no clients (store.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from taskd.core import limits
from taskd.core.messages import StoreAsk
from taskd.core.types import StoreOperation as Op

_NUMBER = re.compile(rb"\s*[+-]?\d+")
_SHOWN_BYTES = 100


class Refused(Exception):
    """An operation is refused; the text gives the reason. Never leaves the store."""


class Contents:
    """All keys and values."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.size_bytes = 0
        self._changed: dict[bytes, bytes | None] = {}
        self._came: list[bytes] = []

    def load(self, values: Iterable[tuple[bytes, bytes]]) -> None:
        """Load the values that an earlier manager of the job has kept."""
        for key, value in values:
            self.values[key] = value
            self.size_bytes += _cost(key, value)

    def take_changed(self) -> dict[bytes, bytes | None]:
        """The values that have changed since the last call; None: the key is gone."""
        changed, self._changed = self._changed, {}
        return changed

    def take_came(self) -> list[bytes]:
        """The keys that were added since the last call; some may be deleted again."""
        came, self._came = self._came, []
        return came

    def do(self, ask: StoreAsk) -> tuple[int, tuple[bytes, ...]]:
        """Carry out one operation that does not wait; returns its amount and items. Raises Refused."""
        return _OPERATIONS[ask.operation](self, ask)

    # ---- the operations ---------------------------------------------------------------------------------------

    def _set(self, ask: StoreAsk) -> tuple[int, tuple[bytes, ...]]:
        self.put(*ask.items)
        return 0, ()

    def _multi_set(self, ask: StoreAsk) -> tuple[int, tuple[bytes, ...]]:
        pairs = dict(zip(ask.items[::2], ask.items[1::2], strict=True))
        self._make_room(pairs)  # set all pairs or none
        for key, value in pairs.items():
            self.put(key, value)
        return 0, ()

    def _add(self, ask: StoreAsk) -> tuple[int, tuple[bytes, ...]]:
        (key,) = ask.items
        before = _NUMBER.match(self.values.get(key, b"0"))
        if before is None or len(before[0]) > _SHOWN_BYTES:
            raise Refused(f"{shown(key)} holds no number, so nothing can be added to it")
        total = int(before[0]) + ask.amount
        if not -(2**63) <= total < 2**63:
            raise Refused(f"{shown(key)} would become {total}, more than 64 bits can hold")
        self.put(key, str(total).encode())
        return total, ()

    def _check_keys(self, ask: StoreAsk) -> tuple[int, tuple[bytes, ...]]:
        return int(all(key in self.values for key in ask.items)), ()

    def _delete(self, ask: StoreAsk) -> tuple[int, tuple[bytes, ...]]:
        (key,) = ask.items
        there = key in self.values
        self.put(key, None)
        return int(there), ()

    def _count(self, ask: StoreAsk) -> tuple[int, tuple[bytes, ...]]:
        return len(self.values), ()

    def _compare_set(self, ask: StoreAsk) -> tuple[int, tuple[bytes, ...]]:
        key, expected, wanted = ask.items
        if self.values.get(key, b"") == expected:
            self.put(key, wanted)
        # For a missing key, torch's stores return the expected value.
        return 0, (self.values.get(key, expected),)

    def _append(self, ask: StoreAsk) -> tuple[int, tuple[bytes, ...]]:
        key, more = ask.items
        self.put(key, self.values.get(key, b"") + more)
        return 0, ()

    def _list(self, ask: StoreAsk) -> tuple[int, tuple[bytes, ...]]:
        return 0, tuple(self.values)

    # ---- one value --------------------------------------------------------------------------------------------

    def put(self, key: bytes, value: bytes | None) -> None:
        """Change one value; None deletes it. Raises Refused if it does not fit."""
        before = self.values.pop(key, None) if value is None else self.values.get(key)
        if value is not None:
            if len(value) > limits.MAX_STORE_VALUE:
                raise Refused(
                    f"the value of {shown(key)} would have {len(value)} bytes, {limits.MAX_STORE_VALUE} at most: "
                    "keep larger things elsewhere"
                )
            self._make_room({key: value})
            self.values[key] = value
            self.size_bytes += _cost(key, value)
            if before is None:
                self._came.append(key)
        elif before is None:
            return
        if before is not None:
            self.size_bytes -= _cost(key, before)
        self._changed[key] = value

    def _make_room(self, pairs: dict[bytes, bytes]) -> None:
        new = sum(key not in self.values for key in pairs)
        size = self.size_bytes + sum(_cost(key, value) for key, value in pairs.items())
        size -= sum(_cost(key, self.values[key]) for key in pairs if key in self.values)
        if len(self.values) + new > limits.MAX_STORE_KEYS or size > limits.MAX_STORE_BYTES:
            raise Refused(
                f"it is full ({len(self.values)} keys, {self.size_bytes} bytes; {limits.MAX_STORE_KEYS} and "
                f"{limits.MAX_STORE_BYTES} at most): delete keys that are not needed any more"
            )


_OPERATIONS: dict[Op, Callable[[Contents, StoreAsk], tuple[int, tuple[bytes, ...]]]] = {
    Op.SET: Contents._set,
    Op.ADD: Contents._add,
    Op.CHECK: Contents._check_keys,
    Op.DELETE: Contents._delete,
    Op.COUNT: Contents._count,
    Op.COMPARE_SET: Contents._compare_set,
    Op.APPEND: Contents._append,
    Op.MULTI_SET: Contents._multi_set,
    Op.LIST: Contents._list,
}


def _cost(key: bytes, value: bytes) -> int:
    return len(key) + len(value) + limits.STORE_KEY_OVERHEAD


def shown(key: bytes) -> str:
    """A key as text for a message, cut if it is long."""
    text = key[:_SHOWN_BYTES].decode("utf-8", "backslashreplace")
    return text if len(key) <= _SHOWN_BYTES else f"{text}..."
