"""Copies of records: what a worker has handed to the kernel arrives, even when it is killed in the next moment.

The keeper's door and the fetch are the real ones; a worker is a process that dies.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from taskd.agent.fetch import Fetch, Fetched
from taskd.core import limits
from taskd.core.messages import RecordsAnswer, RecordsAsk, SetupOffer, SetupPiece, SetupWanted
from taskd.manager.copy_door import CopyDoor
from taskd.manager.records import Records
from taskd.wire import slots
from taskd.worker.copier import Copier
from tests.launched import wait_until

KEY = b"k" * 32


@pytest.fixture
def records() -> Records:
    return Records()


@pytest.fixture
def door(records: Records) -> Iterator[tuple[CopyDoor, int]]:
    listener = socket.create_server(("127.0.0.1", 0))
    door = CopyDoor(listener, KEY, records)
    port = listener.getsockname()[1]
    door.start()
    yield door, port
    door.stop()


def connected(port: int, key: bytes = KEY, incarnation: int = 1, lineage: int = 5) -> Copier:
    copier = Copier("127.0.0.1", port, key, 3, incarnation, lineage)
    copier.start()
    wait_until(lambda: copier.connected, "a connection with the keeper")
    return copier


def kept(door: CopyDoor, records: Records) -> dict[int, tuple[int, bytes]]:
    """The slots of rank 3, as a newcomer would get them."""
    with door.lock:
        door.drain()
        slots_of = records._ranks[3].slots if 3 in records._ranks else {}
        return {occasion: (slot.step, slot.data) for occasion, slot in slots_of.items()}


def offer(records: Records, setup: bytes, lineage: int = 5, incarnation: int = 1) -> None:
    """The agent's part: offer a set-up and send what is wanted."""
    pieces = [setup[at : at + limits.SETUP_PIECE] for at in range(0, len(setup), limits.SETUP_PIECE)]
    known = {hashlib.sha256(piece).digest(): piece for piece in pieces}
    digests = tuple(hashlib.sha256(piece).digest() for piece in pieces)
    while True:
        (wanted,) = records.hear(SetupOffer(3, incarnation, lineage, len(setup), digests))
        assert isinstance(wanted, SetupWanted) and wanted.kept
        if not wanted.digests:
            return
        for digest in wanted.digests:
            assert records.hear(SetupPiece(known[digest])) == []


def _write_and_die(port: int, steps: int, size: int) -> None:
    copier = connected(port)
    for step in range(steps):
        copier.send(0, step, bytes([step % 251]) * size)
        copier.send(1, step, bytes([step % 241 + 1]) * size)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("steps", "size"), [(1, 12_000), (50, 12_000), (3, 1 << 20)])
def test_what_was_written_before_a_kill_arrives(
    door: tuple[CopyDoor, int], records: Records, steps: int, size: int
) -> None:
    worker = multiprocessing.get_context("spawn").Process(target=_write_and_die, args=(door[1], steps, size))
    worker.start()
    worker.join()
    last = steps - 1
    wanted = {0: (last, bytes([last % 251]) * size), 1: (last, bytes([last % 241 + 1]) * size)}
    wait_until(lambda: kept(door[0], records) == wanted, "the last words of a killed worker")


def test_equal_slots_travel_once(door: tuple[CopyDoor, int], records: Records) -> None:
    copier = connected(door[1])
    copier.send(0, 7, b"one")
    copier.send(1, 7, b"one")
    copier.send(0, 8, b"one")
    wait_until(lambda: kept(door[0], records) == {0: (8, b"one"), 1: (7, b"one")}, "both slots")


def test_another_key_is_not_taken(door: tuple[CopyDoor, int], records: Records) -> None:
    copier = connected(door[1], key=b"x" * 32)
    copier.send(0, 1, b"forged")
    good = connected(door[1])
    good.send(0, 2, b"true")
    wait_until(lambda: kept(door[0], records) == {0: (2, b"true")}, "the true one alone")


def test_a_keeper_that_goes_and_comes_back(records: Records) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    first = CopyDoor(listener.dup(), KEY, records)
    first.start()
    copier = connected(listener.getsockname()[1])
    first.stop()
    wait_until(lambda: [copier.send(0, 1, b"lost")] and not copier.connected, "a broken connection")
    second = CopyDoor(listener, KEY, records)
    second.start()
    wait_until(lambda: copier.connected, "another connection")
    copier.send(0, 2, b"again")
    wait_until(lambda: kept(second, records).get(0) == (2, b"again"), "the newer record")
    second.stop()


def test_a_keeper_that_does_not_read_holds_nobody_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        copier = Copier("127.0.0.1", listener.getsockname()[1], KEY, 3, 1, 5)
        copier.start()
        silent, _ = listener.accept()
        silent.sendall(b"c" * 16)
        wait_until(lambda: copier.connected, "a connection")
        began = time.monotonic()
        for step in range(64):
            copier.send(0, step, os.urandom(limits.MAX_COPY))
        assert time.monotonic() - began < 20
        silent.close()


def test_an_older_life_and_another_lineage(door: tuple[CopyDoor, int], records: Records) -> None:
    connected(door[1], incarnation=2).send(0, 9, b"second life")
    wait_until(lambda: kept(door[0], records), "the second life's record")
    connected(door[1], incarnation=1).send(0, 10, b"late word")
    wait_until(lambda: kept(door[0], records) and records.late, "the late word")
    assert kept(door[0], records) == {0: (9, b"second life")}
    connected(door[1], incarnation=3, lineage=6).send(1, 0, b"all start again")
    wait_until(lambda: kept(door[0], records) == {1: (0, b"all start again")}, "nothing of the lineage before")


@pytest.mark.parametrize("size", [16, limits.SETUP_PIECE, 6 * limits.SETUP_PIECE + 5])
def test_records_are_fetched_as_they_were(door: tuple[CopyDoor, int], records: Records, size: int) -> None:
    copier = connected(door[1])
    copier.send(0, 4, b"start")
    copier.send(1, 3, b"forward")
    setup = os.urandom(size)
    offer(records, setup)
    wait_until(lambda: len(kept(door[0], records)) == 2, "both slots")
    fetched = bring(records)
    assert fetched.reason == "" and fetched.incarnation == 1
    record, file = fetched.descriptors
    assert slots.lineage(record) == 5
    assert slots.read(record, 0) == (4, b"start") and slots.read(record, 1) == (3, b"forward")
    assert os.pread(file, size + 1, 0) == setup
    for fd in fetched.descriptors:
        os.close(fd)


def bring(records: Records) -> Fetched:
    """A fetch that speaks with the manager's records without a line between them."""
    fetch = Fetch(3, time.monotonic_ns() + limits.DEADLINE_COPY_NS)
    for _ in range(100):
        for answer in records.hear(fetch.question(time.monotonic_ns())):
            assert isinstance(answer, (RecordsAnswer, SetupPiece))
            fetch.hear(answer)
        if fetch.done is not None:
            return fetch.done
    raise AssertionError("the fetch came to no end")


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda records: None, "was sent no records of rank 3"),
        (lambda records: offer(records, b"setup"), "has no local record of rank 3"),
    ],
)
def test_what_is_missing_is_named(records: Records, prepare: Callable[[Records], None], reason: str) -> None:
    prepare(records)
    (answer,) = records.hear(RecordsAsk(3))
    assert isinstance(answer, RecordsAnswer) and answer.lineage == 0 and reason in answer.reason
    fetched = bring(records)
    assert not fetched.descriptors and reason in fetched.reason
