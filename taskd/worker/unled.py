"""Notices a script that trains and never asks for a session: its set-up is over, though nothing says so.

All communication before a session's loop is recorded for a newcomer to play back, and this makes operations slower.
Such a script does not need the record, since a death makes it start over. So its record is given up after a few
updates. If the script asks for its session only after that, it is not healed in place; the newcomer says why.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

UPDATES = 16
"""More updates than a set-up makes, for example to let an optimizer create its state."""


class _Control(Protocol):
    def give_up_record(self) -> None: ...


class _Orders(Protocol):
    has_session: bool


class Unled:
    """Watches one process."""

    def __init__(self, control: _Control, orders: _Orders) -> None:
        self._control, self._orders = control, orders
        self._updates = 0

    def watch(self) -> None:
        """Begin to watch. The hook stays installed: a hook cannot be removed while hooks are being called."""
        # Not torch.compiler.disable: it would import the compiler now.
        uncompiled = getattr(torch, "_disable_dynamo", lambda function: function)
        register_optimizer_step_post_hook(uncompiled(lambda *_: self._updated()))

    def _updated(self) -> None:
        if self._updates < UPDATES and not self._orders.has_session:
            self._updates += 1
            if self._updates == UPDATES:
                self._control.give_up_record()
