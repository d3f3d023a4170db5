"""The manager's front door with a real manager behind it: which peers it lets in, and what it says about each."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from taskd.core import limits
from taskd.core.messages import Answer, Goodbye, Question, Reply, Stop, WorkerLeaving
from taskd.wire import keys
from taskd.wire.codec import VERSION, Envelope, encode
from taskd.wire.strangers import HANDSHAKE_BYTES, STRANGERS_MAX, Connections
from taskd.wire.uplink import Uplink
from tests.patience import PATIENCE_S
from tests.shell.manager_process import HandAgent, ManagerProcess, wait_for


@pytest.fixture
def manager(run_dir: Path, free_port: Callable[[], int]) -> Iterator[ManagerProcess]:
    process = ManagerProcess(run_dir, free_port()).start()
    yield process
    assert process.end() == 0, process.said()


def refused(manager: ManagerProcess) -> dict[str, int]:
    counts: dict[str, int] = manager.status()["manager"]["refused"]
    return counts


def strangers(manager: ManagerProcess) -> int:
    """Return how many strangers were refused. If two sides disagree on encryption, either may hang up first."""
    counts = refused(manager)
    return counts.get("no key", 0) + counts.get("port looked at", 0)


def lines(manager: ManagerProcess, words: str) -> list[str]:
    return [line for line in manager.said().splitlines() if words in line]


def test_an_agent_with_the_key_is_let_in(manager: ManagerProcess) -> None:
    with HandAgent(manager, "a", (0, 1)) as agent:
        agent.join()
        with agent.beating():
            wait_for(lambda: manager.status()["ranks"][0]["state"] == "alive", "it lives")
            ranks = {rank["rank"]: rank for rank in manager.status()["ranks"]}
    assert ranks[1]["state"] in ("alive", "suspect") and ranks[2]["state"] == "absent"
    assert ranks[0]["node"] == "a" and ranks[0]["pid"] == os.getpid() and ranks[0]["step"] == 5
    assert not lines(manager, "refused")


def test_another_key_no_key_and_no_taskd_at_all_are_refused_and_counted(manager: ManagerProcess) -> None:
    true_key = keys.find(manager.config())
    assert true_key is not None
    with HandAgent(manager, "thief", (2,), keys.Key(os.urandom(32), "made up")) as thief:
        thief.hello()
        wait_for(lambda: refused(manager).get("no key"), "a peer with another key is counted")
        assert thief.receive(0.2) is None
    with zmq.Context() as context:
        before = strangers(manager)
        plain = context.socket(zmq.DEALER)
        plain.linger = 0
        plain.connect(f"tcp://127.0.0.1:{manager.port}")
        plain.send(encode(Question("status", ""), Envelope("job", "", 1, 1)))
        wait_for(lambda: strangers(manager) > before, "a peer without a key is counted")
        assert not plain.poll(200)  # expires: nothing comes
        plain.close(0)
        # This peer knows the manager's public key, but not the job's key. ZAP exists for this case.
        public, secret = zmq.curve_keypair()
        half = context.socket(zmq.DEALER)
        half.linger = 0
        half.curve_serverkey, half.curve_publickey, half.curve_secretkey = true_key.server.public, public, secret
        half.connect(f"tcp://127.0.0.1:{manager.port}")
        half.send(b"let me in")
        wait_for(lambda: refused(manager).get("wrong key"), "a peer with a key pair of its own is counted")
        assert not half.poll(200)  # expires: nothing comes
        half.close(0)
    with socket.create_connection(("127.0.0.1", manager.port)) as web:
        web.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 8)
        wait_for(lambda: refused(manager).get("not taskd"), "a browser is counted")
    facts = manager.status()
    assert all(rank["state"] == "absent" for rank in facts["ranks"]) and not facts["nodes"]
    for words in ("does not hold this job's key, or looks", "TASKD_KEY_FILE differs", "is no message of taskd"):
        # One line per address, however often it tries. A peer that goes before its look-up has no address.
        known = [line for line in lines(manager, words) if "an unknown address" not in line]
        assert len(known) <= 1 <= len(lines(manager, words)) <= 2


def test_who_only_looks_whether_anybody_listens_is_no_warning(manager: ManagerProcess) -> None:
    for _ in range(3):
        socket.create_connection(("127.0.0.1", manager.port)).close()
    wait_for(lambda: refused(manager).get("port looked at", 0) >= 3, "three silent peers are counted")
    assert not lines(manager, "refused")


def test_what_is_no_message_is_dropped_with_one_line_and_a_counter(manager: ManagerProcess) -> None:
    good = encode(Goodbye("x"), Envelope("job", "a", 1, 1))
    row = msgpack.unpackb(good)
    hostile: list[tuple[str, tuple[bytes, ...]]] = [
        ("garbage", (b"garbage",)),
        ("garbage", (good[:-1],)),
        ("garbage", (b"",)),
        ("garbage", (b"\x91" * 3000,)),
        ("garbage", (good, good)),
        ("oversized", (bytes(limits.MAX_MESSAGE_BYTES + 1),)),
        ("version", (msgpack.packb([VERSION + 6, *row[1:]]),)),
        ("unknown", (msgpack.packb([VERSION, 99, *row[2:]]),)),
        ("bounds", (msgpack.packb([*row[:6], "x" * 5000]),)),
        ("unexpected", (encode(Stop(1, 1, ""), Envelope("job", "a", 1, 1)),)),
        ("unexpected", (encode(WorkerLeaving(0, 1, ""), Envelope("job", "a", 1, 1)),)),
        ("unexpected", (encode(Reply(True, ""), Envelope("job", "a", 1, 1)),)),
        ("unexpected", (encode(Goodbye("nobody"), Envelope("job", "", 1, 1)),)),
    ]
    expected: dict[str, int] = {}
    with HandAgent(manager, "a", (0, 1)) as agent:
        agent.join()
        for kind, frames in hostile * 2:
            agent.raw(*frames)
            expected[kind] = expected.get(kind, 0) + 1
        found = wait_for(
            lambda: (r := refused(manager)).get("unexpected") == expected["unexpected"] and r, "all counted"
        )
        assert {kind: found[kind] for kind in expected} == expected
        with agent.beating():  # a node that sent nonsense is still known
            wait_for(lambda: [r["state"] for r in manager.status()["ranks"]][:2] == ["alive"] * 2, "both ranks live")
    for words in (
        f"speaks version {VERSION + 6}, this side speaks {VERSION}",
        f"more than a message may have ({limits.MAX_MESSAGE_BYTES})",
        "message number 99 is unknown",
        "Goodbye.reason is",
        "no agent says that to a manager",
    ):
        assert len(lines(manager, words)) == 1, words


def test_what_exceeds_every_bound_costs_its_connection_and_nobody_elses(manager: ManagerProcess) -> None:
    with HandAgent(manager, "a", (0, 1)) as agent, HandAgent(manager, "b", (2, 3)) as other:
        agent.join()
        other.join()
        other.raw(bytes(2 * limits.MAX_MESSAGE_BYTES + 1))
        with agent.beating():
            wait_for(lambda: lines(manager, "the connection of node b has ended"), "the loss has a name")
            wait_for(lambda: manager.status()["ranks"][0]["state"] == "alive", "the other node is heard")


def test_an_agent_of_another_job_is_told_so(manager: ManagerProcess) -> None:
    with HandAgent(manager, "a", (0, 1)) as agent:
        agent.job = "other"
        agent.hello()
        answer = agent.receive()
        agent.hello()
        agent.receive()
    assert isinstance(answer, Answer) and not answer.accepted
    assert answer.reason == "this is the manager of job job, the agent of node a asks for other"
    assert refused(manager)["wrong job"] == 2
    assert len(lines(manager, "asks for other")) == 1
    assert not manager.status()["nodes"]


def test_repeated_and_late_messages_change_nothing_and_are_counted(manager: ManagerProcess) -> None:
    with HandAgent(manager, "a", (0, 1)) as agent:
        agent.join()
        agent.states[0] = {"step": 7, "updates": 7}
        agent.report()
        old = encode(Goodbye("I am going"), Envelope("job", "a", agent.life, 1))  # a number from long before
        again = encode(Goodbye("I am going"), Envelope("job", "a", agent.life, agent.sequence))
        before = sum(manager.status()["counters"].values())
        agent.raw(old)
        agent.raw(again)
        facts = wait_for(
            lambda: sum((f := manager.status())["counters"].values()) >= before + 2 and f, "both are counted"
        )
    assert facts["nodes"][0]["state"] != "left" and facts["ranks"][0]["step"] == 7


def test_a_broken_connection_has_a_name(manager: ManagerProcess) -> None:
    """The monitor knows descriptors, and a message knows its own. Together they tell whose connection broke."""
    with HandAgent(manager, "a", (0, 1)) as agent, HandAgent(manager, "b", (2, 3)) as other:
        agent.join()
        other.join()
        # The connection breaks. The agent lives on and comes back on another connection.
        agent.socket.close(0)
        wait_for(lambda: lines(manager, "the connection of node a has ended"), "the loss has a name")
        agent.connect()
        agent.confirmed.clear()
        agent.join()
        assert not lines(manager, "the connection of node b has ended")
        with agent.beating(), other.beating():
            wait_for(lambda: [n["state"] for n in manager.status()["nodes"]] == ["up", "up"], "both are heard again")


def test_many_agents_at_once(manager: ManagerProcess) -> None:
    """Every connection of a burst is accepted and answered."""
    agents: list[Any] = [HandAgent(manager, f"n{number}", ()) for number in range(60)]
    try:
        for agent in agents:
            agent.hello(node=agent.node, world_size=0)
        assert all(agent.receive() is not None for agent in agents)
    finally:
        for agent in agents:
            agent.close()


CROWD = 1_100
FEW_FILES = ("sh", "-c", 'ulimit -n 512; exec "$0" "$@"')
"""A manager that may open fewer files than strangers come."""
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
LONG_COMMAND = 6
"""The first byte of a ZMTP frame that is a command with a length of eight bytes."""


def files_of(manager: ManagerProcess) -> int:
    assert manager.process is not None
    return len(os.listdir(f"/proc/{manager.process.pid}/fd"))


@contextlib.contextmanager
def crowd(port: int, count: int = CROWD, word: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many connections, each of which sends this and then nothing."""
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(count)]
        for one in made:
            if word:
                with contextlib.suppress(OSError):  # it may be closed already
                    one.sendall(word)
        yield made


