"""The agent's core: what it reports, which processes it admits, how it follows orders, and that it never raises."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.core import limits
from taskd.core.agent import Agent
from taskd.core.effects import AgentEffect, End, Leave, Refuse, Relay, Send, Spawn, Warn
from taskd.core.events import (
    AgentEvent,
    Connected,
    DeviceSeen,
    Disconnected,
    Gone,
    Heard,
    Reading,
    Readings,
    Started,
    StartFailed,
    Tick,
    WorkerSaid,
)
from taskd.core.limits import MS, SECOND
from taskd.core.messages import (
    AgentHello,
    Answer,
    Confirmed,
    Evidence,
    Order,
    RankReport,
    RanksEnded,
    Refused,
    Report,
    Seat,
    StageReached,
    Stop,
    WorkerHello,
    WorkerLeaving,
    WorkerWelcome,
)
from taskd.core.post import Identity
from taskd.core.types import DeviceKind, EvidenceKind, Harm, Phase, RankState, Stage, StopKind
from taskd.core.words import LEFT_UNSAID


def agent(spawns: bool = True) -> Agent:
    return Agent(Identity("job", "a", "host", 1, spawns, 2, 100 * MS))


def hello(rank: int = 0, pid: int = 50, incarnation: int = 0, **changes: Any) -> WorkerHello:
    values: dict[str, Any] = {"job": "job", "world_size": 4, "epoch": 0, "stage": Stage.RUNNING, **changes}
    return WorkerHello(
        values["job"], rank, values["world_size"], rank, pid, incarnation, "pt", values["epoch"], values["stage"], b""
    )


def order(epoch: int, stage: Stage, *seats: Seat, term: int = 1, updates: int = -1) -> Heard:
    return Heard(Order(term, epoch, stage, 1, updates, seats, (), ""))


def answer(*confirmed: Confirmed, refused: tuple[Refused, ...] = (), term: int = 1, **changes: Any) -> Heard:
    values: dict[str, Any] = {"accepted": True, "want_hello": False, **changes}
    return Heard(Answer(term, values["accepted"], "", values["want_hello"], 1, confirmed, refused))


def joined(spawns: bool = True, ranks: int = 1) -> Agent:
    """Return an agent whose workers run and are known to the manager."""
    core = agent(spawns)
    core.step(0, Connected())
    for rank in range(ranks):
        if spawns:
            core.step(0, Started(rank, 1, 50 + rank))
        core.step(0, WorkerSaid(hello(rank, 50 + rank, int(spawns))))
        core.step(0, answer(Confirmed(rank, 1)))
    return core


def reports(effects: list[AgentEffect]) -> list[Report]:
    return [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, Report)]


def of(kind: type, effects: list[AgentEffect]) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


def test_a_worker_is_let_in_at_once_and_acknowledged_by_the_manager() -> None:
    core = agent()
    core.step(0, Started(0, 1, 50))
    core.step(0, Connected())
    effects = core.step(0, WorkerSaid(hello(incarnation=1)))
    assert of(Relay, effects)[0].message == WorkerWelcome(True, False, 1, 0, "")
    assert [e.message.world_size for e in effects if isinstance(e, Send) and isinstance(e.message, AgentHello)] == [4]
    effects = core.step(0, answer(Confirmed(0, 1)))
    assert of(Relay, effects)[0].message.acknowledged


def test_without_a_manager_a_worker_is_let_in_as_well() -> None:
    effects = agent(spawns=False).step(0, WorkerSaid(hello()))
    assert of(Relay, effects)[0].message == WorkerWelcome(True, False, 1, 0, "")
    assert of(Send, effects) == []


def test_a_beat_carries_what_changed_and_a_full_one_everything() -> None:
    core = joined(ranks=2)
    core.step(100 * MS, Tick())
    quiet = core.step(200 * MS, Tick())
    assert reports(quiet) == [Report(False, 1, (), 1)]
    core.step(250 * MS, Readings((Reading(0, 1, 0, 9, Phase.BODY, 3, 100), Reading(1, 1, 0, -1, Phase.SETUP, 3, 0))))
    assert [[r.rank for r in report.ranks] for report in reports(core.step(300 * MS, Tick()))] == [[0]]
    full = reports(core.step(limits.FULL_REPORT_NS + 300 * MS, Tick()))
    assert full[0].full and [r.rank for r in full[0].ranks] == [0, 1]


def test_what_is_not_confirmed_is_said_again_and_again() -> None:
    core = agent()
    core.step(0, Started(0, 1, 50))
    core.step(0, Connected())
    core.step(0, WorkerSaid(hello(incarnation=1)))
    for beat in range(1, 5):
        assert [r.rank for r in reports(core.step(beat * 100 * MS, Tick()))[0].ranks] == [0]


def test_nothing_is_sent_without_a_connection_and_everything_afterwards() -> None:
    core = joined()
    core.step(0, Disconnected())
    assert core.step(100 * MS, Tick()) == []
    core.step(150 * MS, WorkerSaid(Evidence(EvidenceKind.COLLECTIVE_ERROR, -1, 0, 0, 0, "reset")))
    assert core.step(200 * MS, Gone(0, 1, -9, "")) == []
    effects = core.step(300 * MS, Connected())
    assert [type(e.message) for e in of(Send, effects)] == [AgentHello, Report, Evidence]
    assert reports(effects)[0].ranks[0].state is RankState.DEAD and reports(effects)[0].ranks[0].exit_code == -9


def test_who_is_turned_away() -> None:
    core = joined()
    for wrong in (hello(0, 99), hello(1, 99, job="x"), hello(7, 99), hello(1, 99, world_size=8), hello(3, 99, 9)):
        refused = of(Refuse, core.step(0, WorkerSaid(wrong)))
        assert refused[0].pid == 99 and not refused[0].message.accepted and refused[0].message.reason
    assert len(core.crew.ranks) == 1 and core.post.counters.by_reason == {"worker refused": 5}


def test_where_a_launcher_starts_the_workers_nobody_claims_a_rank_of_another_node() -> None:
    """It would take the seat of the true rank, because the manager trusts a launcher about its own processes."""
    claims = WorkerSaid(hello(3, 99, incarnation=9))
    refused = of(Refuse, joined(spawns=True).step(0, claims))
    assert refused[0].message.reason == "this node's launcher has started no process for rank 3"
    core = joined(spawns=True)
    core.step(0, Gone(0, 1, -9, ""))
    assert of(Refuse, core.step(0, WorkerSaid(hello(0, 99, incarnation=2)))), "nor one that has died"


def test_a_launched_process_behind_a_wrapper_keeps_its_seat() -> None:
    core = agent()
    core.step(0, Started(0, 1, 40))
    assert of(Relay, core.step(0, WorkerSaid(hello(0, 41, 1))))[0].message.accepted
    assert core.crew.ranks[0].pid == 41


def test_a_worker_comes_back_under_the_number_that_the_manager_names() -> None:
    core = joined(spawns=False)
    effects = core.step(0, answer(refused=(Refused(0, 1, 4, "ended"),)))
    assert of(Relay, effects)[0].message == WorkerWelcome(True, False, 4, 1, "")
    assert reports(effects)[0].ranks[0].incarnation == 4


def test_a_refused_worker_is_ended_by_its_launcher_and_only_told_by_a_side_agent() -> None:
    refusal = answer(refused=(Refused(0, 1, 0, "held elsewhere"),))
    assert [type(e) for e in joined(spawns=True).step(0, refusal)] == [Warn, End]
    side = joined(spawns=False).step(0, refusal)
    assert [type(e) for e in side] == [Warn, Relay] and not side[1].message.accepted


def test_an_order_starts_newcomers_once_and_is_relayed_until_it_is_followed() -> None:
    core = joined()
    seat = Seat(1, 2, "a")
    effects = core.step(0, order(2, Stage.PARKED, seat))
    assert of(Spawn, effects) == [Spawn(1, 2, 2, newcomer=True)]
    assert of(Relay, effects)[0].ranks == (0,)
    assert core.step(0, order(2, Stage.PARKED, seat)) == []
    assert of(Relay, core.step(260 * MS, Tick()))[0].ranks == (0,)
    core.step(300 * MS, WorkerSaid(StageReached(0, 1, 2, Stage.PARKED, 5, True, "")))
    assert of(Relay, core.step(900 * MS, Tick())) == []


def test_a_stage_is_reported_at_once() -> None:
    core = joined()
    core.step(0, order(2, Stage.PARKED))
    sent = reports(core.step(0, WorkerSaid(StageReached(0, 1, 2, Stage.PARKED, 5, True, ""))))
    assert (sent[0].ranks[0].epoch, sent[0].ranks[0].stage, sent[0].ranks[0].updates) == (2, Stage.PARKED, 5)
    assert core.step(0, WorkerSaid(StageReached(0, 1, 2, Stage.PARKED, 5, True, ""))) == []
    core.step(0, WorkerSaid(StageReached(0, 9, 2, Stage.REBUILT, 5, True, "")))
    assert core.post.counters.by_reason == {"stage of another incarnation": 1}


def test_no_order_reaches_a_worker_that_is_not_confirmed() -> None:
    core = joined()
    core.step(0, Disconnected())
    core.step(0, Connected())
    assert of(Relay, core.step(0, order(2, Stage.PARKED))) == []
    assert [type(e.message) for e in of(Relay, core.step(0, answer(Confirmed(0, 1))))] == [WorkerWelcome, Order]


def test_a_seat_that_goes_on_here_is_ended_first() -> None:
    core = joined()
    effects = core.step(0, order(2, Stage.PARKED, Seat(0, 2, "a")))
    assert of(End, effects)[0].incarnation == 1 and of(Spawn, effects) == []
    assert of(Spawn, core.step(0, Gone(0, 1, -9, ""))) == [Spawn(0, 2, 2, newcomer=True)]


def test_a_seat_that_goes_on_elsewhere_is_ended_and_not_started() -> None:
    core = joined()
    assert of(End, core.step(0, order(2, Stage.PARKED, Seat(0, 2, "b"))))
    assert of(Spawn, core.step(0, Gone(0, 1, -9, ""))) == []


def test_a_plain_membership_starts_nobody_and_a_respawn_does() -> None:
    assert of(Spawn, joined().step(0, order(3, Stage.RUNNING, Seat(1, 2, "a"), updates=5))) == []
    assert of(Spawn, joined().step(0, order(3, Stage.RUNNING, Seat(1, 2, "a")))) == [Spawn(1, 2, 3, newcomer=False)]


def over(epoch: int, term: int = 1, reason: str = "rank 1 died") -> Heard:
    return Heard(Order(term, epoch, Stage.RUNNING, 1, -1, (Seat(0, 2, "a"), Seat(1, 2, "b")), (), reason))


def test_a_start_of_all_is_said_once() -> None:
    core = joined()
    assert of(Warn, core.step(0, over(3))) == [Warn("all ranks start over: rank 1 died")]
    assert of(Warn, [*core.step(0, over(3)), *core.step(0, over(3, term=2))]) == []
    assert of(Warn, core.step(0, over(4, term=2))) == [Warn("all ranks start over: rank 1 died")]
    assert of(Warn, joined().step(0, over(2))) == [Warn("all ranks start over: rank 1 died")]
    assert of(Warn, joined(spawns=False).step(0, over(2))) == []
    assert of(Warn, joined().step(0, order(2, Stage.PARKED, Seat(1, 2, "a")))) == []


def test_the_refusal_of_a_rank_that_is_being_replaced_is_no_news() -> None:
    core = joined()
    assert of(End, core.step(0, over(2)))
    assert core.step(0, answer(refused=(Refused(0, 1, 0, "rank 0 goes on as incarnation 2"),))) == []


def test_exit_code_0_inside_a_step_is_no_good_end() -> None:
    for phase, state in ((Phase.BODY, RankState.DEAD), (Phase.APPLIED, RankState.LEFT), (Phase.SETUP, RankState.LEFT)):
        core = joined()
        core.step(0, Readings((Reading(0, 1, 1, 6, phase, 1, 100),)))
        (report,) = reports(core.step(0, Gone(0, 1, 0, "")))
        assert (report.ranks[0].state, report.ranks[0].exit_code) == (state, 0)
        early = "left with exit code 0 in the middle of step 6"
        assert report.ranks[0].reason == (early if state is RankState.DEAD else LEFT_UNSAID)


def test_a_good_end_that_was_announced_needs_no_reason() -> None:
    """What a late or strange process says is not this one's farewell."""
    for said, reason in ((WorkerLeaving(0, 1, ""), ""), (WorkerLeaving(0, 2, ""), LEFT_UNSAID)):
        core = joined()
        core.step(0, WorkerSaid(said))
        (report,) = reports(core.step(0, Gone(0, 1, 0, "")))
        assert (report.ranks[0].state, report.ranks[0].reason) == (RankState.LEFT, reason)
    core = joined()
    (report,) = reports(core.step(0, Gone(0, 1, 0, "it goes on without taskd")))
    assert report.ranks[0].reason == "it goes on without taskd"


