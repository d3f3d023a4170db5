"""The job's store: keys and values that every rank may read and change, and the waits for keys that are not there yet.

It stands where torch's own store would live in a worker and die with it. What an operation means is what torch's
HashStore and TCPStore agree on. An operation is asked again until it is answered, so the answers of those that changed
something are kept until the asking side says that it has them: none is ever applied twice. Waits carry no
deadline: whoever waits asks again and again, and gives up by itself; a wait that nobody repeats is dropped.

A key belongs to an epoch if it begins with `epoch<N>/`, or holds `/epoch<N>/<n>@` as the guard's meeting places do
under the prefixes that torch puts before them. When a newer epoch begins, keys of older ones are deleted and whoever
waits for one is told at once: the rank it waits for may be the one that died. Epoch 0 means that none was known.

Given the time from outside and touching nothing outside. It does NOT know sockets, files (store_file.py) or clients.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from taskd.core import limits
from taskd.core.messages import StoreAnswer, StoreAsk
from taskd.core.types import StoreOperation as Op
from taskd.core.types import StoreStatus as Status

CHANGING = frozenset({Op.SET, Op.ADD, Op.DELETE, Op.COMPARE_SET, Op.APPEND, Op.MULTI_SET})
WAITING = frozenset({Op.GET, Op.WAIT})
_ITEMS = {Op.SET: 2, Op.ADD: 1, Op.DELETE: 1, Op.COUNT: 0, Op.COMPARE_SET: 3, Op.APPEND: 2, Op.LIST: 0, Op.FORGET: 0}
"""How many items an operation has; those that are not here take any number of keys (MULTI_SET: keys and values)."""
_EPOCH = re.compile(rb"(?:^epoch([1-9]\d{0,9})/|/epoch([1-9]\d{0,9})/\d+@)")
_NUMBER = re.compile(rb"\s*[+-]?\d+")
_SHOWN_BYTES = 100


class _Refused(Exception):
    """An operation cannot be done; the text says why. Never leaves this module."""


@dataclass(frozen=True)
class Due:
    """An answer, and the place of who asked last."""

    place: bytes
    answer: StoreAnswer


@dataclass
class _Life:
    """What is remembered of one life of a node's relay."""

    settled: int = 0
    applied: dict[int, StoreAnswer] = field(default_factory=dict)


@dataclass
class _Wait:
    """A GET or WAIT of which some keys are missing."""

    ask: StoreAsk
    place: bytes
    until_ns: int
    missing: set[bytes]


@dataclass
class Changes:
    """What a file must be told so that it holds the same as the store."""

    values: dict[bytes, bytes | None] = field(default_factory=dict)  # None: the key is gone
    applied: list[tuple[int, StoreAnswer]] = field(default_factory=list)
    settled: dict[int, int] = field(default_factory=dict)  # by life: answers below this number are not needed

    def __bool__(self) -> bool:
        return bool(self.values or self.applied or self.settled)


