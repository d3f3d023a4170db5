"""The job's store without torch: real processes that share it while its manager is killed."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from taskd.agent import store_clients, store_requests
from taskd.core import limits
from taskd.core.types import StoreOperation as Op
from taskd.core.types import StoreStatus as Status
from taskd.wire.keys import Key
from tests.patience import PATIENCE_S
from tests.shell.manager_process import ROOT, HandAgent, wait_for
from tests.shell.store_plane import PATIENCE_MS, StoreClient, StorePlane

HAMMERS = 8
ADDS = 120


HAMMER = """
import sys
from tests.shell.store_plane import StoreClient
from taskd.core.types import StoreOperation as Op
name, me, adds = "\\0" + sys.argv[1], sys.argv[2].encode(), int(sys.argv[3])
won = 0
with StoreClient(name) as client:
    client.add(b"ready", 1)
    client.get(b"go", timeout_ms=300_000)
    for turn in range(adds):
        client.add(b"sum", 1, timeout_ms=300_000)
        found = client.ask(Op.COMPARE_SET, b"turn/%d" % turn, b"", me, timeout_ms=300_000)[1]
        won += found == [me]
    client.ask(Op.APPEND, b"won", b"%d," % won, timeout_ms=300_000)
"""


def start_hammers(plane: StorePlane) -> list[subprocess.Popen[bytes]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return [
        subprocess.Popen([sys.executable, "-c", HAMMER, plane.name[1:], str(me), str(ADDS)], env=environment)
        for me in range(HAMMERS)
    ]


@pytest.mark.parametrize("kills", [0, 3], ids=["calm", "manager killed three times"])
def test_eight_processes_at_once_lose_nothing_and_do_nothing_twice(run_dir: Path, free_port, kills: int) -> None:
    with StorePlane(run_dir, free_port()) as plane, plane.client() as client:
        hammers = start_hammers(plane)
        wait_for(lambda: client.get(b"ready") == [b"%d" % HAMMERS], "hammers that are ready")
        client.set(b"go", b"")
        for kill in range(kills):
            share = HAMMERS * ADDS * (kill + 1) // (kills + 2)
            wait_for(lambda share=share: client.add(b"sum", 0, timeout_ms=PATIENCE_MS) >= share, f"{share} additions")
            plane.manager.kill()
            plane.manager.start()
        assert [hammer.wait(PATIENCE_S) for hammer in hammers] == [0] * HAMMERS
        assert client.add(b"sum", 0) == HAMMERS * ADDS
        won = [int(text) for text in client.get(b"won")[0].split(b",") if text]
        assert len(won) == HAMMERS and sum(won) == ADDS  # exactly one process won each turn
        assert client.ask(Op.COUNT)[0] == ADDS + len(("ready", "go", "sum", "won"))


def test_a_wait_survives_the_managers_death(run_dir: Path, free_port) -> None:
    with StorePlane(run_dir, free_port()) as plane, plane.client() as waiting, plane.client() as client:
        client.set(b"before", b"1")
        waiting.send(Op.GET, b"before", b"later", timeout_ms=PATIENCE_MS)
        wait_for(lambda: plane.facts()["waits"] == 1, "the wait")
        plane.manager.kill()
        with pytest.raises(TimeoutError, match="was not carried out in time: there is no manager at"):
            client.add(b"n", 1, timeout_ms=100)  # expires: there is no manager
        plane.manager.start()
        client.set(b"later", b"2")
        assert waiting.answer() == (Status.DONE, 0, [b"1", b"2"])


def test_waits_end_in_time_and_are_forgotten_with_who_asked(run_dir: Path, free_port) -> None:
    with StorePlane(run_dir, free_port()) as plane, plane.client() as client:
        with pytest.raises(TimeoutError, match=r"wait timeout after 300ms, keys: a, b, c and 1 more"):
            client.get(b"a", b"b", b"c", b"d", timeout_ms=300)  # expires: nobody sets them
        with pytest.raises(TimeoutError, match=r"after 0ms, keys: a"):
            client.ask(Op.WAIT, b"a", timeout_ms=0)
        gone = plane.client()
        gone.send(Op.WAIT, b"a", timeout_ms=PATIENCE_MS)
        wait_for(lambda: plane.facts()["waits"] == 1, "the wait")
        gone.close()
        wait_for(lambda: plane.facts()["waits"] == 0, "the end of the wait")


def test_an_epoch_that_is_over_fails_its_waits_at_once(run_dir: Path, free_port) -> None:
    with StorePlane(run_dir, free_port()) as plane, plane.client() as client, plane.client() as other:
        client.set(b"epoch2/0@0-3/x", b"1")
        client.send(Op.WAIT, b"epoch2/0@0-3/never", timeout_ms=PATIENCE_MS)
        other.send(Op.GET, b"epoch7/0@0-3/soon", timeout_ms=PATIENCE_MS)
        wait_for(lambda: plane.facts()["waits"] == 2, "the waits")
        with HandAgent(plane.manager, "left", (0, 1)) as agent:
            agent.epoch = 7
            agent.interval_ms = 100
            agent.join()
            status, _, items = client.answer()
        assert status is Status.FAILED and b"epoch 2 is over (the job is in epoch 7)" in items[0]
        client.set(b"epoch7/0@0-3/soon", b"2")
        assert other.answer() == (Status.DONE, 0, [b"2"])
        assert client.ask(Op.LIST)[1] == [b"epoch7/0@0-3/soon"]
        plane.manager.kill()
        plane.manager.start()
        with pytest.raises(ValueError, match="epoch 2 is over"):
            client.set(b"epoch2/0@0-3/x", b"1")


def test_values_up_to_their_bounds(run_dir: Path, free_port) -> None:
    big = secrets.token_bytes(limits.MAX_STORE_VALUE)
    with StorePlane(run_dir, free_port()) as plane, plane.client() as client:
        names = [b"big%d" % number for number in range(7)]
        client.ask(Op.MULTI_SET, *(part for name in names for part in (name, big)))
        assert client.get(*names) == [big] * 7
        with pytest.raises(ValueError, match="a value has 1048577 bytes, 1048576 at most"):
            client.set(b"more", big + b"x")
        with pytest.raises(ValueError, match="1025 bytes, 1024 at most"):
            client.set(b"k" * 1025, b"")
        many = [b"%d" % number for number in range(limits.MAX_STORE_ITEMS // 2)]
        client.ask(Op.MULTI_SET, *(part for name in many for part in (name, b"")))
        assert client.ask(Op.CHECK, *many)[0] == 1 and client.ask(Op.COUNT)[0] == len(many) + 7
        plane.manager.kill()
        plane.manager.start()
        assert client.get(*names) == [big] * 7 and client.ask(Op.COUNT)[0] == len(many) + 7


FRAME = struct.Struct("=IBqqI")


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("=I", 2**32 - 1),
        struct.pack("=I", 3) + b"abc",
        FRAME.pack(21, 11, 0, 0, 0),
        FRAME.pack(21, 0, 0, 0, 2**32 - 1),
        FRAME.pack(21, 0, 0, 0, 1),
        FRAME.pack(25, 0, 0, 0, 1) + struct.pack("=I", 2**32 - 1),
        FRAME.pack(26, 0, 0, 0, 1) + struct.pack("=I", 0) + b"x",
        2 * FRAME.pack(21, 6, 0, 0, 0),
        os.urandom(4000),
    ],
    ids=["http", "huge", "short", "operation", "count", "missing", "length", "too much", "two at once", "random"],
)
def test_whoever_breaks_the_rules_is_hung_up_on_and_nobody_else(run_dir: Path, free_port, data: bytes) -> None:
    with StorePlane(run_dir, free_port()) as plane, plane.client() as client, plane.client() as bad:
        bad.sock.sendall(data)
        bad.sock.shutdown(socket.SHUT_WR)
        with pytest.raises((EOFError, ConnectionResetError)):
            bad.exactly(1)
        client.set(b"a", b"1")
        assert client.get(b"a") == [b"1"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_another_user_is_not_let_in(run_dir: Path, free_port) -> None:
    with StorePlane(run_dir, free_port()) as plane, plane.client() as client:
        code = (
            "import os, socket, sys; os.setuid(65534)\n"
            "sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM); sock.connect('\\0' + sys.argv[1])\n"
            "try: sys.exit(0 if sock.recv(1) == b'' else 1)\n"
            "except ConnectionResetError: sys.exit(0)\n"
        )
        assert subprocess.run([sys.executable, "-c", code, plane.name[1:]], timeout=PATIENCE_S).returncode == 0
        client.set(b"a", b"1")


def test_without_the_right_key_it_says_so_and_the_right_one_helps(run_dir: Path, free_port) -> None:
    plane = StorePlane(run_dir, free_port())
    with plane:
        assert plane.relay is not None
        plane.relay.stop()
        plane.relay = plane.start_relay(Key(bytes(32), "wrong"))
        with plane.client() as client:
            with pytest.raises(TimeoutError, match="does not accept this node's key"):
                client.get(b"a", timeout_ms=2_000)  # expires: its key is wrong
            second = plane.start_relay()  # the name is taken: the second relay waits for it
            plane.relay.stop()
            plane.relay = second
        client = wait_for(lambda: _connected(plane), "the second one serves")
        client.set(b"a", b"1")
        client.close()


def _connected(plane: StorePlane) -> StoreClient | None:
    try:
        return plane.client()
    except ConnectionRefusedError:
        return None


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        (store_requests.Requests, "begin"),
        (store_requests.Requests, "_ask"),
        (store_requests.Requests, "withdraw"),
        (store_clients.Clients, "_read"),
        (store_clients.Clients, "reply"),
        (store_clients._native, "close_on_fork"),
    ],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
def test_a_mistake_of_ours_costs_one_connection_and_no_descriptor(
    run_dir: Path, free_port, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: Any, method: str
) -> None:
    """The relay closes the connection that an error came from, serves the others, and waits as quietly as before."""
    whole, left = getattr(kind, method), list[int]()

    def broken(*words: Any) -> Any:
        if left:
            raise KeyError(left.pop())
        return whole(*words)

    monkeypatch.setattr(kind, method, broken)
    with StorePlane(run_dir, free_port()) as plane, plane.client() as client:
        client.set(b"a", b"1")
        descriptors = len(os.listdir("/proc/self/fd"))
        left.append(1)
        with plane.client() as bad:
            with contextlib.suppress(BrokenPipeError):  # it may be closed before it has said anything
                bad.send(Op.WAIT if method == "withdraw" else Op.CHECK, b"never")
            if method == "withdraw":
                wait_for(lambda: plane.facts()["waits"] == 1, "the wait")
                bad.sock.shutdown(socket.SHUT_WR)
            with pytest.raises((EOFError, ConnectionResetError)):
                bad.exactly(1)
        wait_for(lambda: len(os.listdir("/proc/self/fd")) == descriptors, "the end of the connection on both sides")
        assert client.get(b"a") == [b"1"]
        with plane.client() as again:
            assert again.get(b"a") == [b"1"]
        wait_for(lambda: len(os.listdir("/proc/self/fd")) == descriptors, "the end of the other one")
        assert plane.relay is not None and plane.relay._clients._epoll.poll(0) == []
        assert caplog.text.count("a mistake of taskd's") == 1


def test_a_store_that_breaks_all_the_time_ends_and_says_so(
    run_dir: Path, free_port, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing may spin. Workers then see closed connections, not silence."""
    with StorePlane(run_dir, free_port()) as plane, plane.client() as client:
        client.set(b"a", b"1")
        monkeypatch.setattr(store_clients.Clients, "serve", lambda _clients: 1 // 0)
        client.send(Op.GET, b"a")
        with pytest.raises((EOFError, ConnectionResetError)):
            client.exactly(1)
        wait_for(lambda: _refuses(plane), "the end of the name")
    assert "the store of this node ends by a mistake of its own" in caplog.text


def _refuses(plane: StorePlane) -> bool:
    try:
        plane.client().close()
    except ConnectionRefusedError:
        return True
    return False
