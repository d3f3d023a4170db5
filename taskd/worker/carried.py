"""Gradients that count on from one step to the next, and what they are to a rank that lacks them.

A step that made gradients and used no optimizer leaves them to the steps after it. A rank that comes anew, or that has
missed an update, may take another rank's only if those are the same on all ranks. What is kept of them when a step is
given up is local state (local.py); this module only knows whether they count.
"""

from __future__ import annotations

import torch

from taskd.errors import PeerError
from taskd.state.local import LocalState
from taskd.state.replica import Replica

ALIKE, OWN = b"alike", b"own"
"""Gradients that are carried from step to step, seen from another rank."""


class Carried:
    """Of one session."""

    def __init__(self, replica: Replica, local: LocalState) -> None:
        self._replica, self._local = replica, local
        self.updated = True
        """Whether the last step used its gradients."""
        self.lacking = False
        """Whether this rank has none of those that the others may carry."""
        self._synced = self._alike = True

    def forward_ended(self) -> None:
        """Note whether this backward reduces its gradients."""
        self._synced = all(model.require_backward_grad_sync for model in self._replica.parallel())

    def committed(self) -> None:
        """A step is done."""
        self._alike = self._synced

    def give(self) -> tuple[bytes, dict[str, torch.Tensor]]:
        """What they are to other ranks, and they."""
        covered = {id(one) for model in self._replica.parallel() for one in model.parameters()}
        alike = self._alike and all(id(one) in covered for one in self._local.parameters() if one.requires_grad)
        return ALIKE if alike else OWN, self._local.carried_gradients()

    def take(self, kind: bytes, gradients: dict[str, torch.Tensor]) -> None:
        """Go on with what another rank gave, if it gave any. Raises PeerError if that cannot be this rank's."""
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
