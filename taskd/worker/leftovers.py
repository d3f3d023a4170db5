"""The moments at which tensors that steps have left behind are noted, found after a repair, and followed.

state/unaccounted.py finds them, state/leftover.py follows what is computed from them. This module knows when, and what
becomes of it: if it reaches a gradient or a registered tensor, is saved in the loop, or is read as a number before the
update, all ranks start over. All ranks run the same script. So what a survivor's step reads there, a newcomer's reads,
too, and finds there what its set-up has made.

What the loader, or a call under @taskd.resilient, gives to a step is no leftover, wherever it was kept.

Failure modes: a thread of its own computes with one (it cannot refuse; the training's thread does so at its next update
or step); a process that was forked has leftovers (it judges nothing); taskd's own code reads one. It does NOT see what
only the dead rank had.
"""

from __future__ import annotations

import copy
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from taskd.state import leftover
from taskd.state.coverage import listed
from taskd.state.leftover import memory_of
from taskd.state.unaccounted import name_of
from taskd.worker.accounted import Accounted
from taskd.worker.feed import Feed
from taskd.worker.heal import Repair
from taskd.worker.registered import Registered
from taskd.worker.step_state import StepMachine, StepState

WHAT = "what steps have left"
COMPUTED = (
    "the step computes with what an earlier step has left in {names}, and no repair puts that back or gives it to a "
    "newcomer: keep it in a buffer, or in an object with state_dict() and load_state_dict(), and name that in "
    "taskd.session().register(local=...)"
)
READ = (
    "the script {does} what an earlier step has left in {names}, and no repair puts that back: it may differ from an "
    "undisturbed run by what one step does"
)
_SOMEWHERE = "a tensor"
_OURS = str(Path(__file__).parents[1])
_TORCHS = str(Path(torch.__file__).parent)
_FOLLOWS = (leftover.__file__, __file__)
_WRAPPERS = tuple(str(Path(__file__).with_name(name)) for name in ("patches.py", "following.py"))
"""They call what the script has called."""
_NAMED = 3
"""After each repair at most so many are named: to find a name takes long."""
_IN_THE_LOOP = (StepState.LOOP, StepState.BODY, StepState.UPDATING, StepState.APPLIED)


