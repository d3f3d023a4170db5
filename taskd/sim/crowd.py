"""A crowd of ranks that trains: groups, collectives and updates, with one event per step for any number of ranks.

A step's collective completes when every member of the group has entered it. A member that died, parked or hangs blocks
all others for ever, as in a real job. Every rank enters the collective and applies its update at its own time. These
times are functions of rank, step and time. They are computed only when needed (a beat, a kill, a park), without events
of their own, so a healthy step of 100,000 ranks costs one event. Everything that ends a step is an event with its own
time. A rank that dies between the collective and its own update has one update less than its peers. A repair must mend
that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from taskd.core.types import Doing, Phase
from taskd.sim.loop import Loop
from taskd.sim.model import FRESH, MASK, mix, updated, weight
from taskd.sim.watch import Watch


@dataclass(frozen=True, slots=True)
class Pace:
    """How long the parts of a step take."""

    compute_ns: int  # from the end of a step until the first rank enters the next collective
    spread_ns: int  # the slowest rank enters this much later
    wire_ns: int  # the collective itself
    apply_ns: int  # the slowest rank has applied its update this long after the collective; below compute_ns


@dataclass(frozen=True, slots=True)
class Stand:
    """How a rank stands still, and since when."""

    doing: Doing
    since: int


class Member:
    """The training side of one process: the model that it holds, and the group in which it trains."""

    __slots__ = (
        "damage",
        "group",
        "model",
        "node",
        "parked_at",
        "parked_epoch",
        "part",
        "pid",
        "rank",
        "stand",
        "taken",
        "updates",
    )

    def __init__(self, rank: int, pid: int, node: str, part: int = 0) -> None:
        self.rank = rank
        self.pid = pid
        self.node = node
        self.part = part  # its part of the model
        self.updates = -1  # as in the messages: -1 means no model
        self.model = 0
        self.damage = 0  # the difference of its model from what the crowd has trained; 0: none
        self.taken = False  # its model came from another rank
        self.group: Group | None = None
        self.stand: Stand | None = None  # it stands still
        self.parked_epoch = -1
        self.parked_at = -1

    def begin_fresh(self) -> None:
        """Take the initial parameters, as the user's set-up makes them."""
        self.updates, self.model, self.damage, self.taken = 0, FRESH, 0, False

    def out_of_reach(self) -> bool:
        """Whether messages of the manager cannot reach it, or could not until just now."""
        return False

    def __repr__(self) -> str:
        return f"rank {self.rank} (process {self.pid} on {self.node})"


class Group:
    """One epoch's communicators: the members that joined, the members that resumed, and the collectives done."""

    __slots__ = (
        "base",
        "broken",
        "completed_at",
        "crowd",
        "done",
        "key",
        "members",
        "models",
        "resumed",
        "token",
        "waits",
    )

    def __init__(self, crowd: Crowd, key: int) -> None:
        self.crowd = crowd
        self.key = key
        self.members: dict[int, Member] = {}
        self.resumed: dict[int, Member] = {}
        self.base = -1  # the number of updates with which all members resumed
        self.done = -1  # updates whose collective has completed
        self.models = (0, 0)  # before and after update `done`
        self.completed_at = 0
        self.broken = False
        self.token = 0  # of the planned step; older tokens are void
        self.waits = False  # the step is due, but the network holds it

    def full(self) -> bool:
        """Whether every rank of the job has joined."""
        return len(self.members) == self.crowd.world_size

    def running(self) -> bool:
        """Whether the group makes steps."""
        return not self.broken and len(self.resumed) == self.crowd.world_size

    def join(self, member: Member) -> None:
        """The member helps to make the communicators, which is its first collective of this epoch."""
        self.crowd.watch.acts(self.key, member.rank, member.pid)
        self.members[member.rank] = member

    def resume(self, member: Member, updates: int) -> None:
        """The member continues from `updates`. The last member to resume starts the first step."""
        crowd = self.crowd
        crowd.watch.resumes(self.key, member, updates, self.base)
        if self.base < 0:
            self.base = self.done = updates
            self.models = (member.model, member.model)
        member.group = self
        self.resumed[member.rank] = member
        if len(self.resumed) == crowd.world_size and not self.broken:
            self.completed_at = crowd.loop.now
            crowd.started(self)
            self._plan()

    def _plan(self) -> None:
        pace = self.crowd.pace
        self.token += 1
        self.crowd.loop.at(
            self.completed_at + pace.compute_ns + pace.spread_ns + pace.wire_ns, self._complete, self.token
        )

    def _complete(self, token: int) -> None:
        if token != self.token or self.broken:
            return
        if self.crowd.held(self):
            self.waits = True
            return
        self.done += 1
        before = self.models[1]
        self.models = (before, updated(before, self.done, self.crowd.weights(self)))
        self.completed_at = self.crowd.loop.now
        self.crowd.completed(self)
        if not self.broken:
            self._plan()

    def go_on(self) -> None:
        """The network is whole again: complete the step that waited."""
        if self.waits and not self.broken:
            self.waits = False
            self.crowd.loop.after(self.crowd.pace.wire_ns, self._complete, self.token)

    def breaks(self) -> None:
        """A member drops out, so no later collective of this group can complete."""
        if not self.broken:
            self.broken = True
            if self is self.crowd.current:
                self.crowd.stopped()

    def held_by(self, member: Member, now: int) -> int:
        """How many updates this member's model holds now."""
        if self.done > self.base and now < self.completed_at + self.crowd.apply_delay_ns(member.rank, self.done):
            return self.done - 1
        return self.done

    def settle(self, member: Member, abandon: bool) -> None:
        """The member leaves the group with the model it holds. Without `abandon` it first ends its current update."""
        held = self.held_by(member, self.crowd.loop.now)
        if not abandon:
            held = self.done
        member.updates = held
        member.model = self.models[1] if held == self.done else self.models[0]
        member.group = None
        self.breaks()

    def place(self, member: Member, now: int) -> tuple[int, Phase, int]:
        """(step, phase, ms of the last step) of a running member. Steps count from 0: step n makes update n + 1."""
        crowd = self.crowd
        if self.held_by(member, now) < self.done:
            return self.done - 1, Phase.OPTIMIZER, crowd.step_ms
        if now < self.completed_at + crowd.pace.apply_ns and self.done > self.base:
            return self.done - 1, Phase.APPLIED, crowd.step_ms
        return self.done, Phase.BODY, crowd.step_ms