@pytest.mark.parametrize("word", [b"", GREETING[:1], GREETING], ids=["silent", "one byte", "half a handshake"])
def test_a_crowd_of_strangers_costs_the_manager_little_and_keeps_nobody_out(
    run_dir: Path, free_port: Callable[[], int], word: bytes
) -> None:
    manager = ManagerProcess(run_dir, free_port(), prefix=FEW_FILES).start()
    with HandAgent(manager, "a", (0, 1)) as agent, HandAgent(manager, "b", (2, 3)) as late:
        agent.join()
        before = files_of(manager)
        with crowd(manager.port, word=word), agent.beating():
            # All connections of a job's nodes (four here) may come at once, so as many more are allowed.
            most = CROWD - STRANGERS_MAX - 4
            wait_for(lambda: refused(manager).get("too many", 0) >= most, "an end of the oldest")
            late.join()
            with late.beating():
                states = wait_for(
                    lambda: [r["state"] for r in manager.status()["ranks"]] == ["alive"] * 4, "all ranks live"
                )
            assert states and files_of(manager) <= before + STRANGERS_MAX + 8
        wait_for(lambda: files_of(manager) <= before + 2, "the end of all strangers")
        counts = refused(manager)
        assert counts["too many"] + counts["port looked at"] >= CROWD
        assert not lines(manager, "the connection of node a has ended")
        assert len(lines(manager, "connections have proved nothing")) <= 2
    assert manager.end() == 0, manager.said()


