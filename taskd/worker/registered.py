"""The objects that a script has registered, how their calls are followed, and the problems that are found with them.

If an object raises an error when it is inspected, it is left alone from then on (state/strange.py). If something
changes that is not registered, that is a flaw: it is reported once, and a death then makes all ranks start over
(state/coverage.py).
It does NOT know of steps or repairs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from taskd import log
from taskd.core.types import Cover
from taskd.errors import UsageError
from taskd.state import parts, rng
from taskd.state.coverage import Coverage
from taskd.state.found import Findings, generators_in, iterators_in, loaded_from, tensors_in
from taskd.state.held import digest_of
from taskd.state.leaves import Thing
from taskd.state.local import LocalState
from taskd.state.replica import Replica, follows
from taskd.state.shards import is_shard
from taskd.state.strange import STARTS_OVER, Doubts, among, real_optimizer
from taskd.state.unaccounted import Census
from taskd.worker.calls import Calls
from taskd.worker.following import follow_call, follow_optimizer
from taskd.worker.gate import Gate
from taskd.worker.heal import Repair
from taskd.worker.keeping import Keeping
from taskd.worker.naming import by_kind, named
from taskd.worker.step_state import StepMachine

_logger = log.get(__name__)


class Registered:
    """The registered objects of one session."""

    def __init__(self, repair: Repair, step: StepMachine) -> None:
        self._repair = repair
        self.replica = Replica()
        self.local = LocalState(self.replica)
        self.doubts = Doubts(self.warn)
        self.coverage = Coverage(self.replica, self.local.objects)
        self.calls = Calls(self.replica, repair.ordered, repair.operations, step, self.doubts)
        self.census = Census()
        self.save: Callable[[int], Any] | None = None
        """The script's function for the last checkpoint."""
        self._told = Cover.UNKNOWN
        file, always = repair.shards, repair.keeps_always
        self.keeping = Keeping(self.replica, file, always, self._ends_keeping, lambda sentence: self.warn([sentence]))
        self.gate = Gate(repair, self.calls.habits, self.keeping)
        self.calls.come_to_gate = self.gate.come

    def add(
        self, model: Any, optimizer: Any, scheduler: Any, scaler: Any, local: dict[str, Any], replicated: dict[str, Any]
    ) -> None:
        """See Session.register. Raises UsageError."""
        others = by_kind(replicated)
        for name, item in named("model", model, torch.nn.Module):
            if follows(item):
                others.rest[name] = item
            else:
                self._put(self.replica.models, name, item)
        for name, item in (*named("optimizer", optimizer, torch.optim.Optimizer), *others.optimizers.items()):
            self.doubts.look(f"{name}, a {type(item).__name__}", self._add_optimizer, name, item)
        schedulers = [*named("scheduler", scheduler, object), *others.schedulers.items()]
        scalers = [*named("scaler", scaler, object), *others.scalers.items()]
        for group, method in ((schedulers, "step"), (scalers, "update")):
            for name, item in group:
                self.doubts.look(f"{name}, a {type(item).__name__}", self._add_other, name, item, method)
        for name, item in others.rest.items():
            self.doubts.look(f"{name}, a {type(item).__name__}", self._add_other, name, item)
        for name, item in local.items():
            self._put(self.local.objects, name, item)
        self._tell_models_apart()
        self.calls.habits.unseen |= bool(others.rest.keys() & self.replica.others.keys() or local)

    def _tell_models_apart(self) -> None:
        """Keep a module that has a name of its own as a model if an optimizer trains it, and no model has it already.
        Its optimizer may have been registered later."""
        trained = {id(parameter) for parameter in self.replica.trained()}
        trained -= {id(one) for model in self.replica.models.values() for one in model.parameters()}
        for name, item in [*self.replica.others.items()]:
            if isinstance(item, torch.nn.Module) and any(id(one) in trained for one in item.parameters()):
                self._put(self.replica.models, name, self.replica.others.pop(name))

    def _add_optimizer(self, name: str, given: torch.optim.Optimizer) -> None:
        item = real_optimizer(given)
        follow_optimizer(self.calls, name, item)
        self._put(self.replica.optimizers, name, item)

    def _add_other(self, name: str, item: Any, method: str = "") -> None:
        if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
            raise UsageError(
                f"{name} is a {type(item).__name__} without state_dict() and load_state_dict(): it cannot be kept"
            )
        if self.replica.models.get(name) is item:
            return
        self._put(self.replica.others, name, item)
        if method:
            follow_call(self.calls, name, item, method)

    def _put(self, table: dict[str, Any], name: str, item: Any) -> None:
        names = [table] if table is self.local.objects else [table, self.replica.models]
        if any(one.get(name, item) is not item for one in names):
            raise UsageError(f"{name} is registered already; give the second one another name")
        table[name] = item

    # ---- looking ----------------------------------------------------------------------------------------------

    def loop_begins(self) -> None:
        """Inspect the registered objects when a loop begins."""
        self.doubts.look("the registered objects", self._look_round)

    def _look_round(self) -> None:
        self.replica.fully_sharded.look()
        unkept = self.keeping.why_not()
        self.replica.kept = not unkept and parts.is_only_here(self.replica)
        if sentence := among(self.replica, unkept):
            self.doubts.begin(sentence)
            return
        self.calls.loop_begins()
        self.replica.attributes.look()
        unfit = [f"{sentence}: {STARTS_OVER}" for sentence in self.local.modules.look(self.replica.models)]
        self.coverage.flaws += unfit
        if self._repair.records:
            self.warn([*unfit, *self.coverage.look()])

    def _ends_keeping(self, sentence: str) -> None:
        self.coverage.flaws.append(sentence)
        self.warn([sentence])
        self.tell_cover()

    def agree(self) -> None:
        """Agree with all ranks about the gate, where their first loop begins."""
        sharded = any(is_shard(one) for model in self.replica.models.values() for one in model.parameters())
        if why := self.gate.agree(self.replica.part, sharded):
            self.coverage.flaws.append(f"{why}: {STARTS_OVER}")
            self.warn(self.coverage.flaws[-1:])

    def check(self) -> None:
        """Report what has changed though nobody registered it."""
        self.warn(self.doubts.look("what a step has changed", self.coverage.check) or [])

    def hands_on(self, held: dict[str, Any], closely: bool, again: bool) -> list[str]:
        """Check what the script's loop hands on from step to step; return sentences about what nobody registered."""
        found = self.doubts.look("what the loop hands on", self.coverage.hands_on, held, closely, again) or []
        self.warn(found)
        return found

    def found(self, things: list[Thing], kept: list[Thing], loader: Any, queues: list[str]) -> Findings:
        """Return what the loop that begins here finds, and what the surrounding loops keep (`kept`), if nobody
        registered it. Its generators are followed from now on. `queues`: those from which it takes something."""
        known = self.local.known()
        rng.follow(rng.OF_THE_LOOP, generators_in(things))
        self.warn(self.coverage.takes_from([*iterators_in(things, known), *queues]))
        tensors = tensors_in([*kept, *things], known, self.coverage.known_places())
        self.census.accept(one for several in tensors.values() for one in several)
        found = {name: digest_of(several) for name, several in tensors.items()}
        return {**found, **loaded_from(loader), **self.coverage.standing()}

    def keeps(self, where: str, names: list[str]) -> list[str]:
        """Report that steps keep something where no repair puts it back: see Coverage.keeps. Return the sentence."""
        is_new = not self.coverage.flaws
        found = self.coverage.keeps(where, names)
        self.warn(found if is_new else [])
        return found

    def perhaps(self, held: dict[str, Any]) -> list[str]:
        """Return the names of what this repair may leave behind; `held`: what the loop may hand on or not."""
        return self.doubts.look("what the loop hands on", self.coverage.perhaps, held) or []

    def optimizer_steps(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that an optimizer steps, registered or not."""
        if not self._repair.records:
            return
        if sentence := self.doubts.look("an optimizer that steps", self.coverage.steps, optimizer):
            self.warn([sentence])

    def done_outside(self, done: list[str]) -> None:
        """Report what was done in the loop but outside of its steps."""
        self.warn(self.coverage.outside(done))

    def tell_cover(self, flaw: str = "") -> None:
        """Tell what a death would lead to, once a step is done and this is known. `flaw`: a flaw in something other
        than the registered objects."""
        starts_over = flaw or self.coverage.flaws or self.doubts.sentence or not self._repair.records
        cover = Cover.STARTS_OVER if starts_over else Cover.HEALED
        if cover > self._told:
            self._told = cover
            saves = self.save is not None and cover is Cover.HEALED
            self._repair.tell_cover(cover, saves, self.replica.part)

    def warn(self, sentences: list[str]) -> None:
        """Log the sentences: as a warning on one rank, as information on the others."""
        for sentence in sentences:
            _logger.log(logging.WARNING if self._repair.speaks else logging.INFO, "%s", sentence)
