"""The orders of a repair for this process, and which thread carries them out: the core's state machine behind one lock.

Orders arrive on the link's thread, answers on the training thread. core.worker decides what follows from each. Some
effects must not wait for the training thread and are done at once: the guards drain, so that the step can be left; an
answer is sent; the process ends. The rest is queued for the training thread (heal.py), which takes it once it has left
its step.

A failed operation is held here for a repair (hold.py), because the same lock tells whether a repair has begun. A script
without a session cannot give up a step: the answer is `not ok`, and the manager climbs the ladder.
It does NOT go through the stages of a repair, and it does not detect failures (failures.py).
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from taskd import log
from taskd.comm import aside
from taskd.core.effects import LetGo, Park, Quit, Reach, WorkerEffect
from taskd.core.events import Done, Raised, WorkerEvent
from taskd.core.messages import StageReached
from taskd.core.repair.notices import NO_SESSION
from taskd.core.types import Stage
from taskd.core.worker import Worker, WorkerState
from taskd.errors import TaskdError
from taskd.worker import pausing
from taskd.worker.hold import Hold

_logger = log.get(__name__)


class Orders:
    """The orders of one process. Any thread may call `take`; only the training thread calls `next`."""

    def __init__(self, core: Worker, control: Any, say: Callable[[Any], bool]) -> None:
        """`control`: the control of the guard; `say`: sends a message to the agent."""
        self.core = core
        self.hold = Hold(self._say_again)
        self.has_session = False
        """Whether the script has asked for a session."""
        self.lock = threading.Lock()
        """While a thread holds it, the epoch does not change."""
        self._control = control
        self._normal = type(control.mode).NORMAL
        self._say = say
        self._todo: queue.SimpleQueue[WorkerEffect] = queue.SimpleQueue()
        self._let_go_in = -1  # the last epoch in which a held error was raised in the script
        self._answered = threading.Event()
        """Set when a repair has begun, or when none will begin for an error that this rank has raised."""

    def session_begins(self) -> None:
        """Note that from now on a step can be given up."""
        with self.lock:
            self.has_session = True

    def take(self, event: WorkerEvent) -> None:
        """Take an order of the manager, or a report of the training thread."""
        with self.lock:
            for effect in self.core.step(time.monotonic_ns(), event):
                self._carry_out(effect)
        aside.look()

    def next(self) -> WorkerEffect:
        """Wait for the next effect that the training thread is to carry out, and return it."""
        return self._todo.get()

    def interrupted(self) -> bool:
        """Whether the current step is given up."""
        return bool(self._control.mode != self._normal)

    def appeal(self, updates: int, error: str, seconds: float) -> bool:
        """Ask for a repair after which all ranks do this step again: an error has left the step after `updates`
        updates. Wait at most `seconds` for the answer. Return whether a repair has begun."""
        with self.lock:
            if self.core.state is not WorkerState.RUNNING or self._let_go_in == self.core.epoch:
                return self.interrupted()
            self._answered.clear()
            for effect in self.core.step(time.monotonic_ns(), Raised(updates, error)):
                self._carry_out(effect)
        self._answered.wait(seconds)
        with self.lock:
            for effect in self.core.step(time.monotonic_ns(), Raised(updates, "")):  # if nobody has answered
                self._carry_out(effect)
            return self.interrupted()

    def let_go(self, epoch: int) -> None:
        """Let failed operations that wait for a repair end with their error, unless a repair has begun."""
        with self.lock:
            self._raise_what_failed(epoch)

    def _carry_out(self, effect: WorkerEffect) -> None:
        if isinstance(effect, Reach):
            self._say(effect.message)
        elif isinstance(effect, Quit):
            leave_at_once(effect)
        elif isinstance(effect, LetGo):
            self._answered.set()
            if self.hold.end() >= 0:
                self._raise_what_failed(effect.epoch)
        elif isinstance(effect, Park) and self.core.state is not WorkerState.SETUP:
            if self.has_session:
                self._control.drain(effect.epoch)
                pausing.wake()
                _end_on_devices(effect.epoch)
                self._todo.put(effect)
                self._answered.set()
                return
            for answer in self.core.step(time.monotonic_ns(), Done(effect.epoch, Stage.PARKED, -1, False, NO_SESSION)):
                self._carry_out(answer)
        else:
            self._todo.put(effect)

    def _say_again(self) -> None:
        """Send this rank's stage once more. This changes nothing, but a launcher that runs reads the message."""
        with self.lock:
            core = self.core
            if core.state is WorkerState.RUNNING:
                self._say(StageReached(core.rank, core.incarnation, core.epoch, Stage.RUNNING, core.updates, True, ""))

    def _raise_what_failed(self, epoch: int) -> None:
        if self.interrupted() or self.core.state is not WorkerState.RUNNING:
            return
        try:
            self._control.resume(epoch)
        except ValueError:
            return  # a repair has begun just now
        self._let_go_in = epoch
        _logger.warning("a collective has failed and nobody repairs it: its error is raised in the script")


def _end_on_devices(epoch: int) -> None:
    """Release a training thread that waits for its device: end the operations that are queued there. This runs on its
    own thread, as it may take seconds. The rebuild waits for it, and a failure shows up there again."""
    from taskd.comm import guard

    def end() -> None:
        try:
            guard.end_inner_groups(epoch, f"epoch {epoch} begins", on_devices_alone=True)
        except TaskdError as error:
            _logger.warning("what is queued on this rank's device does not end: %s", error)

    if guard.on_devices():
        threading.Thread(target=end, name="taskd-devices", daemon=True).start()


def leave_at_once(quit_effect: Quit) -> None:
    """End this process, wherever its training thread is: another incarnation has replaced it, or the job stops."""
    _logger.log(logging.WARNING if quit_effect.exit_code else logging.INFO, "this process ends: %s", quit_effect.reason)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(quit_effect.exit_code)
