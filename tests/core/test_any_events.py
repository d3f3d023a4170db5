"""Any messages in any order. The manager never raises, and its epochs and terms only grow. In one epoch no orders name
two incarnations of a rank. A replay makes the same decisions, and in the end every incident is closed."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.core import limits
from taskd.core.effects import EndJob, ManagerEffect, Tell
from taskd.core.events import ConnectionLost, ManagerEvent, Restarted, Said, Sender, Tick
from taskd.core.limits import MS, SECOND
from taskd.core.manager import Manager
from taskd.core.messages import (
    AgentHello,
    DeviceEvent,
    DeviceReport,
    DeviceUser,
    Evidence,
    Goodbye,
    Order,
    RankReport,
    Report,
)
from taskd.core.types import DeviceKind, EvidenceKind, Harm, Phase, RankState, Stage
from tests.core.builders import manager

RANKS, NODES = 3, ["a", "b", "c"]
REPORTED = [RankState.STARTING, RankState.ALIVE, RankState.ALIVE, RankState.ALIVE, RankState.DEAD, RankState.LEFT]
rank_reports = st.builds(
    RankReport,
    rank=st.integers(0, RANKS),  # the last one does not exist
    incarnation=st.integers(0, 4),
    pid=st.integers(0, 3),
    state=st.sampled_from(REPORTED),
    exit_code=st.integers(-15, 2),
    acknowledged=st.booleans(),
    epoch=st.integers(0, 6),
    stage=st.sampled_from(list(Stage)),
    updates=st.integers(-1, 5),
    step=st.integers(-1, 5),
    phase=st.sampled_from(list(Phase)),
    beat_age_ms=st.just(1),
    step_ms=st.just(100),
    reason=st.sampled_from(["", "why"]),
    ok=st.booleans(),
)
device_events = st.builds(
    DeviceEvent, st.integers(-1, 2), st.just("GPU-1"), st.sampled_from(list(DeviceKind)), st.sampled_from([0, 79]),
    st.just("its loss"), st.sampled_from(list(Harm)), st.integers(0, 3), st.integers(0, 9),
)  # fmt: skip
messages = st.one_of(
    st.builds(Report, st.booleans(), st.integers(0, 4), st.lists(rank_reports, max_size=3).map(tuple)),
    st.builds(Report, st.just(False), st.just(1), st.lists(rank_reports, max_size=3).map(tuple)),
    st.builds(
        AgentHello, st.sampled_from(["job", "job", "job", "other"]), st.sampled_from(NODES), st.just("host"),
        st.just(1), st.sampled_from([0, 0, RANKS, 9]), st.booleans(), st.integers(0, 3), st.just(100),
    ),
    st.builds(
        Evidence, st.sampled_from(list(EvidenceKind)), st.integers(-1, RANKS), st.integers(0, 4),
        st.integers(-1, RANKS), st.integers(-15, 2), st.just("why"),
    ),
    st.builds(Goodbye, st.just("bye")),
    st.builds(
        DeviceReport, st.lists(device_events, max_size=3).map(tuple),
        st.lists(st.builds(DeviceUser, st.integers(0, 3), st.integers(0, RANKS)), max_size=3).map(tuple),
    ),
)  # fmt: skip
# An agent would not send these, but a network or a stranger may: any life number, any sequence number.
said = st.builds(lambda node, life, number, message: (node, life, number, message),
                 st.sampled_from(NODES), st.sampled_from([1, 1, 1, 2, 3]), st.integers(-2, 3), messages)  # fmt: skip
waits = st.sampled_from([0, 1, 10, 100, 250, 300, 700, 2_000, 21_000, 61_000, 310_000])
actions = st.lists(st.tuples(waits, st.one_of(said, said, said, said, st.sampled_from(["tick", "lost", "restart"]))),
                   max_size=50)  # fmt: skip


class Run:
    """Feeds events to a manager and checks the invariants after each."""

    def __init__(self, recover: bool) -> None:
        self.recover = recover
        self.core = manager(RANKS, 2, recover=recover)
        self.now = SECOND
        self.numbers: dict[tuple[str, int], int] = {}
        self.journal: list[tuple[int, ManagerEvent]] = []
        self.effects: list[ManagerEffect] = []
        self.seats: dict[tuple[int, int], int] = {}
        self.epoch = self.term = 0
        self.over = False

    def event(self, what: Any) -> ManagerEvent:
        if what == "tick":
            return Tick()
        if what == "lost":
            return ConnectionLost("a")
        if what == "restart":
            return Restarted()
        node, life, step, message = what
        if isinstance(message, AgentHello):
            node = message.node
        number = self.numbers.get((node, life), 0) + step
        self.numbers[node, life] = max(number, self.numbers.get((node, life), 0))
        return Said(Sender(node, life, number), message)

    def step(self, event: ManagerEvent) -> None:
        effects = self.core.step(self.now, event)
        self.journal += [(self.now, row) for row in self.core.to_journal()]
        if self.core.to_journal():
            self.effects += effects
        for effect in effects:
            assert not (isinstance(effect, EndJob) and self.over), "the job ends only once"
            self.over = self.over or isinstance(effect, EndJob)
            if isinstance(effect, Tell) and isinstance(effect.message, Order):
                self.check(effect.message)
        facts = self.core.facts(self.now)
        assert facts["epoch"] >= self.epoch and facts["term"] >= self.term
        self.epoch, self.term = facts["epoch"], facts["term"]
        assert sum(incident["outcome"] == "open" for incident in self.core.incidents(self.now)) <= 1
        deadline = self.core.next_deadline()
        assert deadline is None or deadline <= self.now + limits.TICK_NS

    def check(self, order: Order) -> None:
        assert order.epoch >= self.epoch or order.epoch == self.core.facts(self.now)["epoch"]
        for seat in order.seats:
            known = self.seats.setdefault((order.epoch, seat.rank), seat.incarnation)
            assert known == seat.incarnation, f"epoch {order.epoch} has two incarnations of rank {seat.rank}"

    def run(self, actions: list[tuple[int, Any]]) -> None:
        for wait_ms, what in actions:
            self.now += wait_ms * MS
            self.step(self.event(what))


@given(actions, st.booleans())
@settings(max_examples=200)
def test_the_manager_holds_its_promises(actions: list[tuple[int, Any]], recover: bool) -> None:
    run = Run(recover)
    run.run(actions)
    again = manager(RANKS, 2, recover=recover)
    replayed = [effect for at, event in run.journal for effect in again.replay(at, event)]
    assert replayed == run.effects
    assert [i["reason"] for i in again.incidents(run.now)] == [i["reason"] for i in run.core.incidents(run.now)]


@given(actions)
@settings(max_examples=200)
def test_every_incident_closes_or_climbs(actions: list[tuple[int, Any]]) -> None:
    """In any state all nodes fall silent. In a job that we repair, every incident then ends within its deadlines. An
    observed incident is different: it waits for an outside repair as long as ranks live."""
    run = Run(recover=True)
    run.run(actions)
    end = run.now + 40 * limits.DEADLINE_SETUP_NS
    while run.now < end and not run.over:
        deadline = run.core.next_deadline()
        if deadline is None:
            break
        due = [incident for incident in run.core.incidents(run.now) if incident["outcome"] == "open"]
        if not due or due[0]["state"] == "observing":
            break
        run.now = max(run.now, deadline)
        run.step(Tick())
    unfinished = [i for i in run.core.incidents(run.now) if i["outcome"] == "open" and i["state"] != "observing"]
    assert not unfinished, unfinished


def test_a_manager_is_made_of_nothing_but_its_arguments() -> None:
    assert Manager("job", 1, 1, frozenset(), False, 0).facts(0) == Manager("job", 1, 1, frozenset(), False, 0).facts(0)
