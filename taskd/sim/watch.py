"""The checkers: rules about what simulated workers do and what agents see. They are outside the core and read no fields
of it.

Every rule gets the actions at the moment they happen (a rank enters a collective, applies an update, parks, resumes).
It raises a Violation at the first action that is not allowed. What the core believes does not matter here.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, Protocol

from taskd.core.effects import LetGo, Park, Quit, Reach, Rebuild, Restore, Resume, Save, WorkerEffect
from taskd.sim.model import Oracle
from taskd.sim.starts import Starts


class Violation(Exception):
    """A rule was broken. `rule` is its name, `text` is one sentence about this case."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule
        self.text = text


RULES = {
    "one-incarnation": "two processes of one rank never act in one epoch",
    "parked-first": "nobody rebuilds before every member has parked, and nobody steps between parked and resume",
    "one-point": "all ranks resume from the same number of updates with the same model",
    "nothing-lost": "a repair goes on from the newest update that a member holds, or all begin anew if no member of "
    "some part of the model holds it",
    "saved-right": "a last checkpoint holds the newest update of the survivors, and one rank of each part writes it",
    "own-part": "nobody takes the state of another part of the model",
    "same-model": "the model after n updates is that of the run without faults",
    "updates-once": "updates come one after the other: none twice, none left out, none in an old epoch",
    "epochs-grow": "no worker and no agent ever sees an epoch go back",
    "healed": "an incident is closed as healed only after a step was made in the new epoch",
    "budget": "every incident closes or climbs within its deadlines",
    "bounds": "no bound of limits.py is exceeded, and every message fits the wire",
    "quiet": "a healthy job sends few messages, and none of them is an order",
    "healthy-stays": "a rank that nothing has harmed is not ended",
    "starts-rest": "a rank whose starts come to nothing is started ever more seldom",
    "starved-stays": "a node that was starved, and that nothing else has struck, is not given up for lost",
    "live": "when faults have stopped the job trains again, or has ended with a reason that was earned",
    "rails-obeyed": "a rank that can be told leaves a rail that is ordered out",
    "rails-steady": "a rail that was lent comes back no faster than its back-off allows",
    "rails-return": "when all cables are whole again, every rail comes back",
    "proof-true": "ranks that hold the same are not said to differ, and one that is sound is not accused by most",
    "proof-found": "ranks that do not hold the same do not train on so unsaid",
    "paused-together": "ranks that are paused stand before the same step, which nobody has begun",
    "pause-ends": "nobody stands for longer than the lease of a pause",
    "hang-true": "a hang is said only where a rank stands still, and nobody else is named",
    "hang-named": "a rank that is stopped in a job that nothing else troubles is named",
    "core": "no machine of the core raises, whatever it is told",
}
"""Every rule, by its name."""


class Actor(Protocol):
    """A training process, with the fields that the rules read."""

    rank: int
    pid: int
    updates: int
    model: int
    part: int
    parked_epoch: int
    parked_at: int

    @property
    def group(self) -> object | None:
        """The group in which it trains."""