def test_ends_of_other_ranks_reach_all_processes() -> None:
    core = joined()
    message = RanksEnded(1, 1, (3,))
    assert of(Relay, core.step(0, Heard(message))) == [Relay((0,), message)]


def test_an_end_before_the_start_has_happened_is_made_up_for() -> None:
    core = agent()
    core.step(0, order(2, Stage.PARKED, Seat(0, 2, "a")))
    core.step(0, order(3, Stage.PARKED, Seat(0, 3, "a")))
    assert of(End, core.step(0, Started(0, 2, 77)))[0].incarnation == 2


def test_older_terms_epochs_and_stages_are_void() -> None:
    core = joined()
    core.step(0, order(3, Stage.REBUILT, term=2))
    for stale in (order(9, Stage.PARKED, term=1), order(2, Stage.PARKED, term=2), order(3, Stage.PARKED, term=2)):
        assert core.step(0, stale) == []
    assert core.post.counters.by_reason == {
        "message of an older term": 1,
        "order of an older epoch": 1,
        "order of an older stage": 1,
    }


def test_stop_ends_everybody_and_the_agent_last() -> None:
    core = joined()
    stop = Heard(Stop(1, 3, "over"))
    assert [type(e) for e in core.step(0, stop)] == [Relay]
    assert of(End, core.step(limits.STOP_GRACE_NS, Tick()))
    effects = core.step(6 * SECOND, Gone(0, 1, -9, ""))
    assert of(Leave, effects) == [Leave(3, "over")]
    assert core.step(7 * SECOND, Tick()) == [] and core.next_deadline() is None


