"""One step as the loop's body sees it: a number, a batch, and the `with` around what is done with it.

It holds no behaviour of its own: what entering and leaving mean stands in transaction.py.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol


class Transaction(Protocol):
    """What a step needs of transaction.py."""

    def enter(self, step: Step) -> None: ...
    def leave(self, step: Step, error: BaseException | None) -> bool: ...
    def on_commit(self, step: Step, function: Callable[..., Any], values: tuple[Any, ...]) -> None: ...


class Step:
    """One step of the loop. `with step:` is the transaction; what it gives is the batch."""

    def __init__(
        self, transaction: Transaction, number: int, batch: Any, *, again: bool = False, rehearsal: bool = False
    ) -> None:
        self.number = number
        """Counted from 0 over the whole job."""
        self.batch = batch
        self.again = again
        """Whether it is done again."""
        self.rehearsal = rehearsal
        """Whether it only lets a newcomer learn what the others learned in their first step; nothing of it is kept."""
        self.used = False
        self._transaction = transaction

    def on_commit(self, function: Callable[..., Any], *values: Any) -> None:
        """Once the update of this step is agreed, call `function(*values)`, on this rank. Before the backward; what it
        writes must come out the same when it is done twice (taskd.save, taskd.add_line). Raises UsageError."""
        self._transaction.on_commit(self, function, values)

    def __enter__(self) -> Any:
        self.used = True
        self._transaction.enter(self)
        return self.batch

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self._transaction.leave(self, error)
