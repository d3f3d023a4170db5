"""The process groups of this rank in a repair: their operations end, run again, or complete on this rank alone.

Making groups anew blocks if a rank has died. So it runs on its own thread, which is left behind when a newer epoch
begins. The call that lets operations run again checks whether a newer epoch has begun, and then raises StepAbandoned.
It does NOT know stages, orders or what the operations are for (heal.py).
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from taskd.comm import aside
from taskd.errors import StepAbandoned
from taskd.worker.orders import Orders

QUIESCE = timedelta(seconds=10)
"""How long a copy that is running in the guard may take to end."""
EMPTY_RECORD = b"TSKDREC1" + struct.pack("<II", 2, 2)
"""The record of a set-up without any communication (csrc/c10d/record.hpp)."""


class Groups:
    """All guarded groups of this process. Only the training thread may use it."""

    def __init__(self, orders: Orders, control: Any, make: Callable[[int], None]) -> None:
        """`make(epoch)` makes the groups of an epoch."""
        self._orders = orders
        self._control = control
        self._make = make

    @staticmethod
    def end_operations() -> None:
        """Wait until no operation of the step that was given up touches a tensor any more."""
        from taskd.comm import guard

        guard.quiesce(QUIESCE)

    def rebuild(self, epoch: int) -> None:
        """Make the groups of this epoch on another thread: a group waits for all its members, and one of them may be
        dying. Raises StepAbandoned."""
        aside.do(lambda: self._make(epoch), lambda: self._orders.core.epoch != epoch, f"epoch {epoch} is over")
        self._resume(epoch)

    @contextlib.contextmanager
    def rehearsing(self) -> Iterator[None]:
        """While this lasts, operations complete on this rank alone."""
        self._control.rehearsing = True
        try:
            yield
        finally:
            self._control.rehearsing = False

    @contextlib.contextmanager
    def apart(self, epoch: int) -> Iterator[None]:
        """Like rehearsing(), for a short time after this rank has joined the others. Raises StepAbandoned."""
        from taskd.comm import guard

        with self._orders.lock:
            if self._orders.core.epoch != epoch:
                raise StepAbandoned(f"epoch {epoch} is over")
            self._control.sandbox(EMPTY_RECORD)
        try:
            with self.rehearsing(), guard.counting_apart():
                yield
        finally:
            self._resume(epoch)

    def _resume(self, epoch: int) -> None:
        """Let operations run again, unless a newer epoch has begun."""
        try:
            self._control.resume(epoch)
        except ValueError:
            raise StepAbandoned(f"epoch {epoch} is over") from None
