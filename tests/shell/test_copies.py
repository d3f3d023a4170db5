"""Copies of records: what a worker has handed to the kernel arrives, even if the worker is killed a moment later.

The keeper's door and the fetch are the real ones. A worker is a process that dies.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import Mock

import pytest

from taskd.backup import copy_frame, slots
from taskd.backup.copier import Copier
from taskd.backup.copies import Copies, Place
from taskd.backup.fetch import Fetch, Fetched
from taskd.backup.keeper import Keeper
from taskd.backup.keeper_door import FULL_SECONDS, STRANGERS_MAX, CopyDoor
from taskd.backup.keeper_records import Records
from taskd.backup.slots import Occasion
from taskd.core import limits
from taskd.core.messages import RecordsAnswer, RecordsAsk, SetupOffer, SetupPiece, SetupWanted
from taskd.state.record import Record
from taskd.wire import keys, local, strangers
from taskd.wire.codec import Envelope, encode
from taskd.worker import boot
from tests.launched import wait_until
from tests.patience import PATIENCE_S

KEY = b"k" * 32
JOB_KEY = keys.Key(b"j" * 32, "a test")


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


_copiers: list[Copier] = []


@pytest.fixture(autouse=True)
def copiers_end() -> Iterator[None]:
    """Stop all copiers: otherwise they look for their keepers until the tests end, and find other tests' ports."""
    yield
    for copier in _copiers:
        copier.stop()
    _copiers.clear()


def started(places: list[tuple[str, int]], key: bytes, incarnation: int, lineage: int) -> Copier:
    copier = Copier(places, key, 3, incarnation, lineage)
    copier.start()
    _copiers.append(copier)
    return copier


def connected(port: int, key: bytes = KEY, incarnation: int = 1, lineage: int = 5) -> Copier:
    copier = started([("127.0.0.1", port)], key, incarnation, lineage)
    wait_until(lambda: copier.connected, "a connection with the keeper")
    return copier


def kept(door: CopyDoor, records: Records) -> dict[int, tuple[int, bytes]]:
    """Return the slots of rank 3, as a newcomer would get them."""
    with door.lock:
        door.drain()
        slots_of = records._ranks[3].slots if 3 in records._ranks else {}
        return {occasion: (slot.step, slot.data) for occasion, slot in slots_of.items()}


def offer(records: Records, setup: bytes, lineage: int = 5, incarnation: int = 1) -> None:
    """Do the agent's part: offer a set-up and send the wanted pieces."""
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


@pytest.mark.parametrize(("steps", "size"), [(1, 12_000), (50, 12_000), (3, 1 << 20), (2, 20_000_003)])
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


def test_a_crowd_of_strangers_keeps_no_worker_out(door: tuple[CopyDoor, int], records: Records) -> None:
    """Strangers that send nothing, or an unfinished greeting, cost little; the oldest one has to go."""
    worker = connected(door[1])
    worker.send(0, 1, b"before")
    crowd, files = [], len(os.listdir("/proc/self/fd"))
    try:
        for number in range(4 * STRANGERS_MAX):
            crowd.append(socket.create_connection(("127.0.0.1", door[1])))
            if number % 2:
                with contextlib.suppress(OSError):
                    crowd[-1].send(bytes(copy_frame.GREETING_BYTES - 1))
        late = connected(door[1], incarnation=2)
        late.send(0, 2, b"meanwhile")
        wait_until(lambda: kept(door[0], records) == {0: (2, b"meanwhile")}, "the worker that came last")
        worker.send(0, 3, b"late")
        held = len(os.listdir("/proc/self/fd")) - files - len(crowd)
        assert held <= STRANGERS_MAX + 2
    finally:
        for one in crowd:
            one.close()


FULL = """
import os, resource, socket, sys
from taskd.backup.keeper_door import CopyDoor
from taskd.backup.keeper_records import Records
listener = socket.create_server(("127.0.0.1", 0))
door = CopyDoor(listener, b"k" * 32, Records())
turns, read_all = [0], door._read_all
def counted():
    turns[0] += 1
    return read_all()
door._read_all = counted
door.start()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
while True:
    try:
        taken.append(os.dup(0))
    except OSError:
        break
print(listener.getsockname()[1], flush=True)
sys.stdin.readline()
print(turns[0], flush=True)
for one in taken:
    os.close(one)
sys.stdin.readline()
door.stop()
"""