class Store:
    """All values. Every method that returns `Due`s returns what is to be sent now."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.size_bytes = 0
        self.epoch = 0
        self._lives: OrderedDict[int, _Life] = OrderedDict()
        self._waits: dict[tuple[int, int], _Wait] = {}
        self._waits_of: dict[bytes, set[tuple[int, int]]] = {}
        self._look_at_ns = 0
        self._changes = Changes()
        self._came: list[bytes] = []

    def load(self, values: Iterable[tuple[bytes, bytes]], applied: Iterable[tuple[int, StoreAnswer]]) -> None:
        """Take up what an earlier life of the manager knew."""
        for key, value in values:
            self.values[key] = value
            self.size_bytes += _cost(key, value)
        for life, answer in applied:
            self._life(life).applied[answer.number] = answer

    def take_changes(self) -> Changes:
        """What has changed since the last call."""
        changes, self._changes = self._changes, Changes()
        return changes

    @property
    def waits(self) -> int:
        """How many operations wait for a key."""
        return len(self._waits)

    # ---- asking -----------------------------------------------------------------------------------------------

    def ask(self, now_ns: int, life: int, ask: StoreAsk, place: bytes) -> list[Due]:
        """Carry out one operation; the answers that are due by it, those of others' waits included."""
        known = self._life(life)
        self._settle(life, known, ask.settled)
        if ask.operation is Op.FORGET:
            self._drop((life, ask.amount))
            return []
        if ask.operation in CHANGING:
            if ask.number in known.applied:
                return [Due(place, known.applied[ask.number])]
            if ask.number < known.settled:
                return []  # an old copy of what was answered long ago
        try:
            self._check(ask)
            if ask.operation in WAITING:
                answer = self._wait(now_ns, life, ask, place)
            else:
                amount, items = _OPERATIONS[ask.operation](self, ask)
                answer = self._done(ask, items, amount)
        except _Refused as refusal:
            return [Due(place, _failed(ask.number, str(refusal)))]
        if answer is None:
            return []
        if ask.operation in CHANGING:
            known.applied[ask.number] = answer
            self._changes.applied.append((life, answer))
        return [Due(place, answer), *self._served()]

    def _check(self, ask: StoreAsk) -> None:
        name, items = ask.operation.name.lower(), ask.items
        wanted = _ITEMS.get(ask.operation)
        if wanted is not None and len(items) != wanted:
            raise _Refused(f"{name} came with {len(items)} items, it takes {wanted}")
        if ask.operation is Op.MULTI_SET and len(items) % 2:
            raise _Refused(f"{name} came with {len(items)} items, it takes a value for each key")
        for key in _keys_of(ask):
            if len(key) > limits.MAX_STORE_KEY:
                raise _Refused(
                    f"the key {_shown(key)} has {len(key)} bytes, {limits.MAX_STORE_KEY} at most: use a shorter one"
                )
            epoch = _epoch_of(key)
            if epoch and epoch < self.epoch:
                raise _Refused(f"epoch {epoch} is over (the job is in epoch {self.epoch}), so is {_shown(key)}")

    def _wait(self, now_ns: int, life: int, ask: StoreAsk, place: bytes) -> StoreAnswer | None:
        missing = {key for key in ask.items if key not in self.values}
        if not missing:
            return self._found(ask)
        if ask.amount:
            text = f"wait timeout after 0ms, keys: {', '.join(_shown(key) for key in sorted(missing)[:3])}"
            return StoreAnswer(ask.number, Status.TIMED_OUT, 0, (text.encode(),))
        mark = (life, ask.number)
        self._drop(mark)
        if not self._waits:
            self._look_at_ns = now_ns + limits.STORE_LEASE_NS
        self._waits[mark] = _Wait(ask, place, now_ns + limits.STORE_LEASE_NS, missing)
        for key in missing:
            self._waits_of.setdefault(key, set()).add(mark)
        return None

    def _found(self, ask: StoreAsk) -> StoreAnswer:
        return self._done(ask, tuple(self.values[key] for key in ask.items) if ask.operation is Op.GET else ())

    def _done(self, ask: StoreAsk, items: tuple[bytes, ...], amount: int = 0) -> StoreAnswer:
        size = sum(map(len, items)) + 5 * len(items)
        if size > limits.MAX_STORE_OPERATION or len(items) > limits.MAX_STORE_ITEMS:
            raise _Refused(
                f"{ask.operation.name.lower()} would answer {len(items)} items of {size} bytes, "
                f"{limits.MAX_STORE_ITEMS} of {limits.MAX_STORE_OPERATION} at most: ask for fewer at once"
            )
        return StoreAnswer(ask.number, Status.DONE, amount, items)

    def _served(self) -> list[Due]:
        """Answers to the waits whose last missing key has come."""
        came, self._came = self._came, []
        due: list[Due] = []
        for key in came:
            for mark in sorted(self._waits_of.pop(key, ())):
                wait = self._waits[mark]
                wait.missing.discard(key)
                if wait.missing:
                    continue
                # What came first may be gone again by now.
                wait.missing = {wanted for wanted in wait.ask.items if wanted not in self.values}
                for wanted in wait.missing:
                    self._waits_of.setdefault(wanted, set()).add(mark)
                if not wait.missing:
                    del self._waits[mark]
                    due.append(Due(wait.place, self._answered(wait.ask)))
        return due

    def _answered(self, ask: StoreAsk) -> StoreAnswer:
        try:
            return self._found(ask)
        except _Refused as refusal:
            return _failed(ask.number, str(refusal))

    def _drop(self, mark: tuple[int, int]) -> _Wait | None:
        wait = self._waits.pop(mark, None)
        for key in wait.missing if wait is not None else ():
            marks = self._waits_of[key]
            marks.discard(mark)
            if not marks:
                del self._waits_of[key]
        return wait

    # ---- time and epochs --------------------------------------------------------------------------------------

    def begin_epoch(self, epoch: int) -> list[Due]:
        """From now on this is the job's epoch: what belongs to older ones is deleted, their waits fail."""
        if epoch <= self.epoch:
            return []
        self.epoch = epoch
        for key in [key for key in self.values if 0 < _epoch_of(key) < epoch]:
            self._put(key, None)
        due = []
        for mark, wait in list(self._waits.items()):
            try:
                self._check(wait.ask)
            except _Refused as refusal:
                self._drop(mark)
                due.append(Due(wait.place, _failed(wait.ask.number, str(refusal))))
        return due

    def next_deadline(self) -> int | None:
        """When `expire` is to be called at the latest."""
        return self._look_at_ns if self._waits else None

    def expire(self, now_ns: int) -> None:
        """Drop the waits that nobody has repeated for long."""
        if not self._waits or now_ns < self._look_at_ns:
            return
        for mark in [mark for mark, wait in self._waits.items() if wait.until_ns <= now_ns]:
            self._drop(mark)
        self._look_at_ns = min((wait.until_ns for wait in self._waits.values()), default=0)

    def _life(self, life: int) -> _Life:
        known = self._lives.get(life)
        if known is None:
            known = self._lives[life] = _Life()
            if len(self._lives) > limits.MAX_STORE_LIVES:
                gone, _ = self._lives.popitem(last=False)
                self._changes.settled[gone] = 2**63 - 1
        self._lives.move_to_end(life)
        return known

    def _settle(self, life: int, known: _Life, settled: int) -> None:
        if settled <= known.settled:
            return
        known.settled = settled
        old = [number for number in known.applied if number < settled]
        for number in old:
            del known.applied[number]
        if old:
            self._changes.settled[life] = settled

    # ---- the operations that do not wait ----------------------------------------------------------------------

    def _set(self, ask: StoreAsk) -> tuple[int, tuple[bytes, ...]]:
        self._put(*ask.items)
        return 0, ()

    def _multi_set(self, ask: StoreAsk) -> tuple[int, tuple[bytes, ...]]:
        pairs = dict(zip(ask.items[::2], ask.items[1::2], strict=True))
        self._make_room(pairs)  # for all of them or none
        for key, value in pairs.items():
            self._put(key, value)
        return 0, ()

    def _add(self, ask: StoreAsk) -> tuple[int, tuple[bytes, ...]]:
        (key,) = ask.items
        before = _NUMBER.match(self.values.get(key, b"0"))
        if before is None or len(before[0]) > _SHOWN_BYTES:
            raise _Refused(f"{_shown(key)} holds no number, so nothing can be added to it")
        total = int(before[0]) + ask.amount
        if not -(2**63) <= total < 2**63:
            raise _Refused(f"{_shown(key)} would become {total}, more than 64 bits can hold")
        self._put(key, str(total).encode())
        return total, ()

    def _check_keys(self, ask: StoreAsk) -> tuple[int, tuple[bytes, ...]]:
        return int(all(key in self.values for key in ask.items)), ()

    def _delete(self, ask: StoreAsk) -> tuple[int, tuple[bytes, ...]]:
        (key,) = ask.items
        there = key in self.values
        self._put(key, None)
        return int(there), ()

    def _count(self, ask: StoreAsk) -> tuple[int, tuple[bytes, ...]]:
        return len(self.values), ()

    def _compare_set(self, ask: StoreAsk) -> tuple[int, tuple[bytes, ...]]:
        key, expected, wanted = ask.items
        if self.values.get(key, b"") == expected:
            self._put(key, wanted)
        # torch's stores answer for a key that is not there with what was expected of it.
        return 0, (self.values.get(key, expected),)

    def _append(self, ask: StoreAsk) -> tuple[int, tuple[bytes, ...]]:
        key, more = ask.items
        self._put(key, self.values.get(key, b"") + more)
        return 0, ()

    def _list(self, ask: StoreAsk) -> tuple[int, tuple[bytes, ...]]:
        return 0, tuple(self.values)

    def _put(self, key: bytes, value: bytes | None) -> None:
        before = self.values.pop(key, None) if value is None else self.values.get(key)
        if value is not None:
            if len(value) > limits.MAX_STORE_VALUE:
                raise _Refused(
                    f"the value of {_shown(key)} would have {len(value)} bytes, {limits.MAX_STORE_VALUE} at most: "
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
        self._changes.values[key] = value

    def _make_room(self, pairs: dict[bytes, bytes]) -> None:
        new = sum(key not in self.values for key in pairs)
        size = self.size_bytes + sum(_cost(key, value) for key, value in pairs.items())
        size -= sum(_cost(key, self.values[key]) for key in pairs if key in self.values)
        if len(self.values) + new > limits.MAX_STORE_KEYS or size > limits.MAX_STORE_BYTES:
            raise _Refused(
                f"it is full ({len(self.values)} keys, {self.size_bytes} bytes; {limits.MAX_STORE_KEYS} and "
                f"{limits.MAX_STORE_BYTES} at most): delete keys that are not needed any more"
            )


_OPERATIONS: dict[Op, Callable[[Store, StoreAsk], tuple[int, tuple[bytes, ...]]]] = {
    Op.SET: Store._set,
    Op.ADD: Store._add,
    Op.CHECK: Store._check_keys,
    Op.DELETE: Store._delete,
    Op.COUNT: Store._count,
    Op.COMPARE_SET: Store._compare_set,
    Op.APPEND: Store._append,
    Op.MULTI_SET: Store._multi_set,
    Op.LIST: Store._list,
}


def _keys_of(ask: StoreAsk) -> tuple[bytes, ...]:
    if ask.operation is Op.MULTI_SET:
        return ask.items[::2]
    return ask.items if ask.operation in (Op.GET, Op.WAIT, Op.CHECK) else ask.items[:1]


def _epoch_of(key: bytes) -> int:
    """The epoch that a key belongs to, 0: none."""
    found = _EPOCH.search(key) if b"epoch" in key else None
    return int(found[1] or found[2]) if found is not None else 0


def _cost(key: bytes, value: bytes) -> int:
    return len(key) + len(value) + limits.STORE_KEY_OVERHEAD


def _failed(number: int, text: str) -> StoreAnswer:
    return StoreAnswer(number, Status.FAILED, 0, (text.encode(),))


def _shown(key: bytes) -> str:
    text = key[:_SHOWN_BYTES].decode("utf-8", "backslashreplace")
    return text if len(key) <= _SHOWN_BYTES else f"{text}..."
