"""The parts of the check of nodes: rails that belong together, transfers, strangers, a board full of lies."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest
from torch.distributed import HashStore

from taskd.board import Board
from taskd.check import rails
from taskd.check.blocks import Rail, measure, receive, send
from taskd.check.conductor import Conductor
from taskd.check.door import GUESTS_MOST, Door
from taskd.check.node import Verdict, here
from taskd.check.sizes import BLOCKS
from taskd.check.talk import Broken, Talk
from taskd.check.work import Device, expected
from taskd.core.check.facts import Way
from taskd.core.check.findings import Finding
from tests.patience import PATIENCE_S


def place(address: str, network: str = "") -> rails.Place:
    return rails.Place(address, 1, network)


def test_rails_belong_together_by_network_and_then_by_name() -> None:
    own = {"eth0": place("10.0.0.1", "10.0.0.0/24"), "ib0": place("10.1.0.1", "10.1.0.0/24")}
    other = {"ens5": place("10.0.0.2", "10.0.0.0/24"), "ib0": place("10.9.0.2", "10.9.0.0/24")}
    assert rails.pairs(own, other) == {"eth0": other["ens5"], "ib0": other["ib0"]}
    assert rails.pairs(own, {}) == {} == rails.pairs({}, other)
    third = {"eth0": place("10.0.0.3", "10.0.0.0/24")}
    assert rails.titles({0: own, 1: other, 2: third}) == {
        0: {"eth0": "eth0", "ib0": "ib0"},
        1: {"ens5": "eth0", "ib0": "ib0"},
        2: {"eth0": "eth0"},
    }


def test_two_rails_in_one_network_keep_their_names() -> None:
    own = {"a": place("10.0.0.1", "10.0.0.0/24"), "b": place("10.0.0.2", "10.0.0.0/24")}
    assert rails.titles({0: own}) == {0: {"a": "a", "b": "b"}}
    assert rails.pairs(own, own) == own


LIES: list[Any] = [
    None,
    [],
    "eth0",
    {"eth0": ["10.0.0.1"]},
    {"eth0": ["10.0.0.1", "80", ""]},
    {"eth0": ["10.0.0.1", 99999, ""]},
    {"eth0": ["host.example", 80, ""]},
    {"eth0": ["10.0.0.1", 80, "nowhere"]},
    {"": ["10.0.0.1", 80, ""]},
    {"e" * 65: ["10.0.0.1", 80, ""]},
    {"eth0": {"address": 1}},
]


@pytest.mark.parametrize("said", LIES)
def test_what_cannot_be_read_is_no_rail(said: Any) -> None:
    assert rails.read(said) == {}


def ends() -> tuple[Talk, Talk]:
    """Return both ends of a connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    one = socket.create_connection(listener.getsockname())
    other, _ = listener.accept()
    listener.close()
    until = time.monotonic() + PATIENCE_S
    return Talk(one, until), Talk(other, until)


def serve(talk: Talk, rail: Rail) -> None:
    """Do what `measure` asks for, until it has all."""
    while True:
        match talk.hear():
            case ["take", size]:
                receive(talk, rail, size)
            case ["give", size]:
                send(talk, rail, size)
            case _:
                return


def test_both_ends_of_a_transfer_say_the_same() -> None:
    one, other = ends()
    near, far = Rail("eth0"), Rail("eth0")
    thread = threading.Thread(target=serve, args=(other, far))
    thread.start()
    measure(one, near)
    one.say("over")
    thread.join()
    assert {near.sent.way, near.received.way, far.sent.way, far.received.way} == {Way.OK}
    assert near.sent.times_ns.keys() == far.received.times_ns.keys() and max(near.sent.times_ns) <= BLOCKS[-1]


def test_damage_is_seen_by_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from taskd.check import blocks

    one, other = ends()
    near, far = Rail("eth0"), Rail("eth0")
    monkeypatch.setattr(blocks, "checksum", lambda data: id(data))
    thread = threading.Thread(target=serve, args=(other, far))
    thread.start()
    one.say("take", BLOCKS[0])
    send(one, near, BLOCKS[0])
    one.say("over")
    thread.join()
    assert (near.sent.way, far.received.way) == (Way.CORRUPT, Way.CORRUPT)