class Crowd:
    """All groups of a job, and the progress of its training."""

    def __init__(self, loop: Loop, watch: Watch, world_size: int, pace: Pace, salt: int) -> None:
        self.loop = loop
        self.watch = watch
        self.world_size = world_size
        self.pace = pace
        self.step_ms = max(1, (pace.compute_ns + pace.spread_ns + pace.wire_ns) // 1_000_000)
        self.groups: dict[int, Group] = {}
        self.current: Group | None = None
        self.steps = 0
        self.heals_ns: list[int] = []
        self.last_progress_at = 0
        self.trained_at = -1  # when the first step since the last start with fresh parameters was made; -1: not yet
        self.began_at = 0  # when the current group's last member resumed
        self.cut_nodes: dict[str, int] = {}
        self.when_completed: Callable[[Group], None] | None = None
        self.when_fresh: Callable[[], None] | None = None
        self._stopped_at = -1
        self._weights = sum(weight(rank) for rank in range(world_size)) & MASK
        self._salt = salt

    def group(self, key: int) -> Group:
        """The group of an epoch (or, negative, of a start from outside)."""
        found = self.groups.get(key)
        if found is None:
            found = self.groups[key] = Group(self, key)
        return found

    def weights(self, group: Group) -> int:
        """The sum of the members' weights. It is that of the whole job if every rank is there exactly once."""
        if len(group.resumed) == self.world_size:
            return self._weights
        return sum(weight(rank) for rank in group.resumed) & MASK

    def apply_delay_ns(self, rank: int, step: int) -> int:
        """How long after the collective this rank has applied its update."""
        return mix(self._salt ^ (step << 20) ^ rank) % self.pace.apply_ns

    def started(self, group: Group) -> None:
        """All ranks have resumed in this group: from now on it is the job's current group."""
        self.current = group
        self.began_at = self.loop.now
        if group.base == 0:
            self.trained_at = -1
            if group.key > 0 and self.when_fresh is not None:
                self.when_fresh()

    def stopped(self) -> None:
        """Training stops now, until a group of a new epoch completes a step."""
        if self._stopped_at < 0:
            self._stopped_at = self.loop.now

    def completed(self, group: Group) -> None:
        """A step's collective completed: count it, check the model, and note a heal if training had stopped."""
        if group is not self.current:
            self.watch.stepped_apart(group.key, group.done, group.models[1], self._excused(group))
            return
        self.steps += 1
        if self.trained_at < 0:
            self.trained_at = self.loop.now
        self.last_progress_at = self.loop.now
        self.watch.stepped(group.key, group.done, group.models[1], group.resumed)
        if self._stopped_at >= 0:
            self.heals_ns.append(self.loop.now - self._stopped_at)
            self._stopped_at = -1
        if self.when_completed is not None:
            self.when_completed(group)

    def _excused(self, group: Group) -> bool:
        """Whether some of these ranks could not be told that the job continues without them."""
        return any(member.out_of_reach() for member in group.resumed.values())

    def training(self) -> bool:
        """Whether the job makes steps right now."""
        return self.current is not None and self.current.running()

    def held(self, group: Group) -> bool:
        """Whether the data network is cut between members of the group, or a rank of such a node begins no step."""
        return bool(self.cut_nodes) and any(member.node in self.cut_nodes for member in group.resumed.values())

    def cut(self, node: str) -> None:
        """The node's data network is cut: collectives wait."""
        self.cut_nodes[node] = self.cut_nodes.get(node, 0) + 1

    def mend(self, node: str) -> None:
        """The node's data network is back: waiting collectives continue."""
        left = self.cut_nodes.get(node, 0) - 1
        if left > 0:
            self.cut_nodes[node] = left
            return
        self.cut_nodes.pop(node, None)
        if self.current is not None and not self.held(self.current):
            self.current.go_on()
