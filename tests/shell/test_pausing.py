"""Where a training process stands for a pause: the thread that waits, and what ends its wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from taskd import _native
from taskd.compat import framework
from taskd.core.messages import PauseAnswer, PauseOrder
from taskd.core.types import PauseKind, Phase
from taskd.worker import hooks, pausing
from tests.patience import PATIENCE_S

MINUTE_MS = 60_000


def order(number: int, kind: PauseKind, step: int = -1, left_ms: int = MINUTE_MS) -> PauseOrder:
    return PauseOrder(1, number, kind, step, left_ms, True, "")


class Rank:
    """One training process, as far as pauses see it."""

    def __init__(self) -> None:
        self.page = _native.Page.create(0, 1)
        self.said: list[PauseAnswer] = []
        self.heard = threading.Condition()
        self.pausing = pausing.Pausing(0, self.page, self.say)
        self.given_up = False

    def say(self, answer: PauseAnswer) -> bool:
        with self.heard:
            self.said.append(answer)
            self.heard.notify_all()
        return True

    def wait_for_stand(self, step: int) -> None:
        def stands() -> bool:
            return bool(self.said) and self.said[-1].stands and self.said[-1].begun == step - 1

        with self.heard:
            assert self.heard.wait_for(stands, PATIENCE_S), self.said

    def comes_to(self, step: int) -> threading.Thread:
        thread = threading.Thread(target=self.pausing.before, args=(step, lambda: self.given_up))
        thread.start()
        return thread

    def phase(self) -> Phase:
        (beat,) = _native.scan([self.page])
        assert beat is not None
        return Phase(beat.phase)


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    monkeypatch.setattr(pausing, "_boundaries", pausing._Boundaries())
    pausing.boundaries_known()
    made = Rank()
    pausing.establish(made.pausing)
    hooks.attach(made.page)
    yield made
    hooks.detach()
    pausing.establish(None)


def ended(thread: threading.Thread) -> bool:
    thread.join(PATIENCE_S)
    return not thread.is_alive()


def test_it_stands_before_the_step_until_it_is_free(rank: Rank) -> None:
    assert not rank.pausing.before(4, lambda: False)
    rank.pausing.ordered(order(1, PauseKind.ASK), 1)
    assert rank.said[-1] == PauseAnswer(0, 1, 1, 4, 5, False, "")
    rank.pausing.ordered(order(2, PauseKind.STAND, 6), 1)
    assert not rank.pausing.before(5, lambda: False), "that step was not meant"
    thread = rank.comes_to(6)
    rank.wait_for_stand(6)
    assert rank.phase() is Phase.PARKED
    rank.pausing.ordered(order(3, PauseKind.FREE), 1)
    assert ended(thread)
    assert not rank.pausing.before(7, lambda: False)


def test_the_lease_ends_without_any_message(rank: Rank) -> None:
    rank.pausing.ordered(order(1, PauseKind.STAND, 0, left_ms=50), 1)
    thread = rank.comes_to(0)
    assert ended(thread)  # expires: nobody renews the pause
    assert rank.said[-1].begun == 0 and rank.said[-1].limit == 0, "it says that it has passed the step"


def test_a_repair_ends_the_wait(rank: Rank) -> None:
    rank.pausing.ordered(order(1, PauseKind.STAND, 3), 1)
    thread = rank.comes_to(3)
    rank.wait_for_stand(3)
    rank.given_up = True
    rank.pausing.wake()
    assert ended(thread)
    assert not rank.said[-1].stands
    rank.given_up = False
    rank.pausing.set_back(2)
    assert not rank.pausing.before(2, lambda: False)
    thread = rank.comes_to(3)
    rank.wait_for_stand(3)
    rank.pausing.end()
    assert ended(thread), "no order can come any more"


def test_an_order_of_the_past_changes_nothing(rank: Rank) -> None:
    rank.pausing.ordered(order(5, PauseKind.FREE), 1)
    rank.pausing.ordered(order(4, PauseKind.STAND, 0), 1)
    assert rank.said[-1].number == 5
    assert not rank.pausing.before(0, lambda: False)


def test_a_script_without_any_boundary_says_so(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pausing, "_boundaries", pausing._Boundaries())
    rank.pausing.ordered(order(1, PauseKind.ASK), 1)
    assert "taskd.session()" in rank.said[-1].trouble
    rank.pausing.ordered(order(2, PauseKind.FREE), 1)
    assert not rank.said[-1].trouble


def test_tft_pause_train_is_the_same_boundary(rank: Rank) -> None:
    framework.tft_pause_train(7)
    rank.pausing.ordered(order(1, PauseKind.ASK), 1)
    assert (rank.said[-1].begun, rank.said[-1].limit) == (8, 9)
    rank.pausing.ordered(order(2, PauseKind.STAND, 9), 1)
    thread = threading.Thread(target=framework.tft_pause_train, args=(8,))
    thread.start()
    rank.wait_for_stand(9)
    rank.pausing.ordered(order(3, PauseKind.FREE), 1)
    assert ended(thread)
    assert rank.phase() is Phase.BETWEEN


def test_in_a_session_the_hooks_are_no_boundary(rank: Rank) -> None:
    pausing.session_begins()
    rank.pausing.ordered(order(1, PauseKind.STAND, 0), 1)
    framework.tft_pause_train(8)
    assert not rank.said[-1].stands
