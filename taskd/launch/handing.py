"""How the nodes' launchers get the job's key from each other over the board, which anybody may read (wire/exchange.py).

A key that was given is handed on to nobody: a node without it, or with another one, is told so and ends. Else the first
node's launcher answers whoever asks, for as long as it lives: the nodes that train, spares, nodes that come again. A
few others stand by for it, since every launcher that has the key can answer: they wait a moment for its answer and then
give their own. When all of those are gone, no further node gets the key, and says so; those that have it keep it.
More asks than the job may have nodes are said aloud: who may write on the board can ask, too.
It does NOT decide who is of the job, nor keep the key on disk.
"""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError

from taskd import log
from taskd.config import Config
from taskd.core.limits import ASKS_MAX
from taskd.errors import PeerError, UsageError
from taskd.launch.board import BOARD_SECONDS, Board, Waiter
from taskd.launch.ranks import Ranks
from taskd.wire import exchange, keys

STAND_INS = 2
"""How many nodes beside the first one answer, after it."""
STAND_IN_SECONDS = 3.0
ASK_SECONDS = 10.0
"""After this an ask is said again, elsewhere."""
_logger = log.get(__name__)


class Handing:
    """`start`, and `close` before the interpreter ends."""

    def __init__(self, board: Board, key: keys.Key, stand_in: bool, expected: int) -> None:
        """`stand_in`: another launcher answers first. `expected`: so many nodes may ask without a word about it."""
        self._stand_in, self._expected = stand_in, expected
        self.waiter = Waiter(board, "taskd-key", self._run)
        self._giver = exchange.Giver(self.waiter.store, key)
        self.start = self.waiter.start

    def close(self) -> None:
        """Answer no more. An ask whose place is taken by this wakening is asked again."""
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
    """Answer who asks for the key, if that is this node's part."""
    alone = max(most_nodes, ranks.group_world_size) < 2
    if notice.given or alone or ranks.spare or ranks.group_rank > STAND_INS:
        return None
    handing = Handing(ranks.board, key, stand_in=ranks.group_rank > 0, expected=most_nodes - 1)
    handing.start()
    return handing


def learn(board: Board, notice: exchange.Notice, settings: Config) -> keys.Key:
    """The job's key for a node that is not the first: its own, if that is the one, or another launcher's answer.

    Raises UsageError when it has to be given and was not, or was given and is another one.
    """
    own = keys.find(settings) if keys.is_given(settings) else None
    if why := exchange.trouble(notice, own):
        raise UsageError(why)
    return own if own is not None else _ask(board, notice)


def notice_in(told: Any) -> exchange.Notice:
    """What the first node's launcher has said of the key. Raises PeerError if it is not understood."""
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
