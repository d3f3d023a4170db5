"""A newcomer's way to the loop where the others are, through all that they have behind them.

Its script comes by the loops that are over, and by what stands between them: a schedule that moves, an evaluation, a
checkpoint. Until it has taken the state over, all that is a rehearsal: nothing of it leaves this rank or is saved (what
would be written all the same stops it, writes.py), and the state comes last. Only a rank that died between two loops
leaves a newcomer which has the state already, perhaps from one that had done what stands there: then that state is kept
aside and put back.

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
from taskd.worker.heal import Repair
from taskd.worker.patches import Patches
from taskd.worker.writes import WriteGuard


class Passage:
    """Under way from `begin` or `go_after` to `end`."""

    def __init__(self, replica: Replica, repair: Repair, patched: Patches, stop: Callable[[str], None]) -> None:
        """`stop` is told what the script is about to write, and never returns."""
        self._replica, self._repair, self.patched = replica, repair, patched
        self._alone = contextlib.ExitStack()
        self._writes = WriteGuard(stop)
        self._stop = stop
        self._aside: tuple[list[torch.Tensor], dict[str, Any]] | None = None
        self.under_way = False

    def begin(self) -> None:
        """What follows is a rehearsal."""
        if not self.under_way:
            self.under_way = True
            self._alone.enter_context(self.patched)
            self._alone.enter_context(self._repair.rehearsing())
            self._alone.enter_context(self._writes)

    def go_after(self) -> None:
        """The giver of this rank's state is a loop ahead: what stands before that one is in the state already."""
        tensors = [tensor.detach().clone() for _, tensor in self._replica.tensors()]
        self._aside = tensors, copy.deepcopy(self._replica.small())
        self.under_way = self.patched.loaders.as_always = True
        self._alone.enter_context(self.patched)
        self._alone.enter_context(self._repair.apart())
        self._alone.enter_context(self._writes)

    def end(self) -> None:
        """This is the loop. What was kept aside is the state again."""
        aside, self._aside = self._aside, None
        self.under_way = self.patched.loaders.as_always = False
        with contextlib.suppress(StepAbandoned):  # a newer repair has begun: the loop looks for it by itself
            self._alone.close()
        if aside is not None:
            for (_, tensor), kept in zip(self._replica.tensors(), aside[0], strict=True):
                tensor.detach().copy_(kept)
            self._replica.load_small(aside[1])
        if self._writes.found:
            self._stop(self._writes.found)
