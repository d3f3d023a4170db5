"""The rehearsal in which a newcomer runs through its script until it reaches the loop where the other ranks are.

Its script passes the loops that are over and the code between them: a scheduler step, an evaluation, a checkpoint. All
of this is a rehearsal until the newcomer has taken over the state, which happens last. Nothing of the rehearsal leaves
this rank or is saved. If the script would still write something, writes.py stops it.

There is one exception. If the rank died between two loops, its newcomer already has the state. That state may come from
a rank that has already done the work between these loops. Then the state is kept aside, and put back at the end.

Not here: which loop that is (the record of the life before says it), and what a rehearsed step is (newcomer.py).
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import torch

from taskd.errors import StepAbandoned
from taskd.state.replica import Replica
from taskd.state.shards import shard_of
from taskd.worker.heal import Repair
from taskd.worker.patches import Patches
from taskd.worker.writes import WriteGuard


class Passage:
    """The passage of one process. It lasts from `begin` or `go_after` to `end`."""

    def __init__(self, replica: Replica, repair: Repair, patched: Patches, stop: Callable[[str], None]) -> None:
        """`stop` gets a text about what the script is about to write, and never returns."""
        self._replica, self._repair, self.patched = replica, repair, patched
        self._alone = contextlib.ExitStack()
        self._writes = WriteGuard(stop)
        self._stop = stop
        self._aside: tuple[list[torch.Tensor], dict[str, Any]] | None = None
        self.under_way = False

    def begin(self) -> None:
        """Begin the rehearsal."""
        if not self.under_way:
            self.under_way = True
            self._alone.enter_context(self.patched)
            self._alone.enter_context(self._repair.rehearsing())
            self._alone.enter_context(self._writes)

    def go_after(self) -> None:
        """Begin to catch up: the rank that gave the state is further on, so the state already contains that work."""
        tensors = [shard_of(tensor).detach().clone() for tensor in self._shared()]
        self._aside = tensors, copy.deepcopy(self._replica.small())
        self.under_way = self.patched.loaders.as_always = True
        self._alone.enter_context(self.patched)
        self._alone.enter_context(self._repair.apart())
        self._alone.enter_context(self._writes)

    def end(self) -> None:
        """End the passage: the loop is reached. A state that was kept aside is put back."""
        aside, self._aside = self._aside, None
        self.under_way = self.patched.loaders.as_always = False
        with contextlib.suppress(StepAbandoned):  # a newer repair has begun: the loop checks for it
            self._alone.close()
        self._replica.fully_sharded.reset()  # what was gathered alone has wrong contents
        if aside is not None:
            for tensor, kept in zip(self._shared(), aside[0], strict=True):
                shard_of(tensor).detach().copy_(kept)
            self._replica.load_small(aside[1])
        if self._writes.found:
            self._stop(self._writes.found)

    def _shared(self) -> list[torch.Tensor]:
        """Return the tensors that all ranks share. Buffers are a rank's own: what the code between two loops makes of
        them is not in the state of another rank."""
        own = {id(buffer) for model in self._replica.models.values() for buffer in model.buffers()}
        return [tensor for _, tensor in self._replica.tensors() if id(tensor) not in own]