@pytest.mark.parametrize("kind", StopKind)
def test_an_agent_knows_why_it_is_told_to_stop(kind: StopKind) -> None:
    """Only who is no longer needed in a job that goes on says so. No words are read for that."""
    core = joined()
    effects = core.step(0, Heard(Stop(1, 0, "an operator has drained", kind)))
    assert bool(of(Warn, effects)) is (kind is StopKind.DRAINED)
    assert of(Leave, core.step(1 * SECOND, Gone(0, 1, 0, ""))) == [Leave(0, "an operator has drained", kind)]


def test_a_side_agent_leaves_after_its_workers_unless_others_come() -> None:
    core = joined(spawns=False)
    core.step(1 * SECOND, Gone(0, 1, 0, ""))
    assert of(Leave, core.step(2 * SECOND, Tick())) == []
    core.step(3 * SECOND, WorkerSaid(hello(0, 60)))
    assert core.crew.ranks[0].incarnation == 2
    core.step(4 * SECOND, Gone(0, 2, 0, ""))
    core.step(5 * SECOND, Tick())
    assert of(Leave, core.step(5 * SECOND + limits.LINGER_NS, Tick())) == [
        Leave(0, "all workers of this node have ended")
    ]


def test_a_launcher_waits_for_the_manager_and_not_for_ever() -> None:
    core = joined()
    core.step(0, Disconnected())
    core.step(0, Gone(0, 1, 3, ""))
    assert of(Leave, core.step(limits.ABANDONED_NS - SECOND, Tick())) == []
    assert of(Leave, core.step(limits.ABANDONED_NS, Tick()))[0].exit_code == 3


