"""Reports a node that cannot begin: it writes the reason on the board, and the first node's launcher ends the job.

The node has already met the others. It may have no key or a wrong one, or an agent of its name may already exist.
Without the report the others would wait for its ranks until these are given up, and would not learn the reason.

Failure modes: if the board is gone, nothing is reported, and the others wait as before. A node that dies before it has
begun reports nothing. Every process that can write on the board can end a job in this way, and in other ways: the board
is the rendezvous itself. The job does not need a spare, so a spare that cannot begin says so only on its own terminal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from taskd.board import Board, Waiter
from taskd.launch.ranks import Ranks

FAILED = "cannot begin"
_MOST_WORDS = 1000
"""How many characters of another node's text are shown."""


@contextlib.contextmanager
def told(ranks: Ranks) -> Iterator[None]:
    """A context that writes an exception of its body on the board and raises it again."""
    try:
        yield
    except Exception as error:
        if not ranks.spare and ranks.group_rank > 0:
            ranks.board.try_to_tell(FAILED, [ranks.group_rank, str(error) or type(error).__name__])
        raise


class Beginnings:
    """Waits on the first node for such reports. Call `start`, and `close` before the interpreter ends."""

    def __init__(self, board: Board, stop: Callable[[str], None]) -> None:
        """`stop` is called with the sentence, in another thread."""
        self._board, self._stop = board, stop
        self.waiter = Waiter(board, "taskd-beginnings", self._run)
        self.start = self.waiter.start

    def close(self) -> None:
        """Stop waiting."""
        self.waiter.close(lambda: FAILED, "null")

    def _run(self) -> None:
        while not self.waiter.closing:
            if self.waiter.came(FAILED) and not self.waiter.closing:
                return self._stop(sentence(self._board.look(FAILED)))


def sentence(said: Any) -> str:
    """A sentence about what a node has written on the board."""
    match said:
        case [int(node), str(why)]:
            words = "".join(letter if letter.isprintable() else " " for letter in why[:_MOST_WORDS])
            return f"node {node} cannot begin: {words}"
    return "another node cannot begin, and does not say why in words that are understood here"


def listen(ranks: Ranks, stop: Callable[[str], None]) -> Beginnings | None:
    """Begin to wait for reports, if that is this node's task."""
    if ranks.group_rank != 0 or ranks.group_world_size < 2:
        return None
    found = Beginnings(ranks.board, stop)
    found.start()
    return found
