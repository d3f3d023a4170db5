"""How the nodes' launchers get the job's key from each other over the board, which anybody may read (wire/exchange.py).

A key that the user has given is not handed on. A node without it, or with another one, gets an error and ends.
Otherwise the first node's launcher answers every request as long as it lives: from nodes that train, from spares, and
from nodes that come again. A few other launchers stand in for it, since every launcher that has the key can answer.
They wait a moment for its answer and then give their own. When all of these are gone, no further node gets the key, and
such a node says so. Nodes that have the key keep it. A warning is logged if there are more requests than the job may
have nodes: everyone who can write on the board can ask.
It does NOT decide which nodes belong to the job, nor keep the key on disk.
"""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError

from taskd import log
from taskd.board import BOARD_SECONDS, Board, Waiter
from taskd.config import Config
from taskd.core.limits import ASKS_MAX
from taskd.errors import PeerError, UsageError
from taskd.launch.ranks import Ranks
from taskd.wire import exchange, keys

STAND_INS = 2
"""How many nodes stand in for the first one."""
STAND_IN_SECONDS = 3.0
ASK_SECONDS = 10.0
"""After this time a node asks again, in another place on the board."""
_logger = log.get(__name__)


class Handing:
    """Answers requests for the key. Call `start`, and `close` before the interpreter ends."""

    def __init__(self, board: Board, key: keys.Key, stand_in: bool, expected: int) -> None:
        """`stand_in`: another launcher answers first. `expected`: how many nodes may ask without a warning."""
        self._stand_in, self._expected = stand_in, expected
        self.waiter = Waiter(board, "taskd-key", self._run)
        self._giver = exchange.Giver(self.waiter.store, key)
        self.start = self.waiter.start

    def close(self) -> None:
        """Stop answering. This writes to the next place on the board; a node that lost its place asks again."""
        self.waiter.close(lambda: self._giver.waits_for, exchange.NOBODY)

    def _run(self) -> None:
        while not self._giver.exhausted:
            if self.waiter.came(self._giver.waits_for) and not self.waiter.closing:
                self._answer()
            if self.waiter.closing:
                return
        _logger.warning("%d have asked for the job's key: no further node gets it", ASKS_MAX)

    def _answer(self) -> None:
        giver = self._giver
        asked = giver.asked()
        if asked == exchange.NOBODY:
            giver.skip()
            return
        answered = self._stand_in and asked and self.waiter.came(giver.answers_at, timedelta(seconds=STAND_IN_SECONDS))
        if answered or (self._stand_in and not asked):
            giver.skip()
        elif not giver.serve():
            log.once(_logger, logging.WARNING, "ask", "something on the board that asked for the job's key was refused")
        elif self._stand_in:
            _logger.info("the first node's launcher did not answer a node that asked for the job's key: this one did")
        elif giver.given > self._expected:
            text = "%d have been given the job's key, besides the first node: one that came again, or a stranger on %s"
            log.once(_logger, logging.WARNING, "asks", text, giver.given, "the board, where whoever writes can ask")


def begin(ranks: Ranks, notice: exchange.Notice, key: keys.Key, most_nodes: int) -> Handing | None:
    """Begin to answer requests for the key, if that is this node's task."""
    alone = max(most_nodes, ranks.group_world_size) < 2
    if notice.given or alone or ranks.spare or ranks.group_rank > STAND_INS:
        return None
    handing = Handing(ranks.board, key, stand_in=ranks.group_rank > 0, expected=most_nodes - 1)
    handing.start()
    return handing


def learn(board: Board, notice: exchange.Notice, settings: Config) -> keys.Key:
    """The job's key for a node that is not the first: its own key if it is the right one, or another launcher's answer.

    Raises UsageError when the user had to give the key and did not, or has given a different one.
    """
    own = keys.find(settings) if keys.is_given(settings) else None
    if why := exchange.trouble(notice, own):
        raise UsageError(why)
    return own if own is not None else _ask(board, notice)


def notice_in(told: Any) -> exchange.Notice:
    """What the first node's launcher has written about the key. Raises PeerError if it is not understood."""
    found = exchange.notice_from(told) if isinstance(told, str) else None
    if found is None:
        raise PeerError(
            "the first node's launcher says nothing of the job's key that is understood here: use the same version of "
            "taskd on all nodes"
        )
    return found


def _ask(board: Board, notice: exchange.Notice) -> keys.Key:
    asker = exchange.Asker(board.store, notice)
    ends = time.monotonic() + BOARD_SECONDS
    try:
        while time.monotonic() < ends:
            if not asker.ask():
                raise PeerError(f"{ASKS_MAX} have asked for the job's key, and no more get it: {exchange.HOW_TO_GIVE}")
            try:
                board.store.wait([asker.waits_for], timedelta(seconds=ASK_SECONDS))
            except DistStoreError:
                _logger.warning("nobody has answered this node's ask for the job's key yet: asking again")
                continue
            found, why = asker.answer()
            if why:
                raise PeerError(why)
            if found:
                return keys.Key(found, "another node")
    except RuntimeError as error:
        raise PeerError(f"the launcher of the first node is gone: {str(error).splitlines()[0]}") from None
    raise PeerError(
        f"no launcher that has the job's key has answered in {BOARD_SECONDS} s: the first node's has ended or hangs; "
        f"{exchange.HOW_TO_GIVE}"
    )
