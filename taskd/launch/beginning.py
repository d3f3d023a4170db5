"""A node that has met the others and cannot begin says why on the board, and the first node's launcher ends the job.

It may have no key, or another one, or an agent of its name is there already. Without its word the others would wait for
its ranks until these are given up, and learn no more than that nobody has come.

Failure modes: a board that is gone tells nobody, and the others wait as before; a node that dies before it has begun
says nothing. Whoever can write on the board can end a job in this way, and in others: it is the rendezvous itself.
A spare that cannot begin is missed by nobody, and says so to nobody but its own terminal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from taskd.launch.board import Board, Waiter
from taskd.launch.ranks import Ranks

FAILED = "cannot begin"
_MOST_WORDS = 1000
"""Characters of what somebody else writes that are shown."""


@contextlib.contextmanager
def told(ranks: Ranks) -> Iterator[None]:
    """Whatever fails in here is said on the board."""
    try:
        yield
    except Exception as error:
        if not ranks.spare and ranks.group_rank > 0:
            ranks.board.try_to_tell(FAILED, [ranks.group_rank, str(error) or type(error).__name__])
        raise


class Beginnings:
    """The first node's ear for the others: `start`, and `close` before the interpreter ends."""

    def __init__(self, board: Board, stop: Callable[[str], None]) -> None:
        """`stop` gets the sentence, in another thread."""
        self._board, self._stop = board, stop
        self.waiter = Waiter(board, "taskd-beginnings", self._run)
        self.start = self.waiter.start

    def close(self) -> None:
        """Listen no more."""
        self.waiter.close(lambda: FAILED, "null")

    def _run(self) -> None:
        while not self.waiter.closing:
            if self.waiter.came(FAILED) and not self.waiter.closing:
                return self._stop(sentence(self._board.look(FAILED)))


def sentence(said: Any) -> str:
    """Of what a node has written."""
    match said:
        case [int(node), str(why)]:
            words = "".join(letter if letter.isprintable() else " " for letter in why[:_MOST_WORDS])
            return f"node {node} cannot begin: {words}"
    return "another node cannot begin, and does not say why in words that are understood here"


def listen(ranks: Ranks, stop: Callable[[str], None]) -> Beginnings | None:
    """If that is this node's part."""
    if ranks.group_rank != 0 or ranks.group_world_size < 2:
        return None
    found = Beginnings(ranks.board, stop)
    found.start()
    return found