class Watch:
    """The actions seen so far, as far as the rules need them."""

    def __init__(self, world_size: int) -> None:
        self.oracle = Oracle(world_size)
        self.starts = Starts()
        self.best = 0  # the newest update that any group completed
        self.steps = 0  # made by all groups: a start over makes some again
        self.actions = 0
        self.pause_heard = False  # some rank has heard of a pause
        self._world_size = world_size
        self._acted: dict[tuple[int, int], int] = {}
        self._parked: dict[int, dict[int, tuple[int, int]]] = {}  # epoch -> rank -> (part, updates)
        self._rebuilding: dict[int, int] = {}  # epoch -> when the first member began to rebuild
        self._stepping = 0  # the greatest key of a group that has stepped
        self._done = -1  # updates of the group that steps
        self._saved = set[tuple[int, int]]()  # epoch and part of each last checkpoint
        self._following: dict[int, tuple[int, type]] = {}  # process -> (epoch, last effect)
        self._seen_by_agents: dict[tuple[str, int], int] = {}

    # ---- what workers do ---------------------------------------------------------------------------------------

    def acts(self, key: int, rank: int, pid: int) -> None:
        """A process enters a collective of this group."""
        self.actions += 1
        other = self._acted.setdefault((key, rank), pid)
        if other != pid:
            raise Violation("one-incarnation", f"processes {other} and {pid} of rank {rank} both act in epoch {key}")

    def comes_parked(self, member: Actor, epoch: int) -> None:
        """A newcomer starts in an epoch. It parks at the end of its set-up without an order."""
        self._following[member.pid] = (epoch, Park)

    def parks(self, epoch: int, member: Actor) -> None:
        """A process has parked, with the updates that it holds."""
        self.actions += 1
        self._parked.setdefault(epoch, {})[member.rank] = (member.part, member.updates)

    def fetches(self, member: Actor, holder: Actor | None) -> None:
        """A process takes its state from another one."""
        if holder is not None and holder.part != member.part:
            raise Violation("own-part", f"{member} fetches from {holder}, which has another part of the model")

    def saves(self, epoch: int, member: Actor, updates: int) -> None:
        """A process writes the last checkpoint."""
        self.actions += 1
        newest = self._newest(epoch)
        if not member.updates == updates == newest:
            raise Violation(
                "saved-right",
                f"{member} saves update {updates}, holds {member.updates}, and members parked with {newest}",
            )
        if (epoch, member.part) in self._saved:
            raise Violation("saved-right", f"{member} is the second one of its part to save in epoch {epoch}")
        self._saved.add((epoch, member.part))
        self.holds(member)

    def rebuilds(self, epoch: int, member: Actor, now: int) -> None:
        """A process begins to make the communicators of an epoch."""
        self.actions += 1
        first = self._rebuilding.setdefault(epoch, now)
        if member.parked_epoch != epoch or member.parked_at > first:
            raise Violation(
                "parked-first", f"{member} rebuilds epoch {epoch}, in which it had not parked when the first one did"
            )
        if member.group is not None:
            raise Violation("parked-first", f"{member} rebuilds epoch {epoch} and still trains")

    def resumes(self, key: int, member: Actor, updates: int, base: int) -> None:
        """A process continues with the step after `updates`. `base`: where the others continued; -1 for the first."""
        self.actions += 1
        if base >= 0 and updates != base:
            raise Violation("one-point", f"{member} resumes epoch {key} from {updates} updates, others from {base}")
        if member.updates != updates:
            raise Violation("one-point", f"{member} resumes from {updates} updates and holds {member.updates}")
        if member.model != self.oracle.model(updates):
            raise Violation("same-model", f"{member} resumes from {updates} updates with another model")
        if base < 0 and key > 0:
            held = self._newest(key)
            if max(held, 0) != updates:
                raise Violation(
                    "nothing-lost", f"epoch {key} goes on from {updates} updates; a member parked with {held}"
                )

    def apart(self) -> bool:
        """Whether the ranks of the newest epoch have parked without an update that all parts of the model hold."""
        epoch = max(self._parked, default=-1)
        parts = {part for part, _ in self._parked.get(epoch, {}).values()}
        return parts != {0} and self._newest(epoch) < 0

    def _newest(self, epoch: int) -> int:
        """The newest update that members of every part have parked with. -1: the parts differ, or none has parked."""
        newest: dict[int, int] = {}
        for part, held in self._parked.get(epoch, {}).values():
            newest[part] = max(newest.get(part, -1), held)
        return min(newest.values()) if len({*newest.values()}) == 1 else -1

    def stepped(self, key: int, done: int, model: int, members: Sized) -> None:
        """All members of a group apply update `done`."""
        self.actions += 1
        if len(members) != self._world_size:
            raise Violation("updates-once", f"update {done} was made by {len(members)} of {self._world_size} ranks")
        if key in (self._stepping, -self._stepping) and self._done >= 0 and done != self._done + 1:
            raise Violation("updates-once", f"update {done} follows update {self._done} in epoch {key}")
        if model != self.oracle.model(done):
            raise Violation(
                "same-model", f"the model after update {done} in epoch {key} is not that of a run without faults"
            )
        self._stepping, self._done = abs(key), done
        self.steps += 1
        self.best = max(self.best, done)

    def stepped_apart(self, key: int, done: int, model: int, excused: bool) -> None:
        """A whole group makes a step in an old epoch. Allowed only if its ranks could not be told of the new one."""
        self.actions += 1
        if model != self.oracle.model(done):
            raise Violation(
                "same-model", f"the model after update {done} in epoch {key} is not that of a run without faults"
            )
        if not excused:
            raise Violation("updates-once", f"epoch {key} made update {done} after epoch {self._stepping} had begun")

    def healed(self, incident: dict[str, Any], began_at: int, progress_at: int) -> None:
        """The manager has closed an incident as healed. The job must have made a step in a group begun since then."""
        self.actions += 1
        if began_at < incident["opened_at_ns"] or progress_at <= began_at:
            raise Violation("healed", f"incident {incident['id']} is closed as healed, and no step has been made since")

    def holds(self, member: Actor) -> None:
        """A process has left its group with a model. It must be the right model for its updates."""
        if member.updates >= 0 and member.model != self.oracle.model(member.updates):
            raise Violation(
                "same-model", f"{member} holds another model than a run without faults after {member.updates}"
            )

    def started(self, rank: int, now: int) -> None:
        """An agent starts a process of this rank."""
        if complaint := self.starts.started(rank, now, self.steps):
            raise Violation("starts-rest", complaint)

    # ---- what workers are told ---------------------------------------------------------------------------------

    def told(self, member: Actor, effect: WorkerEffect) -> None:
        """A worker's state machine asks its process for something: in a fixed order, and never for an older epoch."""
        self.actions += 1
        if isinstance(
            effect, Quit | Reach | LetGo
        ):  # here no rank holds what has failed, so there is nothing to let go
            return
        epoch = effect.order.epoch if isinstance(effect, Rebuild | Restore | Save) else effect.epoch
        last_epoch, last = self._following.get(member.pid, (0, Resume))
        if epoch < last_epoch:
            raise Violation(
                "epochs-grow", f"{member} is told {type(effect).__name__} of epoch {epoch} after {last_epoch}"
            )
        if not isinstance(effect, Park):
            wanted = {Save: Park, Rebuild: Park, Restore: Rebuild, Resume: Restore}[type(effect)]
            if epoch != last_epoch or last is not wanted:
                raise Violation(
                    "parked-first",
                    f"{member} is told {type(effect).__name__} of epoch {epoch} after {last.__name__} of {last_epoch}",
                )
        self._following[member.pid] = (epoch, type(effect))

    def relays(self, node: str, life: int, epoch: int) -> None:
        """An agent passes an order of this epoch to its workers."""
        self.actions += 1
        seen = self._seen_by_agents.get((node, life), 0)
        if epoch < seen:
            raise Violation("epochs-grow", f"the agent of {node} relays epoch {epoch} after epoch {seen}")
        self._seen_by_agents[(node, life)] = epoch