def test_a_stranger_that_sends_more_than_a_handshake_is_closed(manager: ManagerProcess) -> None:
    """libzmq makes room for the largest message before it has checked any key."""
    size = 2 * limits.MAX_MESSAGE_BYTES - 1
    word = GREETING + struct.pack("!BQ", LONG_COMMAND, size) + bytes(HANDSHAKE_BYTES)
    with HandAgent(manager, "a", (0, 1)) as agent, crowd(manager.port, 8, word) as strangers:
        for one in strangers:
            one.settimeout(PATIENCE_S)
            with contextlib.suppress(ConnectionResetError):
                while one.recv(4096):
                    pass
        assert refused(manager)["too large"] == 8
        agent.join()


def test_who_has_proved_the_key_is_no_stranger_though_it_says_nothing(manager: ManagerProcess) -> None:
    key = keys.find(manager.config())
    assert key is not None
    line = Uplink("127.0.0.1", manager.port, manager.job, "a")

    def changes() -> list[bool]:
        """Do what a node's loop does: wait on the sockets, and take the news."""
        poller = zmq.Poller()
        for source in line.sources():
            poller.register(source, zmq.POLLIN)
        poller.poll(50)  # expires: nothing is new, and the caller asks again
        return [*line.changes()]

    try:
        line.use(key)
        wait_for(lambda: changes() and line.ready, "a connection")
        assert not changes() and manager.status()
        with crowd(manager.port):
            wait_for(lambda: refused(manager).get("too many", 0) >= CROWD - STRANGERS_MAX - 4, "an end of the oldest")
            assert not changes() and line.ready
    finally:
        line.close()