class Leftovers:
    """The leftovers of one session."""

    def __init__(
        self, registered: Registered, repair: Repair, step: StepMachine, refuse: Callable[[str], None]
    ) -> None:
        """`refuse` makes all ranks start over and never returns."""
        self._registered, self._repair, self._step, self._refuse = registered, repair, step, refuse
        self._accounted = Accounted(registered)
        self._began: int | None = None
        """The step that this process was given first."""
        self._noted = False
        self._at = os.getpid(), threading.get_ident()
        """The process and the thread that trains."""
        self._unheard = False
        """Whether another thread has computed with a leftover."""
        self._read = False
        """Whether the step has read one behind its update."""
        self._names: dict[int, str] = {}
        """The names of those that were used."""
        self._said = set[frozenset[int]]()
        self._entered = False
        """Whether the script has entered the step that it was given last."""
        self.repaired = False
        """Whether a repair has come, and no step was handed out since."""
        self._follows = False

    def handed_out(self, number: int, feed: Feed, taskds: tuple[Any, ...]) -> None:
        """Note that the script gets this step. `taskds`: objects of taskd that keep copies."""
        self._at = os.getpid(), threading.get_ident()
        self._entered = self._read = False
        repaired, self.repaired = self.repaired, False
        doubts, census = self._registered.doubts, self._registered.census
        if not self._repair.heals or self._registered.coverage.flaws or doubts.sentence:
            return
        is_new = self._began is None
        if self._began is None:
            self._began = number
            doubts.look(WHAT, lambda: census.note(self._accounted.memory()))
        if repaired and not doubts.look(WHAT, self._follow, taskds, is_new):
            self._refuse(doubts.sentence)
        if not self._noted and number > self._began:
            self._noted = True
            doubts.look(WHAT, lambda: census.note(self._accounted.memory()))
        if self._follows:
            leftover.begin()
            leftover.release(feed.tensors())
            self._hear()

    def body_begins(self) -> None:
        """Note that the script has entered the step. A newcomer may have got its values only now."""
        self._entered = True
        self._follow_what_is_otherwise()

    def backward_begins(self, given: Any) -> None:
        """Note that gradients are about to be computed, with what was `given` for it."""
        if self._follows and (self._read or leftover.among(given)):
            self.reaches_weights()
        self._hear()

    def update_begins(self) -> None:
        """Note that an optimizer is about to step."""
        if self._follows:
            if self._read or any(leftover.is_left_over(one.grad) for one in self._registered.local.parameters()):
                self.reaches_weights()
            self._hear()

    def body_ended(self) -> None:
        """Note that the body of the step has run to its end."""
        if self._follows and any(leftover.is_left_over(one) for _, one in self._registered.replica.tensors()):
            self.reaches_weights()

    def put_into(self, parameter: torch.Tensor, value: Any) -> None:
        """Note that the script makes this tensor the contents of a parameter."""
        if leftover.is_left_over(value) and any(one is parameter for one in self._registered.local.parameters()):
            self.reaches_weights()

    def to_be_saved(self, values: Any) -> None:
        """Note that these are written to a file, or sent, once the step is agreed."""
        if self._follows and leftover.among(values):
            self.reaches_weights()

    def step_raised(self, error: BaseException) -> None:
        """Note that an error has left the step. Never returns if the use of a leftover has raised it."""
        of_compiler = type(error).__module__.startswith("torch._dynamo")  # a leftover cannot be compiled into a graph
        if self._follows and (of_compiler or (leftover.used() and _comes_from_torch(error.__traceback__))):
            self.reaches_weights()

    # ---- judging ----------------------------------------------------------------------------------------------

    def holds(self, tensors: list[torch.Tensor]) -> bool:
        """See leftover.Judge."""
        own = self._accounted.memory()
        return any(memory_of(one) in own for one in tensors)

    def reaches_weights(self) -> None:
        """See leftover.Judge."""
        if self._at == (os.getpid(), threading.get_ident()):
            self._refuse(COMPUTED.format(names=self._used()))
        self._unheard = True

    def is_read(self) -> None:
        """See leftover.Judge."""
        if self._is_asked_by_the_script():
            state = self._step.state
            if state in (StepState.BODY, StepState.UPDATING) or (state is StepState.LOOP and not self._entered):
                self.reaches_weights()
            self._read |= state is StepState.APPLIED
            self._say("reads")

    def is_saved(self) -> None:
        """See leftover.Judge."""
        if self._is_asked_by_the_script() and _caller() != copy.__file__:
            if self._step.state in _IN_THE_LOOP:
                self.reaches_weights()
            self._say("saves")

    def is_used(self, tensor: torch.Tensor) -> None:
        """See leftover.Judge."""
        if len(self._names) < _NAMED:
            self._names[id(tensor)] = name_of(tensor)

    def _used(self) -> str:
        return listed({self._names.get(at) or _SOMEWHERE for at in leftover.used()} or {_SOMEWHERE})

    def _is_asked_by_the_script(self) -> bool:
        return self._at == (os.getpid(), threading.get_ident()) and not _caller().startswith(_OURS)

    def _hear(self) -> None:
        if self._unheard:
            self.reaches_weights()

    def _say(self, does: str) -> None:
        if (used := leftover.used()) not in self._said:
            self._said.add(used)
            self._registered.warn([READ.format(does=does, names=self._used())])

    # ---- finding ----------------------------------------------------------------------------------------------

    def _follow(self, taskds: tuple[Any, ...], is_new: bool) -> bool:
        """Follow what nobody accounts for from now on. Return whether that was possible. `is_new`: this is a newcomer,
        which has made all itself, and follows only what its predecessor had otherwise."""
        self._names.clear()
        if not is_new:
            known = self._accounted.memory() | self._accounted.given_by_states()
            leftover.follow(self._registered.census.left(known, self._accounted.ids(taskds)), self)
            self._follows = True
        self._follow_what_is_otherwise()
        return True

    def _follow_what_is_otherwise(self) -> None:
        """Follow what could not be given to this rank."""
        followed = self._registered.local.variables.others.given.followed
        if followed:
            leftover.follow((one for one in followed.values() if type(one) in leftover.KINDS), self)
            followed.clear()
            self._follows = True


def _caller() -> str:
    """Return the file of the code that has called a function of torch."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_TORCHS, *_FOLLOWS, *_WRAPPERS)):
        frame = frame.f_back
    return frame.f_code.co_filename


def _comes_from_torch(trace: TracebackType | None) -> bool:
    """Whether the innermost code is torch's own, or this module's."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.startswith((_TORCHS, *_FOLLOWS))
