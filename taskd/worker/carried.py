"""Gradients that accumulate from one step to the next, and whether a rank that lacks them can take another rank's.

A step that made gradients and used no optimizer leaves them to the steps after it. A newcomer, or a rank that has
missed an update, may take another rank's gradients only if they are the same on all ranks. Copies of gradients for a
step that is given up are local state (local.py). This module only knows whether gradients accumulate.
"""

from __future__ import annotations

import torch

from taskd.errors import PeerError
from taskd.state.local import LocalState
from taskd.state.replica import Replica

ALIKE, OWN = b"alike", b"own"
"""The kinds of carried gradients: the same on all ranks, or each rank's own."""


class Carried:
    """The carried gradients of one session."""

    def __init__(self, replica: Replica, local: LocalState) -> None:
        self._replica, self._local = replica, local
        self.updated = True
        """Whether the last step used its gradients."""
        self.lacking = False
        """Whether this rank lacks the gradients that the others may carry."""
        self._synced = self._alike = True

    def forward_ended(self) -> None:
        """Note whether this backward reduces its gradients across ranks."""
        synced = all(model.require_backward_grad_sync for model in self._replica.parallel())
        self._synced = synced and self._replica.fully_sharded.reduces()

    def committed(self) -> None:
        """Note that a step is done."""
        self._alike = self._synced

    def give(self) -> tuple[bytes, dict[str, torch.Tensor]]:
        """Return the kind of the carried gradients, and the gradients."""
        covered = {id(one) for model in self._replica.parallel() for one in model.parameters()}
        covered |= self._replica.fully_sharded.managed()
        alike = self._alike and all(id(one) in covered for one in self._local.parameters() if one.requires_grad)
        alike = alike and not self._replica.kept  # another rank's shards have other gradients
        return ALIKE if alike else OWN, self._local.carried_gradients()

    def take(self, kind: bytes, gradients: dict[str, torch.Tensor]) -> None:
        """Take over the gradients that another rank gave, if any. Raises PeerError if this rank cannot use them."""
        if kind:
            self.updated = False
            if self.lacking:
                if kind == OWN:
                    raise PeerError(
                        "gradients that each rank has for itself were carried from one step to the next, and those of "
                        "one are lost: accumulate within a step, or let DistributedDataParallel reduce them in each"
                    )
                self._local.put_gradients(gradients)
        self.lacking = False
