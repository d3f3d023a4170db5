"""A training process of a story: the real core.Worker, and a body that carries out its effects in fixed times.

Training is one counter. All ranks do a step every STEP_NS while they all run in one epoch. A story can plant a fault: a
stage that hangs, fails or kills the process. The fault strikes when that stage is ordered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskd.core.effects import LetGo, Park, Quit, Reach, Rebuild, Restore, Resume, Save, WorkerEffect
from taskd.core.events import Done, Raised, Reading, WorkerEvent
from taskd.core.limits import MS, SECOND, STILL_NS
from taskd.core.messages import Covered, Order, PauseOrder, Place, RailOrder, RanksEnded, Still, WorkerHello
from taskd.core.pause.guard import StepGuard
from taskd.core.types import Doing, Phase, Stage
from taskd.core.waits import digest
from taskd.core.words import RAISED_AGAIN, WOULD_BE_WRONG, rank_words
from taskd.core.worker import Worker
from taskd.sim.rails import RailHands

if TYPE_CHECKING:
    from tests.scripts.harness import Node, World

TAKES_NS = {
    "setup": 200 * MS,
    "park": 10 * MS,
    "rebuild": 5 * MS,
    "restore": 20 * MS,
    "resume": 1 * MS,
    "save": 50 * MS,
}
REACHES = {
    "setup": Stage.PARKED,
    "park": Stage.PARKED,
    "save": Stage.SAVED,
    "rebuild": Stage.REBUILT,
    "restore": Stage.RESTORED,
}


class Process:
    """One incarnation of one rank."""

    def __init__(self, world: World, node: Node, rank: int, incarnation: int, epoch: int, newcomer: bool) -> None:
        self.world, self.node, self.rank, self.incarnation = world, node, rank, incarnation
        world.pids += 1
        self.pid = world.pids
        self.alive = True
        self.phase = Phase.SETUP
        self.updates = -1 if newcomer else 0
        self.part = rank % world.parts + 1 if world.parts else 0
        self.taken = False  # whether its state came from another rank
        self.planted: dict[str, str] = {}
        self.step_ms = 100  # the step time in its page; may be longer than its steps here
        self.works_since = -1  # since when it visibly works in a long stage
        self.compiles = False
        self.redoes = self.told_cover = False
        self.still: Doing | None = None  # if it stands still in its step: what its process does
        self.still_in, self.still_at = "", 0
        self.waits = False  # it waits in the step's collective for a rank that has not entered
        self.progress_at = 0
        self.error = ""  # the error that has left its step
        self.rails = RailHands()
        self.guard = StepGuard()
        self.counts_from = 0  # the number of its first step, by its script
        self.core = Worker(rank, incarnation, epoch, newcomer)
        world.after(2 * MS, self.hello)
        if newcomer:
            self.begin("setup", epoch)
        else:
            world.after(TAKES_NS["setup"], self.is_set_up)

    def hello(self) -> None:
        if self.alive:
            core, world = self.core, self.world
            job, size = world.job, world.size
            incarnation = self.incarnation
            self.node.hear(
                WorkerHello(
                    job,
                    self.rank,
                    size,
                    0,
                    self.pid,
                    incarnation,
                    "pt",
                    core.epoch,
                    core.stage,
                    b"",
                    core.updates,
                    core.part,
                    world.cover,
                    str(self.rank % max(self.node.slots, 1)),
                    self.told_cover,
                    core.kept.first,
                    core.kept.last,
                ),
                self,
            )

    def is_set_up(self) -> None:
        if not self.alive:
            return
        if self.planted.pop("setup", "") == "die":
            self.die(1, "ImportError: no module named model")
            return
        self.phase = Phase.BODY
        self.begins()

    # ---- orders -----------------------------------------------------------------------------------------------

    def hear(self, message: WorkerEvent | RailOrder | RanksEnded | PauseOrder) -> None:
        if self.alive and isinstance(message, RanksEnded):
            self.world.say(f"rank {self.rank}", f"waits no longer for {rank_words(message.ranks)}")
        elif self.alive and isinstance(message, RailOrder):
            how = self.planted.get("rails", "")
            if how != "hang":
                self.rails.false = how == "false"
                self.rails.stuck = how.removeprefix("stuck:") if how.startswith("stuck:") else ""
                self.rails.unable = "" if self.rails.false or self.rails.stuck else how
                self.node.hear(self.rails.follow(self.rank, self.incarnation, message), self)
        elif self.alive and isinstance(message, PauseOrder):
            self.hear_pause(message)
        elif self.alive:
            assert not isinstance(message, RailOrder | PauseOrder)
            for effect in self.core.step(self.world.now, message):
                self.carry_out(effect)

    def carry_out(self, effect: WorkerEffect) -> None:
        if isinstance(effect, Reach):
            self.node.hear(effect.message, self)
            return
        self.world.saw(self.rank, effect)
        if isinstance(effect, LetGo) and self.error:
            self.world.after(1 * MS, self.die, 1, self.error)
        elif isinstance(effect, Park):
            self.error = ""
            self.guard.leaves()
            if self.phase is not Phase.SETUP or self.updates >= 0:
                self.begin("park", effect.epoch)
        elif isinstance(effect, Save) and self.rank in effect.order.savers:
            self.begin("save", effect.order.epoch)
        elif isinstance(effect, Save):
            self.hear(Done(effect.order.epoch, Stage.SAVED, self.updates, True, ""))
        elif isinstance(effect, Rebuild):
            self.begin("rebuild", effect.order.epoch)
        elif isinstance(effect, Restore):
            self.begin("restore", effect.order.epoch, effect.order)
        elif isinstance(effect, Resume):
            self.begin("resume", effect.epoch)
        elif isinstance(effect, Quit):
            self.world.after(1 * MS, self.die, effect.exit_code, "")

    def begin(self, what: str, epoch: int, order: Order | None = None) -> None:
        self.world.after(TAKES_NS[what], self.finish, what, epoch, order)

    def finish(self, what: str, epoch: int, order: Order | None) -> None:
        plan = self.planted.pop(what, "") if self.alive else "gone"
        if plan == "die":
            self.die(-9, "")
        elif plan in ("fail", "be-wrong"):
            words = WOULD_BE_WRONG if plan == "be-wrong" else ""
            self.hear(Done(self.core.epoch, REACHES[what], self.updates, False, f"{words}the {what} failed"))
        elif plan.startswith(("waits:", "works:", "compiles:")):
            how, _, time = plan.partition(":")
            self.works_since = self.world.now if how != "waits" else -1
            self.compiles = how == "compiles"
            self.world.after(int(time) * SECOND, self.finish, what, epoch, order)
        elif not plan:
            self.works_since, self.compiles = -1, False
            self.succeed(what, epoch if what != "setup" else self.core.epoch, order)

    def succeed(self, what: str, epoch: int, order: Order | None) -> None:
        if what in ("setup", "park"):
            self.phase = Phase.PARKED
            kept = self.world.kept(self.rank, self.node)
            self.hear(Done(epoch, Stage.PARKED, self.updates, True, "", self.part, kept))
        elif what in ("rebuild", "save"):
            self.hear(Done(epoch, REACHES[what], self.updates, True, ""))
        elif what == "restore":
            assert order is not None
            self.updates = order.updates
            self.taken |= any(fetch.rank == self.rank for fetch in order.fetches)
            self.hear(Done(epoch, Stage.RESTORED, self.updates, True, ""))
        else:
            self.phase, self.redoes = Phase.BODY, True
            self.hear(Done(epoch, Stage.RUNNING, self.updates, True, ""))
            self.guard.set_back(self.updates)
            self.begins()

    # ---- pauses -----------------------------------------------------------------------------------------------

    def hear_pause(self, order: PauseOrder) -> None:
        plan = self.planted.get("pause", "")
        if plan == "deaf":
            return
        if plan == "passes" and order.step >= 0:  # it gets this order too late
            del self.planted["pause"]
            return
        self.guard.ordered(self.world.now, order)
        if plan == "passes":  # its promise ends at once
            self.guard.until = self.world.now
        if self.phase is Phase.PARKED and self.guard.stands:
            self.begins()
        trouble = plan.removeprefix("cannot:") if plan.startswith("cannot:") else ""
        self.node.hear(self.guard.answer(self.rank, self.incarnation, trouble), self)

    def begins(self) -> None:
        """It begins its next step, or stands before it."""
        if not self.alive or self.core.stage is not Stage.RUNNING:
            return
        stood, step = self.guard.stands, self.counts_from + self.updates
        if self.guard.may_begin(self.world.now, step):
            if stood:
                self.world.say(f"rank {self.rank}", f"goes on with step {step}")
            self.phase = Phase.BODY
        else:
            self.phase = Phase.PARKED
            self.world.after(1 * MS, self.stands_before, step)
            if self.guard.until is not None:
                self.world.after(max(self.guard.until - self.world.now, 0), self.begins)
        self.tells()

    def stands_before(self, step: int) -> None:
        """Its device has done all that was queued: now it stands."""
        waits = self.alive and self.phase is Phase.PARKED and self.core.stage is Stage.RUNNING
        if waits and self.guard.holds and not self.guard.stands:
            self.guard.stands = True
            self.world.say(f"rank {self.rank}", f"stands before step {step}")
            self.tells()

    def tells(self) -> None:
        if self.guard.news():
            self.node.hear(self.guard.answer(self.rank, self.incarnation, ""), self)

    # ---- training ---------------------------------------------------------------------------------------------

    @property
    def training(self) -> bool:
        return self.alive and self.phase is Phase.BODY and self.core.stage is Stage.RUNNING and not self.error

    def raises(self, error: str) -> None:
        """An error leaves its step. Its text says if it is raised once more."""
        self.error = error
        if error.startswith(RAISED_AGAIN):
            self.die(1, error)
        else:
            self.hear(Raised(self.updates, error))

    def stands(self, doing: Doing | None, where: str) -> None:
        """It stands still in this way, or goes on (None)."""
        self.still, self.still_in, self.still_at = doing, where, self.world.now

    def enters(self) -> None:
        """It enters the step's collective and waits there."""
        if not self.waits:
            self.waits, self.progress_at = True, self.world.now

    def step_made(self) -> None:
        self.updates += 1
        self.world.homes[self.rank] = self.node
        if self.world.saves and not self.told_cover:
            self.told_cover = True
            covered = Covered(self.rank, self.incarnation, self.world.cover, saves=True, part=self.part)
            self.node.hear(covered, self)
        self.waits, self.progress_at = False, self.world.now
        if self.redoes:
            self.redoes = False
            self.hear(Done(self.core.epoch, Stage.RUNNING, self.updates, True, ""))
        self.begins()

    def reading(self) -> Reading:
        step = max(self.updates, 0)
        work = (self.world.now - self.works_since) // (2 * SECOND) if self.works_since >= 0 else 0
        who = (self.rank, self.incarnation, self.core.epoch)
        return Reading(*who, step, self.phase, 1, self.step_ms, work, self.compiles, *self.standing())

    def standing(self) -> tuple[Still | None, tuple[Place, ...]]:
        """Return what its agent sees of it while it makes no progress."""
        age_ns = self.world.now - self.progress_at
        if self.phase is Phase.PARKED or age_ns < STILL_NS:
            return None, ()
        doing = Doing.SLEEPS if self.still is None else self.still
        doing_ns = min(age_ns, self.world.now - self.still_at)
        still = Still(self.rank, self.incarnation, self.progress_at, age_ns // MS, doing, doing_ns // MS, self.still_in)
        group, done = digest(f"0@0-{self.world.size - 1}"), max(self.updates, 0)
        return still, (Place(self.rank, group, 1, done + self.waits, done),)

    def die(self, exit_code: int, reason: str) -> None:
        if self.alive:
            self.alive = False
            self.world.after(0, self.node.gone, self, exit_code, reason)
