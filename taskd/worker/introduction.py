"""What a training process says of itself whenever it introduces itself to its node's agent.

Said anew after every break of the line, so it has to be true at any time: who changes the epoch or the stage says so
here. With it go the descriptors of the beat page and of the records that the agent keeps beyond this process' life.
Alone, since those who go through repairs change it and know no socket. It does NOT send anything (link.py).
"""

from __future__ import annotations

import os

from taskd import _native
from taskd.core.messages import WorkerHello
from taskd.core.types import Cover, Stage
from taskd.worker.identity import Identity


class Introduction:
    """Of one training process."""

    def __init__(self, identity: Identity, framework: str, page: _native.Page, records: tuple[int, ...]) -> None:
        self.identity = identity
        self.incarnation = identity.incarnation
        """The agent may give it a later one than its launcher did."""
        self.epoch = 0
        self.stage = Stage.RUNNING
        self.updates = -1
        self.part = 0
        self.cover = Cover.UNKNOWN
        self.descriptors = (page.fd, *records)
        self._framework = framework
        self._page = page
        self._pid = os.getpid()

    def reached(self, epoch: int, stage: Stage, updates: int = -1, part: int = 0) -> None:
        """This is how far it is now, and what it holds; the page says the epoch, too."""
        self.epoch, self.stage, self.updates, self.part = epoch, stage, updates, part
        self._page.store_epoch(epoch)

    def hello(self, key: bytes) -> WorkerHello:
        """The words. `key`: the job's, as far as it is known here."""
        return WorkerHello(
            job=self.identity.job,
            rank=self.identity.rank,
            world_size=self.identity.world_size,
            local_rank=self.identity.local_rank,
            pid=self._pid,
            incarnation=self.incarnation,
            framework=self._framework,
            epoch=self.epoch,
            stage=self.stage,
            key=key,
            updates=self.updates,
            part=self.part,
            cover=self.cover,
        )
