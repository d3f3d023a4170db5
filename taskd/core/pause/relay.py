"""The pause order on one node: sent to every rank until each has answered, and the answers sent on to the manager.

This is the agent's part of a pause. An order is a level, not an edge: a rank that starts later gets it, too, with what
is left of the lease by then. Answers are repeated with every beat while a pause is in force. What can go wrong:

- *The manager is gone*: the order ends here as it ends on the ranks, so no newcomer gets an old one.
- *The manager has lost its journal* and gives an order with a number that is too small: this node goes on with its own,
  and the answer tells the manager the number.

It decides nothing. A job that was never paused sends nothing here.
"""

from __future__ import annotations

from dataclasses import replace

from taskd.core import limits
from taskd.core.counters import Counters
from taskd.core.crew import Crew
from taskd.core.effects import AgentEffect, Relay
from taskd.core.pause.messages import PauseAnswer, PauseAnswers, PauseOrder
from taskd.core.times import long_ago
from taskd.core.types import PauseKind, RankState


class PauseRelay:
    """The pause order in force on this node, and what its ranks have answered."""

    def __init__(self, crew: Crew, counters: Counters) -> None:
        self._crew = crew
        self._counters = counters
        self.order: PauseOrder | None = None
        self._ends_at = 0
        self._answers: dict[int, PauseAnswer] = {}
        self._told: dict[int, tuple[int, int, int]] = {}  # by rank: incarnation, number of the order, when
        self._news = False

    def ordered(self, order: PauseOrder, now: int) -> None:
        """Take an order of the manager. It is answered in any case."""
        held, self._news = self.order, True
        if held is not None and (order.number, order.term) < (held.number, held.term):
            self._counters.count("pause order of the past")
            return
        ends_at = now + order.left_ms * limits.MS
        again = held is not None and (order.number, order.term) == (held.number, held.term) and held.counts
        self.order, self._ends_at = order, min(self._ends_at, ends_at) if again else ends_at

    def answered(self, said: PauseAnswer) -> None:
        """A rank has answered."""
        record = self._crew.ranks.get(said.rank)
        if record is None or record.incarnation != said.incarnation or not record.live:
            self._counters.count("pause answered by another incarnation")
            return
        self._news |= self._answers.get(said.rank) != said
        self._answers[said.rank] = said

    def again(self) -> None:
        """Send the answers again: the manager may know nothing of them."""
        self._news = self.order is not None

    def due(self, now: int) -> list[AgentEffect]:
        """The order, for every rank that has not answered it and did not get it just now."""
        order = self.order
        if order is None or (order.kind is not PauseKind.FREE and order.counts and now >= self._ends_at):
            return []
        ranks = []
        for record in self._crew.ranks.values():
            incarnation, number, at = self._told.get(record.rank, (0, 0, 0))
            known = incarnation == record.incarnation
            answer = self._answers.get(record.rank)
            done = answer is not None and (answer.incarnation, answer.number) == (record.incarnation, order.number)
            if record.state is not RankState.ALIVE or not record.acknowledged or done:
                continue
            if not known or number != order.number or long_ago(at, now, limits.ORDER_REPEAT_NS):
                self._told[record.rank] = (record.incarnation, order.number, now)
                ranks.append(record.rank)
        if not ranks:
            return []
        left_ms = max(self._ends_at - now, 0) // limits.MS if order.counts else order.left_ms
        return [Relay(tuple(ranks), replace(order, left_ms=left_ms))]

    def news(self) -> PauseAnswers | None:
        """Return what the manager does not know yet. None: nothing."""
        if not self._news or self.order is None:
            return None
        self._news = False
        return self._all(self.order)

    def due_with_beat(self) -> PauseAnswers | None:
        """Return what is to be sent with a beat. None: no pause is in force, as far as this node knows."""
        order = self.order
        if order is None or (order.kind is PauseKind.FREE and not self._news):
            return None
        self._news = False
        return self._all(order)

    def _all(self, order: PauseOrder) -> PauseAnswers:
        crew = self._crew.ranks
        live = [one for rank, one in self._answers.items() if rank in crew and crew[rank].live]
        fresh = [one for one in live if crew[one.rank].incarnation == one.incarnation]
        return PauseAnswers(order.number, tuple(fresh[: limits.MAX_RANKS_PER_NODE]))