def test_a_manager_that_is_late_is_waited_for_as_long() -> None:
    core, began = agent(), 1_000 * limits.ABANDONED_NS  # the clock does not begin with the job
    core.step(began, Started(0, 1, 50))
    core.step(began, WorkerSaid(hello(incarnation=1)))
    core.step(began, Gone(0, 1, 3, ""))
    assert of(Leave, core.step(began + SECOND, Tick())) == []
    assert of(Leave, core.step(began + limits.ABANDONED_NS - SECOND, Tick())) == []
    assert of(Leave, core.step(began + 2 * limits.ABANDONED_NS, Tick()))[0].exit_code == 3


def test_an_exception_is_the_reason_of_the_end_that_follows() -> None:
    core = joined(ranks=2)
    for rank, text in ((0, "rank 0 raised ValueError: no"), (1, "rank 1 saw something")):
        kind = EvidenceKind.EXCEPTION if rank == 0 else EvidenceKind.COLLECTIVE_ERROR
        core.step(SECOND, WorkerSaid(Evidence(kind, rank, 1, rank, 0, text)))
    found = [
        row for rank in (0, 1) for report in reports(core.step(SECOND, Gone(rank, 1, 1, ""))) for row in report.ranks
    ]
    assert [(row.rank, row.reason) for row in found] == [(0, "ValueError: no"), (1, "")]


