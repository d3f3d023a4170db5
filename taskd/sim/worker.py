"""The simulated shell of a worker: a process that says hello, sets up, trains in the crowd, and follows commands.

The commands come from the state machine inside, the production core.worker.Worker. For parking, rebuilding, fetching
and resuming, this shell takes a random time. It fails where a fault was planted, and tells the checkers what the
process really does. A newer command interrupts the current one, since it may come at any stage.
"""

from __future__ import annotations

from typing import Any, Protocol

from taskd.core.effects import LetGo, Park, Quit, Reach, Rebuild, Restore, Resume, Save
from taskd.core.events import Done, Reading
from taskd.core.messages import (
    Covered,
    Order,
    PauseOrder,
    RailOrder,
    RanksEnded,
    WorkerHello,
    WorkerLeaving,
    WorkerWelcome,
)
from taskd.core.types import Cover, Phase, Stage
from taskd.core.words import WOULD_BE_WRONG
from taskd.sim.crowd import Group, Member
from taskd.sim.pauses import PauseHands
from taskd.sim.rails import RailHands
from taskd.sim.setting import JOB, Setting

MS = 1_000_000
WORK_NS = 2_000 * MS
"""How much processor time counts as one more unit of work for an agent."""
HELLO_AGAIN_NS = 1_000 * MS
"""A hello without acknowledgement is sent again after this time."""
RAISED = "raised"
REFUSED = "refused"
"""The plan of a worker whose step has raised an error: it does not continue until it parks."""


class Home(Protocol):
    """The node on which a process runs (a SimNode), with the fields that a worker and its callers use."""

    name: str
    world: Setting
    core: Any
    disturbed: bool
    accused: bool

    def worker_says(self, worker: SimWorker, message: Any) -> None: ...
    def worker_died(self, worker: SimWorker, exit_code: int, reason: str) -> None: ...
    def out_of_reach(self) -> bool: ...