def test_a_keeper_without_descriptors_does_not_spin_and_goes_on_later() -> None:
    with subprocess.Popen([sys.executable, "-c", FULL], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        port, began = int(process.stdout.readline()), time.monotonic()
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.settimeout(1.0)  # expires: nobody is let in
            with pytest.raises(TimeoutError):
                sock.recv(1)
            process.stdin.write(b"\n")
            process.stdin.flush()
            turns, seconds = int(process.stdout.readline()), time.monotonic() - began
            sock.settimeout(PATIENCE_S)
            assert len(sock.recv(copy_frame.CHALLENGE_BYTES)) == copy_frame.CHALLENGE_BYTES
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert turns <= 3 + 2 * seconds / FULL_SECONDS


def test_a_mistake_of_ours_costs_one_connection(
    door: tuple[CopyDoor, int], records: Records, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker whose record raised an error connects again. Nothing is left of its first connection."""
    good, bad = connected(door[1]), started([("127.0.0.1", door[1])], KEY, 1, 5)
    wait_until(lambda: bad.connected, "a second connection")
    descriptors, take, challenge = len(os.listdir("/proc/self/fd")), records.take, bad._challenge

    def broken(frame: copy_frame.Frame) -> None:
        if frame.data == b"bad":
            raise KeyError("planted")
        take(frame)

    monkeypatch.setattr(records, "take", broken)
    bad.send(0, 6, b"bad")
    wait_until(lambda: "KeyError" in caplog.text, "the error")
    good.send(0, 7, b"good")
    wait_until(lambda: kept(door[0], records) == {0: (7, b"good")}, "the record of the other worker")
    # A worker sees the loss of its connection at its next record, or at the one after it.
    wait_until(lambda: [bad.send(1, 8, b"whole")] and bad.connected and bad._challenge != challenge, "another one")
    wait_until(lambda: [bad.send(1, 9, b"again")] and kept(door[0], records).get(1) == (9, b"again"), "its next record")
    wait_until(lambda: len(os.listdir("/proc/self/fd")) == descriptors, "the end of the connection that broke")
    assert caplog.text.count("a mistake of taskd's") == 1


def test_a_worker_that_cannot_be_let_in_costs_no_descriptor(
    door: tuple[CopyDoor, int], records: Records, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole, left, descriptors = door[0]._selector.register, [1], len(os.listdir("/proc/self/fd"))

    def broken(*words: object) -> object:
        if left:
            raise KeyError(left.pop())
        return whole(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(door[0]._selector, "register", broken)
    with socket.create_connection(("127.0.0.1", door[1])) as sock:
        sock.settimeout(PATIENCE_S)
        assert sock.recv(1) == b""
    wait_until(lambda: len(os.listdir("/proc/self/fd")) == descriptors, "the end of the connection on both sides")
    connected(door[1]).send(0, 1, b"next")
    wait_until(lambda: kept(door[0], records) == {0: (1, b"next")}, "the next worker")
    assert caplog.text.count("a mistake of taskd's") == 1


def test_a_keeper_that_breaks_all_the_time_ends_and_says_so(
    door: tuple[CopyDoor, int], records: Records, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing may spin. Workers then see that their copies are not taken. Copies that were taken can still be had."""
    connected(door[1]).send(0, 1, b"kept")
    wait_until(lambda: kept(door[0], records) == {0: (1, b"kept")}, "a record")
    monkeypatch.setattr(door[0], "_accept", lambda: 1 // 0)
    with socket.create_connection(("127.0.0.1", door[1])) as sock:
        sock.settimeout(PATIENCE_S)
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""
    wait_until(lambda: "by a mistake of its own" in caplog.text, "the sentence")
    worker = next(iter(_copiers))
    wait_until(lambda: [worker.send(0, 2, b"lost")] and not worker.connected, "a broken connection")
    assert kept(door[0], records) == {0: (1, b"kept")}


def test_a_keeper_that_was_never_started_can_be_stopped() -> None:
    Keeper("job", "node", "127.0.0.1", JOB_KEY).stop()


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
        copier = started([("127.0.0.1", listener.getsockname()[1])], KEY, 1, 5)
        silent, _ = listener.accept()
        silent.sendall(b"c" * 16)
        wait_until(lambda: copier.connected, "a connection")
        record = os.urandom(5 << 20)
        for step in range(64):  # a copier that waits for its keeper would hang here
            copier.send(0, step, record)
        silent.close()


def test_what_is_too_large_is_said_and_holds_nobody_up(
    door: tuple[CopyDoor, int], records: Records, caplog: pytest.LogCaptureFixture
) -> None:
    copier = connected(door[1])
    copier.send(0, 4, b"small")
    copier.send(1, 4, bytes(limits.MAX_COPY + 1))
    copier.send(0, 5, bytes(limits.MAX_COPY))
    wait_until(lambda: kept(door[0], records) == {0: (5, bytes(limits.MAX_COPY))}, "the largest that is taken")
    assert f"rank 3 has {limits.MAX_COPY + 1} bytes, at most {limits.MAX_COPY} are copied" in caplog.text


@pytest.mark.parametrize(
    "change",
    [{"step": 8}, {"slot": 1}, {"same": True, "data": b""}, {"lineage": 6}, {"data": bytes(copy_frame.PIECE + 1)}],
)
def test_a_slot_that_is_broken_off_is_no_slot(
    door: tuple[CopyDoor, int], records: Records, change: dict[str, object]
) -> None:
    """A slot that does not go on as it began ends the connection; what was kept before stays."""
    connected(door[1]).send(0, 6, b"before")
    first = copy_frame.Frame(3, 1, 5, 0, 7, 0, False, b"a piece", more=True)
    second = replace(first, **{"number": 1, "more": False, "data": b"another", **change})  # type: ignore[arg-type]
    with socket.create_connection(("127.0.0.1", door[1])) as sock:
        challenge = sock.recv(copy_frame.CHALLENGE_BYTES, socket.MSG_WAITALL)
        sock.sendall(copy_frame.greeting(KEY, challenge))
        for frame in (first, second):
            sock.sendall(copy_frame.pack(KEY, challenge, frame))
        with contextlib.suppress(ConnectionResetError):  # the keeper may not have read all that we sent
            assert sock.recv(1) == b""
    assert kept(door[0], records) == {0: (6, b"before")}


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
    start, forward = os.urandom(size), b"forward"
    copier.send(0, 4, start)
    copier.send(1, 3, forward)
    setup = os.urandom(size)
    offer(records, setup)
    wait_until(lambda: len(kept(door[0], records)) == 2, "both slots")
    fetched = bring(records)
    assert fetched.reason == "" and fetched.incarnation == 1
    record, file = fetched.descriptors
    assert slots.lineage(record) == 5
    assert slots.read(record, 0) == (4, start) and slots.read(record, 1) == (3, forward)
    assert os.pread(file, size + 1, 0) == setup
    for fd in fetched.descriptors:
        os.close(fd)


def test_all_slots_are_fetched(door: tuple[CopyDoor, int], records: Records) -> None:
    """The ledger's slots are fetched, too."""
    copier, wanted = connected(door[1]), {slot: (slot, os.urandom(9)) for slot in range(slots.SLOTS)}
    for slot, (step, data) in wanted.items():
        copier.send(slot, step, data)
    offer(records, b"setup")
    wait_until(lambda: kept(door[0], records) == wanted, "all slots")
    fetched = bring(records)
    assert fetched.reason == ""
    assert {slot: slots.read(fetched.descriptors[0], slot) for slot in wanted} == wanted
    for fd in fetched.descriptors:
        os.close(fd)


def test_only_a_step_says_that_the_set_up_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger is written earlier: a bell at that time would offer digests of only half of the set-up."""
    record, bell, copier = Record.create(), os.eventfd(0, os.EFD_NONBLOCK), Mock()
    monkeypatch.setattr(boot, "Copier", Mock(return_value=copier))
    boot._copy(Mock(copies=[("127.0.0.1", 1)], copies_key="", rank=3, incarnation=1), record, bell)
    record.write_ledger(1, [b"ledger"])
    with pytest.raises(BlockingIOError):
        os.eventfd_read(bell)
    record.write(Occasion.START, 0, [b"start"])
    assert os.eventfd_read(bell) == 1 and copier.send.call_count == 2
    os.close(bell)
    os.close(record.descriptor)


def bring(records: Records) -> Fetched:
    """Run a fetch that speaks with a keeper's records directly, without a connection."""
    fetch = Fetch(3, 1, time.monotonic_ns() + limits.DEADLINE_COPY_NS)
    for _ in range(100):
        for answer in records.hear(fetch.question(time.monotonic_ns())):
            assert isinstance(answer, (RecordsAnswer, SetupPiece))
            assert encode(answer, Envelope("job", "n", 1, 1))  # the answer keeps its bounds
            fetch.hear(answer)
        if fetch.passed:
            fetch.next_after(0, True, "")
        if fetch.done is not None:
            return fetch.done
    raise AssertionError("the fetch came to no end")


class Node:
    """A node with a keeper, which keeps the records of a rank on another node."""

    def __init__(self, name: str) -> None:
        self.keeper = Keeper("job", name, "127.0.0.1", JOB_KEY)
        self.keeper.start()
        self.place = Place("127.0.0.1", self.keeper.records_port, self.keeper.port)


@pytest.fixture
def nodes() -> Iterator[list[Node]]:
    made = [Node("one"), Node("other")]
    yield made
    for node in made:
        node.keeper.stop()


@contextmanager
def life(incarnation: int, places: list[Place], setup: bytes) -> Iterator[None]:
    """One life of a rank on its node. The caller ends it when all of its records are on another node."""
    record, file, bell = slots.make(5), os.memfd_create("setup"), os.eventfd(0)
    os.write(file, setup)
    arrived: list[Fetched] = []
    copies = Copies("job", "ward", JOB_KEY, places, arrived.append)
    copies.start()
    copier = started([place[:2] for place in places], JOB_KEY.copies, incarnation, 5)
    wait_until(lambda: copier.connected, "a connection with a keeper")
    copier.send(0, 10 * incarnation, b"start of %d" % incarnation)
    copies.keep(3, incarnation, record, file, bell)
    os.eventfd_write(bell, 1)
    try:
        yield
    finally:
        copies.stop()
        for fd in (record, file, bell):
            os.close(fd)


def fetched(places: list[Place], last_life: int) -> Fetched:
    """Return what a newcomer's node gets."""
    arrived: list[Fetched] = []
    copies = Copies("job", "heir", JOB_KEY, (), arrived.append)
    copies.start()
    copies.fetch(3, last_life, places)
    wait_until(lambda: arrived, "an end of the fetch")
    copies.stop()
    return arrived[0]


def test_a_keeper_that_is_gone_is_passed_over(nodes: list[Node], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "taskd")
    setup = os.urandom(3 * limits.SETUP_PIECE)
    places = [node.place for node in nodes]
    nodes[0].keeper.stop()
    nodes[0] = Node("one again, elsewhere")
    with life(1, places, setup):
        wait_until(lambda: "rank 3 (incarnation 1) may lose its node" in caplog.text, "copies at the second keeper")
    found = fetched(places, 1)
    assert found.reason == "" and slots.read(found.descriptors[0], 0) == (10, b"start of 1")
    assert os.pread(found.descriptors[1], len(setup) + 1, 0) == setup
    local.close_all(list(found.descriptors))


@pytest.mark.parametrize("last_life", [2, 3], ids=["the last life's", "the last life had none"])
def test_the_newest_life_is_found_wherever_it_is(
    nodes: list[Node], caplog: pytest.LogCaptureFixture, last_life: int
) -> None:
    caplog.set_level("INFO", "taskd")
    for incarnation, node in ((1, nodes[0]), (2, nodes[1])):
        with life(incarnation, [node.place], b"setup"):
            said = f"rank 3 (incarnation {incarnation}) may lose its node"
            wait_until(lambda said=said: said in caplog.text, "copies")  # type: ignore[misc]
    for places in ([nodes[0].place, nodes[1].place], [nodes[1].place, nodes[0].place]):
        found = fetched(places, last_life)
        assert found.reason == "" and found.incarnation == 2
        assert slots.read(found.descriptors[0], 0) == (20, b"start of 2")
        local.close_all(list(found.descriptors))


def test_nobody_has_them(nodes: list[Node]) -> None:
    found = fetched([node.place for node in nodes], 1)
    assert not found.descriptors and "no other node was sent records of rank 3" in found.reason
    assert "no other node was named" in fetched([], 1).reason


def test_who_has_another_key_is_not_let_in(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DEADLINE_COPY_NS", limits.SECOND)
    monkeypatch.setitem(globals(), "JOB_KEY", keys.Key(b"x" * 32, "a test"))
    found = fetched([nodes[0].place], 1)
    assert not found.descriptors and "does not accept this node's key" in found.reason


def test_a_crowd_of_strangers_keeps_no_agent_out(nodes: list[Node], caplog: pytest.LogCaptureFixture) -> None:
    """A keeper's other port: agents ask there for the records of a rank."""
    caplog.set_level("INFO", "taskd")
    with contextlib.ExitStack() as stack, life(1, [nodes[0].place], b"setup"):
        wait_until(lambda: "rank 3 (incarnation 1) may lose its node" in caplog.text, "copies")
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(4 * strangers.STRANGERS_MAX):
            stack.enter_context(socket.create_connection(("127.0.0.1", nodes[0].place.port)))
        count, most = 4 * strangers.STRANGERS_MAX, strangers.STRANGERS_MAX + 2
        wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before + count + most, "an end of the oldest")
        found = fetched([nodes[0].place], 1)
        assert found.reason == "" and slots.read(found.descriptors[0], 0) == (10, b"start of 1")
        local.close_all(list(found.descriptors))
    assert caplog.text.count("it was the oldest one of too many") == 1


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda records: None, "no other node was sent records of rank 3"),
        (lambda records: offer(records, b"setup"), "no other node has a local record of rank 3"),
    ],
)
def test_what_is_missing_is_named(records: Records, prepare: Callable[[Records], None], reason: str) -> None:
    prepare(records)
    (answer,) = records.hear(RecordsAsk(3))
    assert isinstance(answer, RecordsAnswer) and answer.lineage == 0 and reason in answer.reason
    fetched = bring(records)
    assert not fetched.descriptors and reason in fetched.reason