ranks, numbers = st.integers(0, 2), st.integers(0, 3)
seats = st.lists(st.builds(Seat, ranks, st.integers(1, 5), st.sampled_from("ab")), max_size=2).map(tuple)
ANY = st.one_of(
    st.builds(WorkerSaid, st.builds(hello, ranks, st.integers(1, 4), numbers, epoch=numbers)),
    st.builds(WorkerSaid, st.builds(StageReached, ranks, numbers, numbers, st.sampled_from(list(Stage)),
                                    st.integers(-1, 3), st.booleans(), st.just("why"))),
    st.builds(WorkerSaid, st.builds(WorkerLeaving, ranks, numbers, st.just("bye"))),
    st.builds(Started, ranks, numbers, st.integers(1, 4)),
    st.builds(StartFailed, ranks, numbers, st.just("no")),
    st.builds(Gone, ranks, numbers, st.integers(-9, 1), st.just("")),
    st.builds(Heard, st.builds(Order, numbers, numbers, st.sampled_from(list(Stage)), st.just(1),
                               st.integers(-1, 2), seats, st.just(()), st.just(""))),
    st.builds(lambda rank, number, following, term, want: answer(
        Confirmed(rank, number), refused=(Refused(rank, number, following, "no"),), term=term, want_hello=want),
        ranks, numbers, st.integers(0, 4), numbers, st.booleans()),
    st.builds(Heard, st.builds(Stop, numbers, numbers, st.just("over"))),
    st.builds(DeviceSeen, st.integers(-1, 2), st.just(""), st.sampled_from(list(DeviceKind)), numbers, st.just("heat"),
              st.sampled_from(list(Harm)), st.just((1, 2)), st.just((3,))),
    st.sampled_from([Connected(), Disconnected(), Tick(), Tick(), Tick()]),
)  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from([0, 10, 100, 300, 6_000, 61_000]), ANY), max_size=50), st.booleans())
@settings(max_examples=300)
def test_any_events(events: list[tuple[int, AgentEvent]], spawns: bool) -> None:
    core, now, term, epoch = agent(spawns), 0, 0, 0
    started: set[tuple[int, int]] = set()
    for wait_ms, event in events:
        now += wait_ms * MS
        for effect in core.step(now, event):
            if isinstance(effect, Spawn):
                assert spawns and (effect.rank, effect.incarnation) not in started
                started.add((effect.rank, effect.incarnation))
            if isinstance(effect, Send) and isinstance(effect.message, Report):
                named = [report.rank for report in effect.message.ranks]
                assert len(named) == len(set(named)) and all(isinstance(r, RankReport) for r in effect.message.ranks)
        assert core.post.term >= term and core.post.epoch >= epoch
        term, epoch = core.post.term, core.post.epoch


def test_a_spare_whose_manager_is_gone_for_good_ends() -> None:
    """No manager will ever need this spare, and nothing else would end it."""
    core = agent(spawns=True)
    core.step(0, Connected())
    core.step(0, answer())
    core.step(SECOND, Disconnected())
    assert not of(Leave, core.step(SECOND + limits.ABANDONED_NS - 1, Tick()))
    assert [effect.exit_code for effect in of(Leave, core.step(SECOND + limits.ABANDONED_NS, Tick()))] == [1]


def test_a_launcher_that_was_stopped_says_so() -> None:
    core = agent(spawns=True)
    core.step(0, Tick())
    core.step(100 * MS, Tick())
    assert not of(Warn, core.step(200 * MS + limits.AWAY_NS - 1, Tick()))
    (said,) = of(Warn, core.step(30 * SECOND + 300 * MS + limits.AWAY_NS, Tick()))
    assert said.text.startswith("this launcher (process 1) did not run for 30")


def raises(core: Agent, rank: int, words: str) -> None:
    text = f"rank {rank} raised {words}"
    core.step(0, WorkerSaid(Evidence(EvidenceKind.EXCEPTION, rank, 1, rank, 1, text)))


def test_who_raised_first_began_it_whoever_ends_first() -> None:
    core = joined(ranks=3)
    raises(core, 1, "ValueError: no such file")
    raises(core, 2, "KeyError: 'x'")
    raises(core, 0, "DistBackendError: a collective has failed")
    core.step(0, Gone(0, 1, 1, ""))
    assert core.crew.causes() == [1, 2], "rank 0 has raised what others have caused"
    assert [core.crew.raised(rank) for rank in range(4)] == [False, True, True, False]


def test_a_killed_rank_began_it_although_another_one_says_more() -> None:
    core = joined(ranks=2)
    core.step(0, Gone(1, 1, -9, ""))
    raises(core, 0, "DistBackendError: a collective has failed")
    assert core.crew.causes() == [1] and not core.crew.raised(1)
