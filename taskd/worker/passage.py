"""A newcomer's way to the loop where the others are, through all that they have behind them.

Its script comes by the loops that are over, and by what stands between them: a schedule that moves, an evaluation, a
checkpoint. Until it has taken the state over, all that is a rehearsal: nothing of it leaves this rank or is saved, and
the state comes last. Only a rank that died between two loops leaves a newcomer which has the state already, perhaps
from one that had done what stands there: then that state is kept aside and put back.

Not here: which loop that is (the record of the life before says it), and what a rehearsed step is (session.py).
"""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import torch

from taskd.errors import StepAbandoned
from taskd.state.replica import Replica
from taskd.worker.heal import Repair
from taskd.worker.patches import Patches


class Passage:
    """Under way from `begin` or `go_after` to `end`."""

    def __init__(self, replica: Replica, repair: Repair, patched: Patches) -> None:
        self._replica, self._repair, self.patched = replica, repair, patched
        self._alone = contextlib.ExitStack()
        self._aside: tuple[list[torch.Tensor], dict[str, Any]] | None = None
        self.under_way = False

    def begin(self) -> None:
        """What follows is a rehearsal."""
        if not self.under_way:
            self.under_way = True
            self._alone.enter_context(self.patched)
            self._alone.enter_context(self._repair.rehearsing())

    def go_after(self) -> None:
        """The giver of this rank's state is a loop ahead: what stands before that one is in the state already."""
        tensors = [tensor.detach().clone() for _, tensor in self._replica.tensors()]
        self._aside = tensors, copy.deepcopy(self._replica.small())
        self.under_way = True
        self._alone.enter_context(self.patched)
        self._alone.enter_context(self._repair.apart())

    def end(self) -> None:
        """This is the loop. What was kept aside is the state again."""
        aside, self._aside = self._aside, None
        self.under_way = False
        with contextlib.suppress(StepAbandoned):  # a newer repair has begun: the loop looks for it by itself
            self._alone.close()
        if aside is not None:
            for (_, tensor), kept in zip(self._replica.tensors(), aside[0], strict=True):
                tensor.detach().copy_(kept)
            self._replica.load_small(aside[1])