class SimWorker(Member):
    """One training process."""

    def __init__(self, node: Home, rank: int, incarnation: int, epoch: int, newcomer: bool) -> None:
        super().__init__(rank, node.world.next_pid(), node.name, node.world.scenario.part_of(rank))
        self.home = node
        self.world = node.world
        self.incarnation = incarnation
        self.newcomer = newcomer
        self.first_epoch = epoch
        self.alive = True
        self.born_at = node.world.loop.now
        self.rails = RailHands()
        self.pause = PauseHands(node.world, self)
        self.harmed = False  # a fault has struck it, or will
        self.set_up = False
        self.finished = False
        self.acknowledged = False
        self.connected = False  # to the agent that runs now
        self.hellos = 0  # the number of the last hello; only that one is repeated
        self.plan = ""  # a fault planted for the next stage
        self._works_since = node.world.loop.now  # since when it uses its processor; -1: it waits, or hangs
        self._worked_ns = 0  # processor time before that
        self.busy = 0  # token of the command under way; older tokens are void
        self.said_at = self.heard_at = 0  # when the last socket message arrives: the next one does not arrive earlier
        world = self.world
        self.core = world.machines.worker(rank, incarnation, epoch, newcomer)
        if newcomer:
            world.watch.comes_parked(self, epoch)
        world.loop.after(world.rng.randint(5 * MS, 100 * MS), self.say_hello)
        world.loop.after(world.between(world.scenario.setup_ns), self._is_set_up)

    # ---- talking to the agent ----------------------------------------------------------------------------------

    def say_hello(self) -> None:
        """Send a hello to the node's agent: the first agent, or the one that runs now."""
        if not self.alive or self.finished:
            return
        world = self.world
        if not self.acknowledged:
            self.hellos += 1
            world.loop.after(HELLO_AGAIN_NS, self._hello_again, self.hellos)
        hello = WorkerHello(
            JOB,
            self.rank,
            world.scenario.options.ranks,
            self.rank % world.scenario.per_node,
            self.pid,
            self.incarnation,
            "sim",
            self.core.epoch,
            self.core.stage,
            b"",
            self.core.updates,
            self.core.part,
            _cover(self),
            saves=self.world.scenario.saves and _cover(self) is not Cover.UNKNOWN,
        )
        self.connected = self.home.core is not None
        self.home.worker_says(self, hello)

    def _hello_again(self, number: int) -> None:
        if number == self.hellos and not self.acknowledged:
            self.say_hello()

    def line_broke(self) -> None:
        """The agent is gone. A new agent will get a hello."""
        self.acknowledged = self.connected = False

    def hear(self, message: Any) -> None:
        """Take a message of the agent: a welcome, an order, a stop."""
        if not self.alive or self.finished:
            return
        if isinstance(message, RailOrder):
            if not self.rails.deaf:
                self.home.worker_says(self, self.rails.follow(self.rank, self.incarnation, message))
            return
        if isinstance(message, RanksEnded):
            return  # no transport is simulated
        if isinstance(message, PauseOrder):
            self.pause.hear(message)
            return
        if isinstance(message, WorkerWelcome):
            self.acknowledged = message.accepted and message.acknowledged
            if message.accepted:
                self.incarnation = message.incarnation
        self._step(message)

    def _step(self, event: Any) -> None:
        world = self.world
        for effect in world.guarded(self.core.step, world.loop.now, event, who=f"rank {self.rank}"):
            world.loop.tell(f"rank {self.rank}", effect)
            self._carry_out(effect)

    def _carry_out(self, effect: Any) -> None:
        world, rng = self.world, self.world.rng
        if isinstance(effect, Reach):
            self.home.worker_says(self, effect.message)
            return
        world.watch.told(self, effect)
        if isinstance(effect, Park):
            self.busy += 1
            self.pause.leaves()
            self._park(effect.epoch)
        elif isinstance(effect, Save):
            self.busy += 1
            _save(self, effect.order, self.busy)
        elif isinstance(effect, Rebuild):
            self.busy += 1
            self._rebuild(effect.order)
        elif isinstance(effect, Restore):
            self.busy += 1
            self._restore(effect.order)
        elif isinstance(effect, Resume):
            self.busy += 1
            world.loop.after(rng.randint(1 * MS, 20 * MS), self._resume, self.busy, effect)
        elif isinstance(effect, Quit):
            world.loop.after(rng.randint(0, 20 * MS), self.die, effect.exit_code, effect.reason)
        elif isinstance(effect, LetGo) and self.plan in (RAISED, REFUSED):
            self.die(1, "no repair is made for its error")

    def done(self, token: int, epoch: int, stage: Stage, ok: bool = True, reason: str = "") -> None:
        """A command is done, or has failed: tell the state machine, and so the agent."""
        if not self.alive or token != self.busy:
            return
        self._step(Done(epoch, stage, self.updates, ok, reason, self.part))

    def reading(self, now: int) -> Reading:
        """What the rank's slot in the beat page shows."""
        group = self.group
        works_ns = self._worked_ns + (now - self._works_since if self._works_since >= 0 else 0)
        work = works_ns // WORK_NS
        if group is None:
            phase = Phase.SETUP if not self.set_up else Phase.DONE if self.finished else Phase.PARKED
            return Reading(self.rank, self.incarnation, self.core.epoch, max(self.updates, 0), phase, 1, 0, work)
        step, phase, step_ms = group.place(self, now)
        phase = Phase.PARKED if self.pause.blocked_since >= 0 else phase
        return Reading(self.rank, self.incarnation, self.core.epoch, step, phase, 1, step_ms, work)

    def _works(self, works: bool) -> None:
        """Set whether the process uses its processor from now on. In a healthy job this is not read."""
        now = self.world.loop.now
        if self._works_since >= 0:
            self._worked_ns += now - self._works_since
        self._works_since = now if works else -1

    @property
    def training(self) -> bool:
        """Whether it trains, and so sends to its peers."""
        return self.group is not None

    def out_of_reach(self) -> bool:
        """Whether its node is cut off from the manager, or was until just now."""
        return self.home.out_of_reach()

    # ---- set-up and the first epoch ----------------------------------------------------------------------------

    def _is_set_up(self) -> None:
        if not self.alive or self.set_up:
            return
        if self.plan == "setup":
            self.plan = ""
            self._fail_set_up()
            return
        self.set_up = True
        self._works(False)
        if not self.newcomer:
            self.begin_fresh()
            group = self.world.first_group(self.first_epoch)
            group.join(self)
            group.resume(self, 0)
            self.pause.resumes(0)
            _tell_cover(self)
        else:
            self._parked(self.busy, self.core.epoch)

    def _fail_set_up(self) -> None:
        """The set-up raises, says that it failed, is killed, or never ends."""
        # A hang in a first set-up is an ordinary hang. So far only a person or a timeout ends it.
        choices = ("raises", "fails", "is killed", "hangs") if self.newcomer else ("raises", "is killed")
        choice = self.world.rng.choice(choices)
        self.world.loop.tell(f"rank {self.rank}", f"its set-up {choice}")
        if choice == "raises":
            self.die(1, "ValueError: set-up")
        elif choice == "is killed":
            self.die(-9, "killed in its set-up")
        elif choice == "fails":
            self.done(self.busy, self.core.epoch, Stage.PARKED, False, "the set-up failed")
        self._works(False)

    # ---- the stages of a repair --------------------------------------------------------------------------------

    def _park(self, epoch: int) -> None:
        world = self.world
        if not self.set_up:
            if self.newcomer:
                return  # it continues its set-up and parks at the end
            self.set_up = True  # the first set-up is abandoned: the process holds no model
        if self.group is not None:
            self.group.breaks()
        if self.plan == REFUSED:
            self.die(1, "another repair has begun, which knows nothing of its refusal")
            return
        delay_ns = world.between(world.scenario.park_ns)
        plan, self.plan = (self.plan, "") if self.plan in ("slow", "stuck", RAISED) else ("", self.plan)
        self._works(plan == "slow" and world.rng.random() < 0.7)
        if plan == "stuck":
            world.loop.tell(f"rank {self.rank}", "hangs and never parks")
            return
        if plan == "slow":
            delay_ns = world.rng.choice((5_000, 30_000, 90_000)) * MS
            how = "and works" if self._works_since >= 0 else "and shows no work"
            world.loop.tell(f"rank {self.rank}", f"needs {delay_ns // MS} ms to park {how}")
        world.loop.after(delay_ns, self._parked, self.busy, epoch)

    def _parked(self, token: int, epoch: int) -> None:
        if not self.alive or token != self.busy:
            return
        world = self.world
        self._works(False)
        torn = False
        if self.group is not None:
            abandon = world.rng.random() < 0.5
            torn = abandon and self.group.held_by(self, world.loop.now) < self.group.done and world.rng.random() < 0.3
            self.group.settle(self, abandon)
        if torn:
            world.loop.tell(f"rank {self.rank}", "is torn out of its update")
            self.updates, self.model = -1, 0
        world.watch.holds(self)
        self.parked_epoch, self.parked_at = epoch, world.loop.now
        world.watch.parks(epoch, self)
        self.done(token, epoch, Stage.PARKED, not torn, "inside its update" if torn else "")

    def _rebuild(self, order: Order) -> None:
        """Join the epoch's rendezvous. It completes for all ranks when the last one has joined."""
        world, rng = self.world, self.world.rng
        group = world.crowd.group(order.epoch)
        group.join(self)
        world.watch.rebuilds(order.epoch, self, world.loop.now)
        plan, self.plan = (self.plan, "") if self.plan in ("rebuild", "rebuild-die") else ("", self.plan)
        if plan == "rebuild-die":
            world.loop.after(rng.randint(0, 10 * MS), self.die, -9, "killed while it rebuilt")
        elif plan == "rebuild":
            world.loop.after(
                rng.randint(1 * MS, 50 * MS),
                self.done,
                self.busy,
                order.epoch,
                Stage.REBUILT,
                False,
                "no route to a peer",
            )
        if group.full():
            for member in group.members.values():
                assert isinstance(member, SimWorker)
                member.is_built(order.epoch)

    def is_built(self, epoch: int) -> None:
        """All ranks have joined the rendezvous."""
        self.world.loop.after(
            self.world.rng.randint(1 * MS, 40 * MS), self._built, self.busy, self.world.crowd.group(epoch), epoch
        )

    def _built(self, token: int, group: Group, epoch: int) -> None:
        """The communicators are ready, unless a member died meanwhile. Then some ranks notice and others wait."""
        if all(member.alive for member in group.members.values() if isinstance(member, SimWorker)):
            self.done(token, epoch, Stage.REBUILT)
        elif self.world.rng.random() < 0.5:
            self.done(token, epoch, Stage.REBUILT, False, "a peer is gone")

    def _restore(self, order: Order) -> None:
        world, rng = self.world, self.world.rng
        source = next((fetch.source for fetch in order.fetches if fetch.rank == self.rank), -1)
        if self.plan in ("restore", "restore-wrong"):
            words, self.plan = WOULD_BE_WRONG if self.plan == "restore-wrong" else "", ""
            reason = f"{words}checksum differs"
            world.loop.after(rng.randint(1 * MS, 300 * MS), self._restored, self.busy, order, source, reason)
            return
        delay_ns = rng.randint(5 * MS, 400 * MS) if source >= 0 else rng.randint(0, 3 * MS)
        world.loop.after(delay_ns, self._restored, self.busy, order, source, "")

    def _restored(self, token: int, order: Order, source: int, reason: str) -> None:
        """Copy the source's model, if the source still lives and holds the agreed updates."""
        if not self.alive or token != self.busy:
            return
        if source >= 0 and not reason:
            holder = self.world.crowd.group(order.epoch).members.get(source)
            self.world.watch.fetches(self, holder)
            if not isinstance(holder, SimWorker) or not holder.alive or holder.updates != order.updates:
                reason = f"rank {source} does not serve {order.updates} updates"
            else:
                self.updates, self.model, self.damage = holder.updates, holder.model, holder.damage
                self.taken = True
        elif order.updates <= 0 and self.updates < 0:
            self.begin_fresh()
        if not reason and self.updates != max(order.updates, 0):
            reason = f"holds {self.updates} updates, ordered are {order.updates}"
        self.done(token, order.epoch, Stage.RESTORED, not reason, reason)

    def _resume(self, token: int, effect: Resume) -> None:
        if not self.alive or token != self.busy:
            return
        self.newcomer = False
        self.world.crowd.group(effect.epoch).resume(self, max(effect.updates, 0))
        self.pause.resumes(max(effect.updates, 0))
        self.done(token, effect.epoch, Stage.RUNNING)

    def first_step_made(self, group: Group) -> None:
        """The first update after a repair is applied: report this, too."""
        if self.group is group and self.alive:
            self.harmed = False
            self._step(Done(group.key, Stage.RUNNING, group.done, True, ""))
            _tell_cover(self)

    # ---- the end -----------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The training loop ended: report this, and exit with code 0."""
        if not self.alive or self.finished:
            return
        self.finished = True
        if self.group is not None:
            self.group.settle(self, abandon=False)
        self.world.watch.holds(self)
        self.home.worker_says(self, WorkerLeaving(self.rank, self.incarnation, "the training loop ended"))
        self.world.loop.after(self.world.rng.randint(0, 50 * MS), self.die, 0, "the training loop ended")

    def die(self, exit_code: int, reason: str) -> None:
        """End the process at once."""
        if not self.alive:
            return
        if self.group is not None:
            self.group.settle(self, abandon=True)
        self.world.watch.holds(self)
        self.pause.leaves()
        self.alive = False
        self.world.codes[self.rank] = exit_code
        self.world.loop.tell(f"rank {self.rank}", f"process {self.pid} ends with {exit_code}: {reason}")
        self.home.worker_died(self, exit_code, reason)


