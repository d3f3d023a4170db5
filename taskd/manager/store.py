"""The job's store: keys and values that every rank may read and change, and the waits for keys that are not there yet.

It replaces torch's own store, which lives in a worker and dies with it. It checks an operation (its form, its epoch)
and carries it out (store_contents.py). A repeated operation is not carried out again (store_answers.py). Otherwise the
operation waits (store_waits.py). The store also says which answers are due now. Waits have no deadline: a client that
waits asks again and again, and gives up by itself.

A key belongs to an epoch if it begins with `epoch<N>/` or contains `/epoch<N>/<n>@`. The guard's meeting places have
the second form, because torch puts prefixes before them. When a newer epoch begins, keys of older epochs are deleted.
Waits for such a key fail at once: the rank that should have set the key may be the dead one. Epoch 0 means that none
was known.

It gets the time as an argument and touches nothing outside. It does NOT know sockets, files (store_file.py) or clients.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from taskd.core import limits
from taskd.core.messages import StoreAnswer, StoreAsk
from taskd.core.types import StoreOperation as Op
from taskd.core.types import StoreStatus as Status
from taskd.manager.store_answers import Answers
from taskd.manager.store_contents import Contents, Refused, shown
from taskd.manager.store_waits import Waits

CHANGING = frozenset({Op.SET, Op.ADD, Op.DELETE, Op.COMPARE_SET, Op.APPEND, Op.MULTI_SET})
WAITING = frozenset({Op.GET, Op.WAIT})
_ITEMS = {Op.SET: 2, Op.ADD: 1, Op.DELETE: 1, Op.COUNT: 0, Op.COMPARE_SET: 3, Op.APPEND: 2, Op.LIST: 0, Op.FORGET: 0}
"""How many items an operation has. All other operations take any number of keys (MULTI_SET: keys and values)."""
_EPOCH = re.compile(rb"(?:^epoch([1-9]\d{0,9})/|/epoch([1-9]\d{0,9})/\d+@)")


@dataclass(frozen=True)
class Due:
    """An answer, and the place from which it was last asked for."""

    place: bytes
    answer: StoreAnswer


@dataclass
class Changes:
    """The changes that a file must record in order to hold the same as the store."""

    values: dict[bytes, bytes | None]  # None: the key is gone
    applied: list[tuple[int, StoreAnswer]]
    settled: dict[int, int]  # by life: answers below this number are not needed any more

    def __bool__(self) -> bool:
        return bool(self.values or self.applied or self.settled)


class Store:
    """The store of one job. Where a method returns `Due`s, these are the answers to send now."""

    def __init__(self) -> None:
        self.contents = Contents()
        self.answers = Answers()
        self.waits = Waits()
        self.epoch = 0

    def load(self, values: Iterable[tuple[bytes, bytes]], applied: Iterable[tuple[int, StoreAnswer]]) -> None:
        """Load the contents that an earlier manager of the job has kept."""
        self.contents.load(values)
        for life, answer in applied:
            self.answers.load(life, answer)

    def take_changes(self) -> Changes:
        """What has changed since the last call."""
        return Changes(self.contents.take_changed(), *self.answers.take_changes())

    def ask(self, now_ns: int, life: int, ask: StoreAsk, place: bytes) -> list[Due]:
        """Carry out one operation. Returns the answers that are due now, including those to other clients' waits."""
        known = self.answers.heard(life, ask.settled)
        if ask.operation is Op.FORGET:
            self.waits.drop(life, ask.amount)
            return []
        if ask.operation in CHANGING:
            if ask.number in known.applied:
                return [Due(place, known.applied[ask.number])]
            if ask.number < known.settled:
                return []  # an old copy of an operation that was answered long ago
        try:
            self._check(ask)
            if ask.operation in WAITING:
                answer = self._wait(now_ns, life, ask, place)
            else:
                amount, items = self.contents.do(ask)
                answer = _done(ask, items, amount)
        except Refused as refusal:
            return [Due(place, _failed(ask.number, refusal))]
        if answer is None:
            return []
        if ask.operation in CHANGING:
            self.answers.keep(life, answer)
        served = self.waits.take_served(self.contents.take_came(), self.contents.values)
        return [Due(place, answer), *(Due(wait.place, self._answered(wait.ask)) for wait in served)]

    def _check(self, ask: StoreAsk) -> None:
        name, items = ask.operation.name.lower(), ask.items
        wanted = _ITEMS.get(ask.operation)
        if wanted is not None and len(items) != wanted:
            raise Refused(f"{name} came with {len(items)} items, it takes {wanted}")
        if ask.operation is Op.MULTI_SET and len(items) % 2:
            raise Refused(f"{name} came with {len(items)} items, it takes a value for each key")
        for key in _keys_of(ask):
            if len(key) > limits.MAX_STORE_KEY:
                raise Refused(
                    f"the key {shown(key)} has {len(key)} bytes, {limits.MAX_STORE_KEY} at most: use a shorter one"
                )
            epoch = _epoch_of(key)
            if epoch and epoch < self.epoch:
                raise Refused(f"epoch {epoch} is over (the job is in epoch {self.epoch}), so is {shown(key)}")

    def _wait(self, now_ns: int, life: int, ask: StoreAsk, place: bytes) -> StoreAnswer | None:
        missing = {key for key in ask.items if key not in self.contents.values}
        if not missing:
            return self._found(ask)
        if ask.amount:
            text = f"wait timeout after 0ms, keys: {', '.join(shown(key) for key in sorted(missing)[:3])}"
            return StoreAnswer(ask.number, Status.TIMED_OUT, 0, (text.encode(),))
        self.waits.add(now_ns, life, ask, place, missing)
        return None

    def _found(self, ask: StoreAsk) -> StoreAnswer:
        """The answer to a GET or WAIT whose keys all exist."""
        return _done(ask, tuple(self.contents.values[key] for key in ask.items) if ask.operation is Op.GET else ())

    def _answered(self, ask: StoreAsk) -> StoreAnswer:
        try:
            return self._found(ask)
        except Refused as refusal:
            return _failed(ask.number, refusal)

    def begin_epoch(self, epoch: int) -> list[Due]:
        """Begin this epoch: keys of older epochs are deleted, and waits for them fail."""
        if epoch <= self.epoch:
            return []
        self.epoch = epoch
        for key in [key for key in self.contents.values if 0 < _epoch_of(key) < epoch]:
            self.contents.put(key, None)
        due = []
        for wait in self.waits.all():
            try:
                self._check(wait.ask)
            except Refused as refusal:
                self.waits.drop(wait.life, wait.ask.number)
                due.append(Due(wait.place, _failed(wait.ask.number, refusal)))
        return due


def _keys_of(ask: StoreAsk) -> tuple[bytes, ...]:
    if ask.operation is Op.MULTI_SET:
        return ask.items[::2]
    return ask.items if ask.operation in (Op.GET, Op.WAIT, Op.CHECK) else ask.items[:1]


def _epoch_of(key: bytes) -> int:
    """The epoch that a key belongs to, 0: none."""
    found = _EPOCH.search(key) if b"epoch" in key else None
    return int(found[1] or found[2]) if found is not None else 0


def _done(ask: StoreAsk, items: tuple[bytes, ...], amount: int = 0) -> StoreAnswer:
    size = sum(map(len, items)) + 5 * len(items)
    if size > limits.MAX_STORE_OPERATION or len(items) > limits.MAX_STORE_ITEMS:
        raise Refused(
            f"{ask.operation.name.lower()} would answer {len(items)} items of {size} bytes, "
            f"{limits.MAX_STORE_ITEMS} of {limits.MAX_STORE_OPERATION} at most: ask for fewer at once"
        )
    return StoreAnswer(ask.number, Status.DONE, amount, items)


def _failed(number: int, why: Refused) -> StoreAnswer:
    return StoreAnswer(number, Status.FAILED, 0, (str(why).encode(),))
