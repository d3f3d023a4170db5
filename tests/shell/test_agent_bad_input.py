"""An agent and processes that break the rules: it logs one line, lets no such process in, and disturbs no other."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest

from taskd import _native
from taskd.core.messages import Evidence, StageReached, Stop, WorkerHello, WorkerLeaving, WorkerWelcome
from taskd.core.types import EvidenceKind, Stage
from taskd.wire import local
from taskd.wire.codec import Envelope, decode, encode
from tests.patience import PATIENCE_S
from tests.ready import readable
from tests.shell.manager_process import ROOT, wait_for
from tests.shell.plane import Plane, Trainer


@pytest.fixture
def plane(run_dir: Path, free_port) -> Iterator[Plane]:
    with Plane(run_dir, free_port(), job=f"bad-{os.getpid()}") as made:
        made.manager.start()
        yield made
    made.wait_for_no_agents()


@pytest.fixture
def trainer(plane: Plane) -> Trainer:
    (made,) = plane.train(0)
    assert made.started["start"] is True, made.said()
    return made


@pytest.fixture
def line(plane: Plane, trainer: Trainer) -> Iterator[socket.socket]:
    """A connection of the test's own process to the agent."""
    made = local.connect(local.address(plane.job, "left"))
    assert made is not None
    with made:
        yield made


def packed(plane: Plane, message) -> bytes:
    return encode(message, Envelope(plane.job, "left", 7, 1))


def answer(line: socket.socket, seconds: float = PATIENCE_S) -> object:
    """Return the agent's next message, or "closed"."""
    assert readable([line], seconds), "the agent said nothing"
    try:
        got = local.receive(line)
    except EOFError:
        return "closed"
    assert got is not None
    return decode(got[0])[1]


def hello(plane: Plane, **changes) -> WorkerHello:
    plain = WorkerHello(plane.job, 1, plane.ranks, 0, os.getpid(), 1, "pt", 0, Stage.RUNNING, b"")
    return replace(plain, **changes)


def agent_log(plane: Plane) -> str:
    path = plane.run_dir / plane.job / "agent-left.log"
    return path.read_text() if path.exists() else ""


def undisturbed(plane: Plane, trainer: Trainer) -> None:
    step = plane.rank(0)["step"]
    wait_for(lambda: plane.rank(0)["step"] > step, "steps of the rank that did nothing wrong")
    assert trainer.ask("state")["acknowledged"]
    assert plane.rank(1).get("pid", 0) != os.getpid()


def test_bytes_that_are_no_message_are_dropped_and_named(plane: Plane, trainer: Trainer, line: socket.socket) -> None:
    old = msgpack.packb([0, 1, plane.job, "left", 7, 1])
    for garbage in (b"\0", b"\0garbage", b"\0" + old, b"\0" + b"\xdd\xff\xff\xff\xff", b"\0" + os.urandom(60_000)):
        line.send(garbage)
    wait_for(lambda: "speaks version 0" in agent_log(plane), "a line about the old version")
    undisturbed(plane, trainer)


@pytest.mark.parametrize("data", [b"\7form", b"\1", b"\0" + b"x" * (local.INLINE_BYTES_MAX + 1)])
def test_broken_framing_ends_the_connection(plane: Plane, trainer: Trainer, line: socket.socket, data: bytes) -> None:
    line.send(data)
    assert answer(line) == "closed"
    wait_for(lambda: "broke the rules" in agent_log(plane), "a line about it")
    undisturbed(plane, trainer)


def test_a_hello_without_its_own_page_is_not_let_in(plane: Plane, trainer: Trainer, line: socket.socket) -> None:
    page = _native.Page.create(1, 1)
    other = _native.Page.create(2, 1)
    plain = os.memfd_create("plain")
    cases = [
        (hello(plane), (), "without a beat page"),
        (hello(plane), (plain,), "cannot be used"),
        (hello(plane), (other.fd,), "that of rank 2"),
        (hello(plane, pid=trainer.pid), (page.fd,), f"it says that it is process {trainer.pid}"),
    ]
    for message, descriptors, sentence in cases:
        assert local.send(line, packed(plane, message), descriptors)
        welcome = answer(line)
        assert isinstance(welcome, WorkerWelcome) and not welcome.accepted and sentence in welcome.reason, welcome
    os.close(plain)
    undisturbed(plane, trainer)


def test_a_hello_for_another_job_or_a_rank_that_does_not_exist_is_refused(
    plane: Plane, trainer: Trainer, line: socket.socket
) -> None:
    for rank, changes in ((1, {"job": "other"}), (9, {"rank": 9}), (0, {"rank": 0})):
        page = _native.Page.create(rank, 1)
        assert local.send(line, packed(plane, hello(plane, **changes)), (page.fd,))
        welcome = answer(line)
        assert isinstance(welcome, WorkerWelcome) and not welcome.accepted and welcome.reason, (changes, welcome)
    undisturbed(plane, trainer)


def test_nobody_speaks_for_another_rank(plane: Plane, trainer: Trainer, line: socket.socket) -> None:
    for message in (
        WorkerLeaving(0, 1, "I am not it"),
        StageReached(0, 1, 5, Stage.PARKED, 3, True, ""),
        Evidence(EvidenceKind.COLLECTIVE_ERROR, 2, 1, 0, 0, "lie"),
        Stop(99, 1, "a worker stops the job"),
    ):
        assert local.send(line, packed(plane, message))
    wait_for(
        lambda: "which it is not" in agent_log(plane) and "no worker may send" in agent_log(plane), "lines about it"
    )
    undisturbed(plane, trainer)
    assert plane.rank(0)["state"].lower() == "alive"


def test_a_thousand_connections_do_not_shut_anybody_out(plane: Plane, trainer: Trainer) -> None:
    lines = []
    for _ in range(1000):
        made = local.connect(local.address(plane.job, "left"))
        if made is not None:
            lines.append(made)
    undisturbed(plane, trainer)
    (second,) = plane.train(1)
    assert second.started["start"] is True, second.said()
    for made in lines:
        made.close()


AS_ANOTHER = """
import os, select, socket, sys
os.setuid(65534)
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.connect(sys.argv[1].replace("@", chr(0)))
select.select([line], [], [], 10)
print(line.recv(10))
"""


@pytest.mark.root
def test_another_user_is_not_served(plane: Plane, trainer: Trainer) -> None:
    name = local.address(plane.job, "left").replace("\0", "@")
    done = subprocess.run(
        [sys.executable, "-c", AS_ANOTHER, name],
        capture_output=True,
        text=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout == "b''\n", done.stderr
    undisturbed(plane, trainer)