def _cover(worker: SimWorker) -> Cover:
    return worker.world.scenario.cover if worker.set_up and not worker.newcomer else Cover.UNKNOWN


def _tell_cover(worker: SimWorker) -> None:
    saves = worker.world.scenario.saves
    worker.home.worker_says(worker, Covered(worker.rank, worker.incarnation, _cover(worker), saves, worker.part))


def _save(worker: SimWorker, order: Order, token: int) -> None:
    """Write the last checkpoint, if the order names this rank. That may fail, hang or be killed."""
    if worker.rank not in order.savers:
        worker.done(token, order.epoch, Stage.SAVED)
        return
    world = worker.world
    world.watch.saves(order.epoch, worker, order.updates)
    plan, worker.plan = (worker.plan, "") if worker.plan.startswith("save") else ("", worker.plan)
    world.loop.tell(f"rank {worker.rank}", f"writes the last checkpoint{f' and {plan}' if plan else ''}")
    took_ns = world.rng.randint(5 * MS, 2_000 * MS)
    if plan == "save-die":
        world.loop.after(took_ns, worker.die, -9, "killed while it saved")
    elif plan == "save-fail":
        world.loop.after(took_ns, worker.done, token, order.epoch, Stage.SAVED, False, "no space left on device")
    elif not plan:
        world.loop.after(took_ns, worker.done, token, order.epoch, Stage.SAVED)
