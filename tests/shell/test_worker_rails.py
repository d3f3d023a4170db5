"""Rail orders in a training process: what it does and answers, and an order over the link, from a real socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from taskd import config
from taskd.comm import adapter, cpu
from taskd.comm.adapter import Switch, Switched
from taskd.core.messages import RailOrder, RailsFollowed, WorkerHello
from taskd.errors import UsageError
from taskd.wire import local
from taskd.wire.codec import Envelope, decode, encode
from taskd.worker.identity import Identity
from taskd.worker.link import Link
from taskd.worker.rails import NO_RAILS, PROOF_SECONDS, RailFollower
from tests.patience import PATIENCE_S
from tests.shell.manager_process import wait_for


class NotedRails:
    """A fake of taskd.comm.rail_engine for orders: it records what was asked."""

    def __init__(self, *names: str) -> None:
        self.names, self.in_use, self.broken = names, dict.fromkeys(names, True), ""

    def states(self) -> tuple[str, ...]:
        return self.names

    def set_in_use(self, name: str, in_use: bool) -> None:
        if name == self.broken:
            raise UsageError("it is broken")
        self.in_use[name] = in_use


@pytest.fixture
def rails(monkeypatch: pytest.MonkeyPatch) -> NotedRails:
    noted = NotedRails("red", "blue")
    monkeypatch.setattr(cpu, "rail_engine", noted)
    return noted


def order(number: int, *out: str, term: int = 1) -> RailOrder:
    return RailOrder(term, number, out, "a test")


def answered(number: int, trouble: str = "", words: str = "") -> RailsFollowed:
    return RailsFollowed(3, 2, number, not trouble, trouble or words)


def test_an_order_says_how_all_rails_stand(rails: NotedRails) -> None:
    follower = RailFollower(3, expected=True)
    assert follower.follow(order(1, "red"), 2) == answered(1)
    assert rails.in_use == {"red": False, "blue": True}
    assert follower.follow(order(2, "blue"), 2) == answered(2)
    assert rails.in_use == {"red": True, "blue": False}


def test_repeated_and_older_orders_change_nothing(rails: NotedRails) -> None:
    follower = RailFollower(3, expected=True)
    follower.follow(order(2, "red"), 2)
    rails.in_use["red"] = True
    assert follower.follow(order(2, "red"), 2) == answered(2)
    assert follower.follow(order(1, "blue"), 2) == answered(2)
    assert rails.in_use == {"red": True, "blue": True}
    assert follower.follow(order(1, "blue", term=2), 2) == answered(1), "another term counts anew"


def test_what_cannot_be_done_is_said_and_tried_again(rails: NotedRails) -> None:
    follower = RailFollower(3, expected=True)
    rails.broken = "red"
    broken = follower.follow(order(2, "red", "blue"), 2)
    assert broken is not None and not broken.ok and "it is broken" in broken.reason
    assert rails.in_use == {"red": True, "blue": False}, "what can be done is done"
    rails.broken = ""
    assert follower.follow(order(2, "red"), 2) == answered(2)


def test_a_rail_that_this_process_has_not_carries_nothing_here(rails: NotedRails) -> None:
    """Another rank of its node has the rail: ranks of one node may have different rails."""
    follower = RailFollower(3, expected=True)
    assert follower.follow(order(1, "green", "red"), 2) == answered(1)
    assert rails.in_use == {"red": False, "blue": True}


def test_a_process_without_rails_is_honest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "HOMES", {"gloo": adapter.HOMES["gloo"]})
    follower = RailFollower(3, expected=False)
    assert follower.follow(order(1, "red"), 2) == answered(1, NO_RAILS)
    assert follower.follow(order(2), 2) == answered(2), "all in use is how it stands"


def test_a_process_over_nccl_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "HOMES", {"nccl": adapter.HOMES["nccl"]})
    adapter.of("nccl")
    answer = RailFollower(3, expected=False).follow(order(1, "red"), 2)
    assert answer is not None and not answer.ok and answer.reason.startswith("unsupported: NCCL lists its network")


class NpuRail:
    """An adapter with one rail, whose switches report success. `proves` is what the bytes prove about them."""

    def __init__(self) -> None:
        self.asked: list[bool] = []
        self.proves = Switch.ASKED

    def rails(self) -> tuple[str, ...]:
        return ("npu",)

    def switch_rail(self, name: str, in_use: bool) -> Switched:
        self.asked.append(in_use)
        return Switched(Switch.ASKED, "", lambda: Switched(self.proves, "rail npu carries 8 bytes"))


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> NpuRail:
    rail = NpuRail()
    monkeypatch.setattr(adapter, "loaded", lambda: [rail])
    return rail


def test_a_switch_that_has_to_prove_itself_is_answered_when_it_has(npu: NpuRail) -> None:
    follower = RailFollower(3, expected=False, now=lambda: 0.0)
    assert follower.follow(order(1, "npu"), 2) is None and follower.follow(order(1, "npu"), 2) is None
    npu.proves = Switch.MOVED
    proved = answered(1, words="moved: rail npu carries 8 bytes")
    assert follower.follow(order(1, "npu"), 2) == proved == follower.follow(order(1, "npu"), 2)
    assert npu.asked == [False], "told again it is not done again"


def test_a_no_op_is_told_as_what_it_is(npu: NpuRail) -> None:
    follower = RailFollower(3, expected=False, now=lambda: 0.0)
    assert follower.follow(order(1, "npu"), 2) is None
    npu.proves = Switch.NO_OP
    assert follower.follow(order(1, "npu"), 2) == answered(
        1, "no-op: success was reported, but rail npu carries 8 bytes"
    )
    npu.proves = Switch.MOVED
    assert follower.follow(order(2), 2) == answered(2, words="moved: rail npu carries 8 bytes"), "and undone"
    assert npu.asked == [False, True]


def test_a_job_that_sends_nothing_is_not_asked_for_proof_for_ever(npu: NpuRail) -> None:
    now = [0.0]
    follower = RailFollower(3, expected=False, now=lambda: now[0])
    assert follower.follow(order(1, "npu"), 2) is None
    now[0] = PROOF_SECONDS
    words = "asked: within 5 s too little was sent to prove it"
    assert follower.follow(order(1, "npu"), 2) == answered(1, words=words)


def test_a_newer_order_needs_no_proof_of_the_one_before(npu: NpuRail) -> None:
    follower = RailFollower(3, expected=False, now=lambda: 0.0)
    assert follower.follow(order(1, "npu"), 2) is None
    assert follower.follow(order(2), 2) is None
    npu.proves = Switch.MOVED
    proved = answered(2, words="moved: rail npu carries 8 bytes")
    assert follower.follow(order(2), 2) == proved and npu.asked == [False, True]
    assert follower.follow(order(1, "npu"), 2) == proved


def test_a_process_whose_rails_are_yet_to_come_waits(rails: NotedRails) -> None:
    follower = RailFollower(3, expected=True)
    rails.names = ()
    assert follower.follow(order(1, "red"), 2) is None, "unanswered, it comes again"
    rails.names = ("red", "blue")
    assert follower.follow(order(1, "red"), 2) == answered(1) and rails.in_use["red"] is False


@pytest.fixture
def agent(run_dir: Any) -> Iterator[tuple[socket.socket, config.Config]]:
    settings = config.load(job_id=f"rails{os.getpid()}", job_run_dir=str(run_dir), job_node="n")
    listener = local.listen(local.address(settings.job.id, "n"))
    assert listener is not None
    with listener:
        yield listener, settings


def test_the_link_answers_for_its_process(rails: NotedRails, agent: tuple[socket.socket, config.Config]) -> None:
    listener, settings = agent
    link = Link(settings, Identity(settings.job.id, "n", 3, 4, 0, 2), launched=True)
    link.start()
    try:
        listener.settimeout(PATIENCE_S)
        worker, _ = listener.accept()
        with worker:
            said: list[Any] = []

            def hear() -> bool:
                while (got := local.receive(worker)) is not None:
                    local.close_all(got[1])
                    said.append(decode(got[0])[1])  # type: ignore[index]
                return bool(said)

            wait_for(hear, "the hello")
            assert isinstance(said.pop(0), WorkerHello)
            local.send(worker, encode(order(5, "red"), Envelope(settings.job.id, "n", 1, 1)))
            wait_for(lambda: hear() and any(isinstance(one, RailsFollowed) for one in said), "the answer")
            answer = next(one for one in said if isinstance(one, RailsFollowed))
            assert (answer.rank, answer.number, answer.ok) == (3, 5, True) and rails.in_use["red"] is False
    finally:
        link.close()