def test_a_partner_that_says_nothing_or_too_much_breaks_a_transfer() -> None:
    one, other = ends()
    one.until = time.monotonic() + 0.05
    with pytest.raises(Broken) as late:
        one.hear()
    other.connection.sendall(b"\xff\xff\xff\xff")
    one.until = time.monotonic() + PATIENCE_S
    with pytest.raises(Broken) as failed:
        one.hear()
    assert (late.value.way, failed.value.way) == (Way.LATE, Way.FAILED)


def test_strangers_do_not_shut_the_door() -> None:
    door = Door({"lo": "127.0.0.1"}, (0, 0))
    at = ("127.0.0.1", door.ports["lo"])
    silent = [socket.create_connection(at) for _ in range(GUESTS_MOST)]
    for one in silent[: GUESTS_MOST // 2]:
        one.sendall(b"\x00\x00\x00\x02\x92\x91")
    for one in silent:
        one.close()
    deadline, found = time.monotonic() + PATIENCE_S, list[Any]()
    while not found and time.monotonic() < deadline:
        talk = door.connect("lo", at, time.monotonic() + PATIENCE_S)
        try:
            talk.say("hello", "token")
        except Broken:
            continue
        found = door.guests("token", 0.5)
    assert [name for name, _ in found] == ["lo"]


@pytest.mark.parametrize("seed", [0, 1, (1 << 30) - 1])
def test_a_product_is_what_follows_from_its_rows(seed: int) -> None:
    device = Device("cpu")
    assert device.compute(seed) == expected(seed, device.size.product) != expected(seed + 1, device.size.product)


WELL = [[[], [True, 1, 1], [True, 1, 1], 1], ["torch", [], [True, 1, 1], "OK"]]


@pytest.mark.parametrize("side", [None, [], [[[]], None, None, 1], {"a": 1}, [[["eth0"]], 1, 2, 3], "x" * 99])
def test_a_board_full_of_lies_ends_a_check_with_verdicts(side: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskd.check.conductor.REST_SECONDS", 0.0)
    board = Board(HashStore(), "job")
    for node in range(3):
        board.tell(here(node), True)
        board.tell(f"check/node/{node}", {"rails": side, "self": WELL[1] if node else side, "ended": side})
        for turn in range(40):
            board.tell(f"check/answer/{turn}/{node}", {"side": side, "self": side, "ended": False})
    lines = list[str]()
    report = Conductor(board, range(3), lines.append, 0, False).run(1.0)
    assert len(report.nodes) == 3 and lines
    assert Finding.HEALTHY not in {one.finding for one in report.nodes}


def test_a_verdict_moves_no_cursor() -> None:
    assert Verdict.of(["down", "gone\x1b[2J", ""]).reason == "gone[2J"
    with pytest.raises(ValueError, match="unpack"):
        Verdict.of(["down"])


def test_a_node_that_cannot_be_tested_stays() -> None:
    board = Board(HashStore(), "job")
    for node in range(2):
        board.tell(here(node), True)
        board.tell(f"check/node/{node}", {"ended": True, "cannot": "no memory" if node else ""})
    report = Conductor(board, range(2), lambda _line: None, 0, False).run(1.0)
    assert [(one.finding, one.leaves(True)) for one in report.nodes][1] == (Finding.UNDECIDED, False)
    assert report.nodes[1].reason == "it cannot be tested: no memory"


def test_nodes_are_told_that_the_check_is_over_if_the_conductor_fails() -> None:
    board = Board(HashStore(), "job")
    for node in range(2):
        board.tell(here(node), True)
        board.tell(f"check/node/{node}", {"ended": False, "self": WELL[1]})

    def fail(_line: str) -> None:
        raise KeyboardInterrupt

    conductor = Conductor(board, range(2), fail, 0, False)
    with pytest.raises(KeyboardInterrupt):
        conductor.run(1.0)
    closed = [
        turn
        for turn in range(20)
        if board.told(f"check/turn/{turn}") and "verdicts" in board.look(f"check/turn/{turn}")
    ]
    assert closed and not board.told(f"check/turn/{closed[-1] + 1}")
