"""Answers the manager's orders in a training process that is only watched: core.Worker decides, the answers are honest.

A script that taskd's launcher did not start, or that runs unguarded, has no step to go back to. It answers that it
cannot park, goes on, and leaves it to its launcher to end it. A process that takes part in repairs uses worker/heal.py
instead. Messages arrive on the link's thread, and everything that follows is done there.
It does NOT park, rebuild or restore anything.
"""

from __future__ import annotations

import threading
import time

from taskd import log
from taskd.core.effects import Park, Quit, Reach, Rebuild, Restore, Resume, Save, WorkerEffect
from taskd.core.events import Done, WorkerEvent
from taskd.core.types import Stage
from taskd.core.worker import Worker
from taskd.worker.link import Link

NO_STEP = "this script has no step to go back to (it does not use taskd.session)"
_logger = log.get(__name__)


class Follower:
    """Connects one Link to one core.Worker."""

    def __init__(self, link: Link, newcomer: bool) -> None:
        self._channel, self._introduction = link.channel, link.introduction
        identity = self._introduction.identity
        self.core = Worker(identity.rank, identity.incarnation, self._introduction.epoch, newcomer)
        self._lock = threading.RLock()
        self._introduction.stage = self.core.stage
        link.on_message = self.hear

    def hear(self, event: WorkerEvent) -> None:
        """Take a message from the agent, or the result of an earlier one."""
        with self._lock:
            performed = []
            for effect in self.core.step(time.monotonic_ns(), event):
                if isinstance(effect, Reach):
                    self._channel.say(effect.message)
                else:
                    performed.append(effect)
            self._introduction.reached(self.core.epoch, self.core.stage)
        for effect in performed:
            self._answer(effect)

    def _answer(self, effect: WorkerEffect) -> None:
        """Answer that this process cannot do what is ordered; training goes on."""
        if isinstance(effect, Park):
            self._cannot(effect.epoch, Stage.PARKED)
        elif isinstance(effect, Rebuild):
            self._cannot(effect.order.epoch, Stage.REBUILT)
        elif isinstance(effect, Restore):
            self._cannot(effect.order.epoch, Stage.RESTORED)
        elif isinstance(effect, Save):
            self._cannot(effect.order.epoch, Stage.SAVED)
        elif isinstance(effect, Resume):
            self.hear(Done(effect.epoch, Stage.RUNNING, effect.updates, True, ""))
        elif isinstance(effect, Quit):
            _logger.warning("the manager wants this process to end: %s; its launcher decides", effect.reason)

    def _cannot(self, epoch: int, stage: Stage) -> None:
        self.hear(Done(epoch, stage, -1, False, NO_STEP))