def test_a_descriptor_that_belongs_to_another_connection_now_is_left_alone() -> None:
    """libzmq closes descriptors and opens others under the same number at any time."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        connections = Connections(router)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        with crowd(port, STRANGERS_MAX + 2) as made:
            wait_for(lambda: not [*connections.ended()] and connections.strangers == len(made), "all are there")
            first, second = list(connections._strangers["127.0.0.1"])[:2]
            assert first.peer == made[0].getsockname()
            first.peer = ("127.0.0.1", 1)
            connections.bound()
            made[1].settimeout(PATIENCE_S)
            while made[1].recv(4096):  # what libzmq says first
                pass
            found = wait_for(lambda: [*connections.ended()], "the end of one")
            assert [(one.number, how.name) for one, how in found] == [(second.number, "CROWD")]
            made[0].setblocking(False)
            with pytest.raises(BlockingIOError):
                while made[0].recv(4096):
                    pass
        connections.close()


def test_the_address_with_the_largest_crowd_pays_for_it() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        connections = Connections(router, 2)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        with (
            socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0)) as alone,
            crowd(port, 2 * STRANGERS_MAX),
        ):
            count = 2 * STRANGERS_MAX + 1
            wait_for(lambda: not [*connections.ended()] and connections.strangers == count, "all are there")
            connections.bound()
            assert connections.strangers == STRANGERS_MAX + 2
            assert [one.peer for one in connections._strangers["127.0.0.2"]] == [alone.getsockname()]
        connections.close()


def test_a_port_of_the_newer_kind_of_addresses_is_bounded_too() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.ipv6 = True
        connections = Connections(router)
        port = router.bind_to_random_port("tcp://[::1]")
        with contextlib.ExitStack() as made:
            others = [
                made.enter_context(socket.create_connection(("::1", port), PATIENCE_S))
                for _ in range(STRANGERS_MAX + 1)
            ]
            wait_for(lambda: not [*connections.ended()] and connections.strangers == len(others), "all are there")
            first = next(iter(connections._strangers["::1"]))
            assert first.peer == others[0].getsockname()
            connections.bound()
            while others[0].recv(4096):
                pass
            found = wait_for(lambda: [*connections.ended()], "the end of one")
            assert [(one.number, how.name) for one, how in found] == [(first.number, "CROWD")]
        connections.close()
