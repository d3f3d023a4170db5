"""A group's meeting at any size: what its members ask of the job's store, and how long the store is busy with that.

Each member runs the real code of a process (comm/agreement.py) on a store object of its own. Its operations go to the
manager's real store, as the messages that an agent would send. One process cannot have thousands of members that wait
at the same time. So a member that would have to wait is interrupted. When the manager answers its wait, the member runs
again from the beginning and gets the answers that it has had before. Each operation is timed once, from the bytes of
the question to the bytes of the answer, because all operations pass through one thread of the manager.

Not timed: the members' own work, which thousands of processes do at the same time, sockets, and their encryption.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from taskd.comm import agreement
from taskd.core.messages import StoreAsk
from taskd.core.types import StoreOperation as Op
from taskd.core.types import StoreStatus as Status
from taskd.manager.store import Due
from taskd.manager.store_desk import StoreDesk
from taskd.wire.codec import Envelope, WireError, decode, encode

PER_NODE = 8
"""The number of members that share an agent. Their operations go over the agent's connection to the manager."""
ENDPOINT = b"\x93\xb0%016d\xa8rank %04d\xa5n%04d\x92\x95\xa3red\xac10.%03d.%03d.1\xcd\x75\x30\x18\xa0"
ENDPOINT += b"\x95\xa4blue\xac10.%03d.%03d.2\xcd\x75\x31\x18\xa0"
"""An endpoint that is as long as that of a process with two rails."""
_NOBODY = Envelope("bench", "n", 1, 1)


class _Waits(BaseException):
    """The member has to wait here. This exception never leaves this module."""


class Meeting:
    """One meeting of this many ranks. `busy_s`: how long the manager worked for it. `asked`: the number of operations.
    `keys`: the number of their items."""

    def __init__(self, desk: StoreDesk, prefix: str, size: int) -> None:
        self.busy_s = 0.0
        self.asked = self.keys = 0
        self._desk = desk
        self._members = [_Member(self, rank, prefix) for rank in range(size)]
        self._of_place = {member.place: member for member in self._members}
        self._numbers: dict[int, int] = {}
        self._size = size
        self._ready: list[_Member] = []

    def hold(self) -> None:
        """Let all ranks come, one after the other, until each one knows where all are."""
        for member in self._members:
            self._run(member)
            while self._ready:
                self._run(self._ready.pop())
        began = time.perf_counter()
        self._desk.commit()
        self.busy_s += time.perf_counter() - began
        assert all(len(member.found) == self._size for member in self._members), "a rank has not met the others"

    def _run(self, member: _Member) -> None:
        try:
            member.meet(range(self._size))
        except _Waits:
            return

    def ask(self, member: _Member, operation: Op, amount: int, items: Sequence[bytes]) -> Any:
        """Do one operation of a member. Raises _Waits if it is not answered yet."""
        life = 1 + member.rank // PER_NODE
        number = self._numbers[life] = self._numbers.get(life, 0) + 1
        question = encode(StoreAsk(number, 0, operation, amount, tuple(items)), _NOBODY)
        began = time.perf_counter()
        found = decode(question)
        assert not isinstance(found, WireError) and isinstance(found[1], StoreAsk), found
        due = self._desk.ask(1, life, found[1], member.place)
        for one in due:
            encode(one.answer, _NOBODY)
        if self.asked % 1_000 == 0:
            self._desk.commit()
        self.busy_s += time.perf_counter() - began
        self.asked += 1
        self.keys += len(items) if operation in (Op.GET, Op.WAIT, Op.CHECK) else 1
        return self._deliver(member, due)

    def _deliver(self, asker: _Member, due: list[Due]) -> Any:
        """Give each answer to the member that it belongs to; return the answer for `asker`."""
        for one in due:
            assert one.answer.status is Status.DONE, one.answer
            member = self._of_place[one.place]
            member.answers.append(one.answer)
            if member is not asker:
                self._ready.append(member)
        if due and due[0].place == asker.place:
            return asker.answers[-1]
        raise _Waits


class _Member:
    """One rank, which is also its own store, with the methods of c10d's stores."""

    def __init__(self, meeting: Meeting, rank: int, prefix: str) -> None:
        self.rank = rank
        self.place = b"%d" % rank
        self.answers: list[Any] = []  # the answers to its operations, in order
        self.found: Sequence[bytes] = ()
        self._meeting = meeting
        self._prefix = prefix
        self._at = 0

    def meet(self, members: Sequence[int]) -> None:
        """Run the meeting from the beginning, with the answers that this member has had."""
        self._at = 0
        rank, node = self.rank, self.rank // PER_NODE
        numbers = (7919 * rank, rank, node, node // 256, node % 256, node // 256, node % 256)
        self.found = agreement.exchange(self, rank, members, "rail", ENDPOINT % numbers, timedelta(seconds=300))

    def _ask(self, operation: Op, amount: int, items: Sequence[bytes]) -> Any:
        self._at += 1
        if self._at <= len(self.answers):
            return self.answers[self._at - 1]
        return self._meeting.ask(self, operation, amount, items)

    def _key(self, key: str) -> bytes:
        return f"{self._prefix}/{key}".encode()

    def has_extended_api(self) -> bool:
        return True

    def set(self, key: str, value: bytes) -> None:
        self._ask(Op.SET, 0, (self._key(key), value))

    def append(self, key: str, value: bytes) -> None:
        self._ask(Op.APPEND, 0, (self._key(key), value))

    def add(self, key: str, amount: int) -> int:
        return int(self._ask(Op.ADD, amount, (self._key(key),)).amount)

    def wait(self, keys: Sequence[str], _timeout: timedelta) -> None:
        self._ask(Op.WAIT, 0, [self._key(key) for key in keys])

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._ask(Op.CHECK, 0, [self._key(key) for key in keys]).amount)

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return list(self._ask(Op.GET, 0, [self._key(key) for key in keys]).items)
