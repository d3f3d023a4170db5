"""The agent's connection to the manager's own front door: the reason while there is none, and that it comes back."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

import pytest

from taskd.core.messages import Answer, Goodbye
from taskd.manager.door import Arrived, Door, Lost, Refusals
from taskd.wire.codec import Envelope, decode, encode
from taskd.wire.keys import Key
from taskd.wire.uplink import Uplink
from tests.patience import PATIENCE_S

HELLO = Goodbye("hello")


class Side:
    """A front door that records what comes in."""

    def __init__(self, port: int, key: Key) -> None:
        self.refusals = Refusals()
        self.door = Door("127.0.0.1", port, key, 4, self.refusals)
        self.door.open()
        self.arrived: list[tuple[Envelope, object]] = []
        self.routing = b""
        self.lost = 0

    def turn(self) -> None:
        self.door.wait(PATIENCE_S)
        for item in self.door.receive():
            if isinstance(item, Arrived):
                self.routing = item.routing
                self.arrived.append(decode(bytes(item.data)))
            elif isinstance(item, Lost):
                self.lost += 1


@pytest.fixture
def key() -> Key:
    return Key(secrets.token_bytes(32), "test")


@pytest.fixture
def uplink(free_port):
    made = Uplink("127.0.0.1", free_port(), "job", "left")
    yield made
    made.close()


def drive(uplink: Uplink, until: Callable[[], object], *sides: Side) -> list[bool]:
    """Run both ends until a condition holds; return how the connection changed meanwhile."""
    changes: list[bool] = []
    deadline = time.monotonic() + 20
    while not until():
        assert time.monotonic() < deadline, f"never happened; the line says: {uplink.reason!r}"
        for side in sides:
            side.turn()
        changes += uplink.changes()
        uplink.tick()
        if not sides:
            time.sleep(0.005)
    return changes


def test_without_a_key_it_says_whether_anybody_is_there(uplink: Uplink, key: Key) -> None:
    assert "key of job job is not known" in uplink.reason
    drive(uplink, lambda: f"there is no manager at 127.0.0.1:{uplink.port}" in uplink.reason)
    side = Side(uplink.port, key)
    drive(uplink, lambda: "runs, but the key of job job has not reached this node" in uplink.reason, side)
    side.door.close()
    drive(uplink, lambda: "there is no manager" in uplink.reason)


def test_it_connects_loses_and_finds_its_manager_again(uplink: Uplink, key: Key) -> None:
    uplink.use(key)
    assert uplink.send(HELLO) is False  # nothing is queued for a manager that is not there
    drive(uplink, lambda: "there is no manager" in uplink.reason)
    for life in range(2):
        side = Side(uplink.port, key)
        assert drive(uplink, lambda: uplink.ready, side) == [True]
        assert uplink.reason == ""
        assert uplink.send(HELLO) and uplink.send(HELLO)
        drive(uplink, lambda side=side: len(side.arrived) == 2, side)
        envelopes = [envelope for envelope, _ in side.arrived]
        assert [envelope.sequence for envelope in envelopes] == [2 * life + 1, 2 * life + 2]
        assert {(e.job, e.node, e.life) for e in envelopes} == {("job", "left", uplink.life)}
        side.door.close()
        assert drive(uplink, lambda: not uplink.ready) == [False]


def test_a_manager_with_another_key_is_named_and_the_right_key_still_helps(uplink: Uplink, key: Key) -> None:
    side = Side(uplink.port, key)
    uplink.use(Key(bytes(32), "wrong"))
    drive(uplink, lambda: "does not accept this node's key" in uplink.reason, side)
    uplink.use(key)
    drive(uplink, lambda: uplink.ready, side)
    uplink.use(Key(bytes(32), "wrong"))  # an existing connection is left alone
    assert uplink.send(HELLO)
    drive(uplink, lambda: side.arrived, side)
    side.door.close()


def test_what_is_no_message_is_counted_and_the_rest_is_read(uplink: Uplink, key: Key) -> None:
    side = Side(uplink.port, key)
    uplink.use(key)
    drive(uplink, lambda: uplink.ready, side)
    uplink.send(HELLO)
    drive(uplink, lambda: side.arrived, side)
    envelope = Envelope("job", "left", 1, 1)
    answer = Answer(3, True, "", False, 0, (), ())
    for data in (b"garbage", encode(HELLO, envelope), encode(answer, envelope)):
        side.door.send(side.routing, data)
    heard: list[object] = []
    drive(uplink, lambda: heard.extend(uplink.messages()) or heard, side)
    assert heard == [answer] and uplink.refused == 2
    side.door.close()


def test_a_host_that_nobody_knows_is_a_sentence(key: Key) -> None:
    uplink = Uplink("no.such.host.invalid", 9601, "job", "left")
    drive(uplink, lambda: "no.such.host.invalid cannot be found" in uplink.reason)
    uplink.use(key)
    assert uplink.send(HELLO) is False
    uplink.close()
