"""Following orders in a training process: core.Worker decides, `perform` does.

A script without taskd's session has no step to go back to: it answers honestly that it cannot park, goes on, and leaves
it to its launcher to end it. A session passes its own `perform` and answers with `done`. Messages come in the link's
thread; `step` is serialised here, effects are performed in the thread that brought the event.
It does NOT park, rebuild or restore anything.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from taskd import log
from taskd.core.effects import Park, Quit, Reach, Rebuild, Restore, Resume, WorkerEffect
from taskd.core.events import Done, WorkerEvent
from taskd.core.types import Stage
from taskd.core.worker import Worker
from taskd.worker.link import Link

Perform = Callable[[WorkerEffect], None]
NO_STEP = "this script has no step to go back to (it does not use taskd.session)"
_logger = log.get(__name__)


class Follower:
    """Ties one Link to one core.Worker. `perform` may be replaced before the link is started."""

    def __init__(self, link: Link, newcomer: bool = False, perform: Perform | None = None) -> None:
        self.link = link
        self.core = Worker(link.identity.rank, link.identity.incarnation, link.epoch, newcomer)
        self.perform: Perform = perform or self.observe
        self._lock = threading.RLock()
        link.stage = self.core.stage
        link.on_message = self.hear

    def hear(self, event: WorkerEvent) -> None:
        """Take a message of the agent's, or what `perform` has done."""
        with self._lock:
            performed = []
            for effect in self.core.step(time.monotonic_ns(), event):
                if isinstance(effect, Reach):
                    self.link.say(effect.message)
                else:
                    performed.append(effect)
            self.link.epoch, self.link.stage = self.core.epoch, self.core.stage
            self.link.page.store_epoch(self.core.epoch)
        for effect in performed:
            self.perform(effect)

    def done(self, epoch: int, stage: Stage, updates: int, ok: bool = True, reason: str = "") -> None:
        """What was asked for has been done (or could not be)."""
        self.hear(Done(epoch, stage, updates, ok, reason))

    def observe(self, effect: WorkerEffect) -> None:
        """What a process does that is only watched: it trains on, and says that it cannot do more."""
        if isinstance(effect, Park):
            self.done(effect.epoch, Stage.PARKED, -1, False, NO_STEP)
        elif isinstance(effect, Rebuild):
            self.done(effect.order.epoch, Stage.REBUILT, -1, False, NO_STEP)
        elif isinstance(effect, Restore):
            self.done(effect.order.epoch, Stage.RESTORED, -1, False, NO_STEP)
        elif isinstance(effect, Resume):
            self.done(effect.epoch, Stage.RUNNING, effect.updates)
        elif isinstance(effect, Quit):
            _logger.warning("the manager wants this process to end: %s; its launcher decides", effect.reason)
