"""The worker's core: whatever orders come in whatever sequence, it only goes forward."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taskd.core.effects import Park, Quit, Reach, Rebuild, Restore, Resume, WorkerEffect
from taskd.core.events import Done, Tick, WorkerEvent
from taskd.core.messages import Order, Seat, Stop, WorkerWelcome
from taskd.core.types import PROGRESS, Stage
from taskd.core.worker import Worker

STAGES = [Stage.PARKED, Stage.REBUILT, Stage.RESTORED, Stage.RUNNING]


def order(epoch: int, stage: Stage, term: int = 1, seats: tuple[Seat, ...] = ()) -> Order:
    return Order(term, epoch, stage, 1, 7, seats, (), "")


def done(epoch: int, stage: Stage, ok: bool = True, updates: int = 7) -> Done:
    return Done(epoch, stage, updates, ok, "" if ok else "it broke")


def reached(effects: list[WorkerEffect]) -> list[tuple[int, Stage, bool]]:
    return [(e.message.epoch, e.message.stage, e.message.ok) for e in effects if isinstance(e, Reach)]


def test_a_whole_repair() -> None:
    worker = Worker(3, 1, 1, newcomer=False)
    assert worker.step(0, order(2, Stage.PARKED)) == [Park(2)]
    assert worker.stage is Stage.SETUP  # on its way: it no longer reports that it runs
    assert reached(worker.step(0, done(2, Stage.PARKED))) == [(2, Stage.PARKED, True)]
    assert worker.step(0, order(2, Stage.REBUILT)) == [Rebuild(order(2, Stage.REBUILT))]
    assert reached(worker.step(0, done(2, Stage.REBUILT))) == [(2, Stage.REBUILT, True)]
    assert worker.step(0, order(2, Stage.RESTORED)) == [Restore(order(2, Stage.RESTORED))]
    assert reached(worker.step(0, done(2, Stage.RESTORED))) == [(2, Stage.RESTORED, True)]
    assert worker.step(0, order(2, Stage.RUNNING)) == [Resume(2, 7)]
    assert reached(worker.step(0, done(2, Stage.RUNNING))) == [(2, Stage.RUNNING, True)]
    after_first_step = worker.step(0, done(2, Stage.RUNNING, updates=8))
    assert [effect.message.updates for effect in after_first_step if isinstance(effect, Reach)] == [8]
    assert worker.step(0, done(2, Stage.RUNNING, updates=8)) == []


def test_a_newcomer_parks_at_the_end_of_its_set_up_in_the_newest_epoch() -> None:
    worker = Worker(3, 2, 2, newcomer=True)
    assert worker.stage is Stage.SETUP
    assert worker.step(0, order(2, Stage.PARKED)) == []
    assert worker.step(0, order(3, Stage.PARKED)) == [Park(3)]
    assert worker.step(0, done(2, Stage.PARKED)) == []
    assert reached(worker.step(0, done(3, Stage.PARKED))) == [(3, Stage.PARKED, True)]


def test_a_repeated_order_makes_it_say_again_where_it_stands() -> None:
    worker = Worker(0, 1, 1, newcomer=False)
    worker.step(0, order(2, Stage.PARKED))
    assert worker.step(0, order(2, Stage.PARKED)) == []  # it is on its way
    said = worker.step(0, done(2, Stage.PARKED))
    assert worker.step(0, order(2, Stage.PARKED)) == said


def test_a_newer_epoch_interrupts_and_the_older_is_void() -> None:
    worker = Worker(0, 1, 1, newcomer=False)
    worker.step(0, order(2, Stage.PARKED))
    worker.step(0, done(2, Stage.PARKED))
    worker.step(0, order(2, Stage.REBUILT))
    assert worker.step(0, order(3, Stage.PARKED)) == [Park(3)]
    assert worker.step(0, done(2, Stage.REBUILT)) == []
    assert worker.step(0, order(2, Stage.RUNNING)) == []
    assert worker.counters.by_reason == {"done in another epoch": 1, "order of an older epoch": 1}


def test_a_missed_order_to_park_is_made_up_for() -> None:
    worker = Worker(0, 1, 1, newcomer=False)
    assert worker.step(0, order(2, Stage.REBUILT)) == [Park(2)]
    effects = worker.step(0, done(2, Stage.PARKED))
    assert reached(effects) == [(2, Stage.PARKED, True)] and effects[1:] == [Rebuild(order(2, Stage.REBUILT))]


def test_a_stage_that_fails_is_told_and_told_again() -> None:
    worker = Worker(0, 1, 1, newcomer=False)
    worker.step(0, order(2, Stage.PARKED))
    worker.step(0, done(2, Stage.PARKED))
    worker.step(0, order(2, Stage.REBUILT))
    assert reached(worker.step(0, done(2, Stage.REBUILT, ok=False))) == [(2, Stage.REBUILT, False)]
    assert reached(worker.step(0, order(2, Stage.REBUILT))) == [(2, Stage.REBUILT, False)]
    assert worker.step(0, order(3, Stage.PARKED)) == [Park(3)]


def test_its_seat_goes_to_another_incarnation() -> None:
    worker = Worker(4, 1, 1, newcomer=False)
    effects = worker.step(0, order(2, Stage.PARKED, seats=(Seat(4, 2, "b"),)))
    assert [type(effect) for effect in effects] == [Quit]
    assert worker.step(0, order(3, Stage.PARKED)) == []


def test_a_membership_changes_nothing_but_the_epoch() -> None:
    worker = Worker(4, 1, 0, newcomer=False)
    assert reached(worker.step(0, order(5, Stage.RUNNING))) == [(5, Stage.RUNNING, True)]
    assert worker.epoch == 5


EVENTS = st.one_of(
    st.builds(order, st.integers(0, 5), st.sampled_from(STAGES), st.integers(0, 3)),
    st.builds(order, st.integers(0, 5), st.sampled_from([*STAGES, Stage.SETUP]), st.just(1),
              st.tuples(st.builds(Seat, st.integers(0, 1), st.integers(0, 3), st.just("a")))),
    st.builds(done, st.integers(0, 5), st.sampled_from(list(Stage)), st.booleans(), st.integers(-1, 9)),
    st.builds(WorkerWelcome, st.booleans(), st.booleans(), st.integers(0, 2), st.integers(0, 5), st.just("")),
    st.builds(Stop, st.integers(0, 3), st.integers(0, 1), st.just("")),
    st.just(Tick()),
)  # fmt: skip


@given(st.lists(EVENTS, max_size=40), st.booleans())
def test_it_only_goes_forward(events: list[WorkerEvent], newcomer: bool) -> None:
    worker = Worker(0, 1, 1, newcomer)
    epoch, progress, quits = worker.epoch, -1, 0
    for event in events:
        effects = worker.step(0, event)
        assert worker.epoch >= epoch
        if worker.epoch > epoch:
            epoch, progress = worker.epoch, -1
        for effect in effects:
            if isinstance(effect, Reach) and effect.message.ok:
                assert effect.message.epoch == epoch
                assert PROGRESS[effect.message.stage] >= progress
                progress = PROGRESS[effect.message.stage]
            quits += isinstance(effect, Quit)
        assert quits <= 1
