"""One step as the loop's body sees it: a number, a batch, and the `with` block around the work on that batch.

It has no behaviour of its own. transaction.py defines what happens when a step is entered and left.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol


class Transaction(Protocol):
    """The methods of transaction.py that a step needs."""

    def enter(self, step: Step) -> None: ...
    def leave(self, step: Step, error: BaseException | None) -> bool: ...
    def on_commit(self, step: Step, function: Callable[..., Any], values: tuple[Any, ...]) -> None: ...


class Step:
    """One step of the loop. `with step as batch:` is the transaction."""

    def __init__(
        self,
        transaction: Transaction,
        number: int,
        batch: Any,
        *,
        again: bool = False,
        caught: bool = False,
        rehearsal: bool = False,
    ) -> None:
        self.number = number
        """Counted from 0 over the whole job."""
        self.batch = batch
        self.again = again
        """Whether this is another attempt at the same step."""
        self.caught = caught
        """Whether the script does the step again by itself, after an error that it has caught. All that it has set
        meanwhile stays, until a repair lets all ranks do the step again from its beginning."""
        self.rehearsal = rehearsal
        """Whether a newcomer only rehearses: it learns what the others learned in their first step, and keeps nothing.
        """
        self.used = self.given_up = False
        self.in_body = False
        """Whether the script is inside of `with step:`."""
        self._transaction = transaction

    def on_commit(self, function: Callable[..., Any], *values: Any) -> None:
        """Call `function(*values)` on this rank once the update of this step is agreed. Use it before the backward. If
        the function runs twice, its output must be the same (taskd.save, taskd.add_line). Raises UsageError."""
        self._transaction.on_commit(self, function, values)

    def __enter__(self) -> Any:
        self.used = True
        self._transaction.enter(self)
        self.in_body = True
        return self.batch

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.in_body = False
        return self._transaction.leave(self, error)
