"""What a script decides before its first loop, so that a newcomer decides the same as its predecessor.

A newcomer runs the set-up again, but at another time: a checkpoint that was not there is there now. It would begin at
another epoch. So the results of session.between() before the first loop are kept, and so are the numbers of
session.epochs(). A newcomer runs that work again like the rest of its set-up, and gets the result of its predecessor.

Failure modes: the work fails, is tried again, or is inside of other work; its result is an object that the script also
knows by another name; `then` was not done. Invariants: what the script gets on a newcomer is equal to what its
predecessor got. If the newcomer's own result is equal, it gets that very object. Not seen: what the work decides and
does not return; a result that is large or not plain.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from taskd.errors import UsageError
from taskd.state import plain, tree
from taskd.state.ledger import Early, Ledger
from taskd.worker import reads

MOST_BYTES = 64 << 10
"""Most bytes of one result that is kept. The ledger is written often."""
_NONE = b""
Follow = Callable[[Callable[[Any], Any] | None, Any], None]


class BeforeLoops:
    """What one session does before its loops."""

    def __init__(self, ledger: Ledger, follow: Follow) -> None:
        """`follow` calls a function with a result."""
        self._ledger, self._follow = ledger, follow
        self._works = self._epochs = 0

    def do(self, work: Callable[[], Any], then: Callable[[Any], Any] | None) -> Any:
        """Do work before the first loop and return its result. `then` is done once."""
        number, self._works = self._works, self._works + 1
        early = self._ledger.set_up.early
        if number == len(early):
            early.append(Early())  # before the work, which may fail, or do work itself
            result = work()
            early[number].result = _kept(result)
            self._ledger.save()
        else:
            result = _as_kept(work(), early[number].result)
        if not early[number].followed:
            self._follow(then, result)
            early[number].followed = True
            self._ledger.save()
        return result

    def epochs(self, first: int, count: int) -> range:
        """Return the epochs of session.epochs(), if the script says these numbers."""
        number, self._epochs = self._epochs, self._epochs + 1
        if number == len(self._ledger.set_up.epochs):
            self._ledger.set_up.epochs.append((first, count))
            self._ledger.save()
        return range(*self._ledger.set_up.epochs[number])

    def are_over(self) -> None:
        """Note that a loop begins. A later call does nothing."""
        set_up = self._ledger.set_up
        if set_up.over and not reads.ends():
            return
        set_up.made, set_up.over = reads.made(), set_up.over or time.time()
        self._ledger.save()


def _kept(result: Any) -> bytes:
    """Return a result as bytes. Empty: it cannot be kept."""
    try:
        text, tensors = tree.flatten(result, "the result of between()")
        if len(text) + sum(tensor.nbytes for tensor in tensors) > MOST_BYTES:
            return _NONE
        return b"".join(tree.pack(result))
    except UsageError:
        return _NONE


def _as_kept(result: Any, kept: bytes) -> Any:
    """Return this result if it is equal to the kept one, or if none is kept. Otherwise return the kept one, in the same
    object if that is possible."""
    if kept in (_NONE, _kept(result)):
        return result
    value = tree.unpack(kept)
    return result if plain.filled(result, value) else value
