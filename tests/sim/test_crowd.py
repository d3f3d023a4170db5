"""The simulated training (Crowd): who blocks whom, what a dying rank holds, and each rule of the checkers by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from taskd.core.effects import Park, Rebuild, Restore, Resume
from taskd.core.messages import Order
from taskd.core.types import Phase, Stage
from taskd.sim.crowd import Crowd, Group, Member, Pace
from taskd.sim.loop import Loop
from taskd.sim.watch import Violation, Watch

MS = 1_000_000
PACE = Pace(compute_ns=100 * MS, spread_ns=20 * MS, wire_ns=5 * MS, apply_ns=50 * MS)
STEP_NS = 125 * MS
RANKS = 4


class Job:
    """A crowd that has started in one group."""

    def __init__(self, key: int = 0) -> None:
        self.loop = Loop()
        self.watch = Watch(RANKS)
        self.crowd = Crowd(self.loop, self.watch, RANKS, PACE, salt=7)
        self.members = [Member(rank, 100 + rank, f"n{rank // 2}") for rank in range(RANKS)]
        self.group = self.crowd.group(key)
        for member in self.members:
            member.begin_fresh()
            self.group.join(member)
            self.group.resume(member, 0)

    def run_ms(self, duration_ms: float) -> None:
        self.loop.run(self.loop.now + int(duration_ms * MS))


def test_steps_come_one_by_one_and_cost_one_event() -> None:
    job = Job()
    job.run_ms(1250)
    assert job.group.done == 10 and job.loop.events == 10
    assert job.group.models[1] == job.watch.oracle.model(10)


def test_dead_member_blocks_everybody() -> None:
    job = Job()
    job.run_ms(1300)
    job.group.settle(job.members[2], abandon=True)
    job.run_ms(5000)
    assert job.group.done == 10 and not job.crowd.training()


def test_updates_held_depend_on_the_moment() -> None:
    """Right after a collective no rank has applied its update. Some time later some ranks have, and in the end all."""
    job = Job()
    job.run_ms(125)
    assert {job.group.held_by(member, job.loop.now) for member in job.members} == {0}
    seen = set()
    for _ in range(50):
        job.run_ms(1)
        held = tuple(job.group.held_by(member, job.loop.now) for member in job.members)
        seen.add(held)
        for member in job.members:
            step, phase, _ = job.group.place(member, job.loop.now)
            assert (step, phase) in {(0, Phase.OPTIMIZER), (0, Phase.APPLIED), (1, Phase.BODY)}
    assert (1, 1, 1, 1) in seen and any(set(held) == {0, 1} for held in seen)


def test_who_dies_before_its_update_is_one_behind() -> None:
    job = Job()
    job.run_ms(125)
    job.group.settle(job.members[0], abandon=True)
    job.group.settle(job.members[1], abandon=False)
    assert [member.updates for member in job.members[:2]] == [0, 1]
    assert [member.model for member in job.members[:2]] == [job.watch.oracle.model(0), job.watch.oracle.model(1)]
    for member in job.members[:2]:
        job.watch.holds(member)


def test_cut_network_holds_the_step_until_it_is_mended() -> None:
    job = Job()
    job.crowd.cut("n1")
    job.crowd.cut("n1")
    job.run_ms(1000)
    assert job.group.done == 0
    job.crowd.mend("n1")
    job.run_ms(1000)
    assert job.group.done == 0
    job.crowd.mend("n1")
    job.run_ms(5)
    assert job.group.done == 1 and job.crowd.training()


# ---- every rule, broken by hand


def two_processes_in_one_epoch(job: Job) -> None:
    job.group.join(Member(2, 999, "n9"))


def parks_too_late(job: Job) -> None:
    for at, member in zip((0, 7), job.members, strict=False):
        member.parked_epoch, member.parked_at, member.group = 5, at, None
    job.watch.rebuilds(5, job.members[0], 3)
    job.watch.rebuilds(5, job.members[1], 8)


def rebuilds_while_it_trains(job: Job) -> None:
    job.members[0].parked_epoch = job.members[0].parked_at = 5
    job.watch.rebuilds(5, job.members[0], 6)


def resumes_elsewhere(job: Job) -> None:
    job.watch.resumes(5, job.members[0], 3, 4)


def resumes_with_less(job: Job) -> None:
    job.watch.resumes(5, job.members[0], 3, -1)


def resumes_with_another_model(job: Job) -> None:
    job.members[0].model += 1
    job.watch.resumes(5, job.members[0], 0, -1)


def loses_an_update(job: Job) -> None:
    job.members[1].updates = 1
    job.watch.parks(5, job.members[0])
    job.watch.parks(5, job.members[1])
    job.watch.resumes(5, job.members[0], 0, -1)


def steps_without_a_rank(job: Job) -> None:
    job.watch.stepped(0, 1, job.watch.oracle.model(1), {0: job.members[0]})


def steps_twice(job: Job) -> None:
    everybody = dict(enumerate(job.members))
    job.watch.stepped(3, 1, job.watch.oracle.model(1), everybody)
    job.watch.stepped(3, 1, job.watch.oracle.model(1), everybody)


def steps_in_an_old_epoch(job: Job) -> None:
    everybody = dict(enumerate(job.members))
    job.watch.stepped(3, 1, job.watch.oracle.model(1), everybody)
    job.watch.stepped_apart(2, 2, job.watch.oracle.model(2), True)
    job.watch.stepped_apart(2, 3, job.watch.oracle.model(3), False)


def steps_to_another_model(job: Job) -> None:
    job.watch.stepped(0, 1, job.watch.oracle.model(2), dict(enumerate(job.members)))


def goes_back_to_an_epoch(job: Job) -> None:
    job.watch.told(job.members[0], Park(5))
    job.watch.told(job.members[0], Park(4))


def rebuilds_unparked(job: Job) -> None:
    job.watch.told(job.members[0], Rebuild(order(5)))


def resumes_unrestored(job: Job) -> None:
    job.watch.told(job.members[0], Park(5))
    job.watch.told(job.members[0], Rebuild(order(5)))
    job.watch.told(job.members[0], Resume(5, 0))


def restores_in_another_epoch(job: Job) -> None:
    job.watch.told(job.members[0], Park(5))
    job.watch.told(job.members[0], Rebuild(order(5)))
    job.watch.told(job.members[0], Restore(order(6)))


def relays_an_old_epoch(job: Job) -> None:
    job.watch.relays("n0", 1, 5)
    job.watch.relays("n0", 2, 4)
    job.watch.relays("n0", 1, 4)


def order(epoch: int) -> Order:
    return Order(1, epoch, Stage.REBUILT, 1, 0, (), (), "")


@pytest.mark.parametrize(
    ("breach", "rule"),
    [
        (two_processes_in_one_epoch, "one-incarnation"),
        (parks_too_late, "parked-first"),
        (rebuilds_while_it_trains, "parked-first"),
        (resumes_elsewhere, "one-point"),
        (resumes_with_less, "one-point"),
        (resumes_with_another_model, "same-model"),
        (loses_an_update, "nothing-lost"),
        (steps_without_a_rank, "updates-once"),
        (steps_twice, "updates-once"),
        (steps_in_an_old_epoch, "updates-once"),
        (steps_to_another_model, "same-model"),
        (goes_back_to_an_epoch, "epochs-grow"),
        (rebuilds_unparked, "parked-first"),
        (resumes_unrestored, "parked-first"),
        (restores_in_another_epoch, "parked-first"),
        (relays_an_old_epoch, "epochs-grow"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_checkers_complain(breach: Callable[[Job], None], rule: str) -> None:
    with pytest.raises(Violation) as complaint:
        breach(Job())
    assert complaint.value.rule == rule


def test_group_that_lost_nobody_goes_on_after_a_repair() -> None:
    """The same members go on in a new epoch, and no rule complains."""
    job = Job()
    job.run_ms(1300)
    group: Group = job.crowd.group(1)
    for member in job.members:
        job.watch.told(member, Park(1))
        job.group.settle(member, abandon=False)
        member.parked_epoch, member.parked_at = 1, job.loop.now
        job.watch.parks(1, member)
    for member in job.members:
        job.watch.rebuilds(1, member, job.loop.now)
        group.join(member)
    job.run_ms(10)
    for member in job.members:
        group.resume(member, 10)
    job.run_ms(130)
    assert group.done == 11 and len(job.crowd.heals_ns) == 1
    assert STEP_NS < job.crowd.heals_ns[0] < 3 * STEP_NS
