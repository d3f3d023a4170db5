"""The introduction: what a training process says about itself each time it introduces itself to its node's agent.

It is sent again after every lost connection, so it has to be true at any time. Code that changes the epoch or the stage
must report the change here. The descriptors of the beat page and of the records are sent along. The agent keeps them
beyond this process' life. This is a module of its own because the repair changes it and knows no socket. It does NOT
send anything (link.py).
"""

from __future__ import annotations

import os

from taskd import _native
from taskd.core.messages import WorkerHello
from taskd.core.types import NOTHING_KEPT, Cover, Kept, Stage
from taskd.worker.identity import Identity, device_at


class Introduction:
    """The introduction of one training process."""

    def __init__(self, identity: Identity, framework: str, page: _native.Page, records: tuple[int, ...]) -> None:
        self.identity = identity
        self.incarnation = identity.incarnation
        """The agent may choose a later incarnation than the launcher did."""
        self.epoch = 0
        self.stage = Stage.RUNNING
        self.updates = -1
        self.part = 0
        self.kept = NOTHING_KEPT
        self.cover = Cover.UNKNOWN
        self.saves = False
        self.descriptors = (page.fd, *records)
        self._framework = framework
        self._page = page
        self._pid = os.getpid()

    def reached(self, epoch: int, stage: Stage, updates: int = -1, part: int = 0, kept: Kept = NOTHING_KEPT) -> None:
        """Set the stage that this process has reached, and what it holds. The page shows the epoch, too."""
        self.epoch, self.stage, self.updates, self.part, self.kept = epoch, stage, updates, part, kept
        self._page.store_epoch(epoch)

    def hello(self, key: bytes) -> WorkerHello:
        """Return the hello message. `key`: the job's key, as far as it is known here."""
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
            device=device_at(os.environ, self.identity.local_rank),
            saves=self.saves,
            kept_from=self.kept.first,
            kept_to=self.kept.last,
        )
