"""The rail orders on one node: sent to every rank until each has answered, and named to the manager with every beat.

This is the agent's part of rails. An order is a level, not an edge. A rank that starts later gets it too. A lost answer
is asked for again. A rank that could not follow is asked again after a pause, since the obstacle may be gone.
It decides nothing about rails, and it does not know what a rail is.
"""

from __future__ import annotations

from taskd.core import limits
from taskd.core.counters import Counters
from taskd.core.crew import Crew
from taskd.core.effects import AgentEffect, Relay
from taskd.core.local import LocalRank
from taskd.core.messages import RailOrder, RailsFollowed
from taskd.core.rails.news import RailNews
from taskd.core.times import long_ago
from taskd.core.types import RankState


class RailRelay:
    """The rail order in force on this node, and which ranks have answered it."""

    def __init__(self, crew: Crew, counters: Counters) -> None:
        self._crew = crew
        self._counters = counters
        self.order: RailOrder | None = None
        self.news = RailNews()

    @property
    def number(self) -> int:
        """The number of the order in force. 0: there was none yet."""
        return 0 if self.order is None else self.order.number

    def ordered(self, order: RailOrder) -> None:
        """Take an order of the manager. Within a term only a newer number replaces an older one."""
        held = self.order
        if held is not None and (order.term, order.number) < (held.term, held.number):
            self._counters.count("rail order of the past")
            return
        self.order = order

    def answered(self, said: RailsFollowed) -> LocalRank | None:
        """A rank has followed, or cannot. Return its record if that is news."""
        record = self._crew.ranks.get(said.rank)
        if record is None or record.incarnation != said.incarnation or not record.live:
            self._counters.count("rails followed by another incarnation")
            return None
        trouble, words = ("", said.reason) if said.ok else (said.reason, "")
        rails = record.rails
        if (rails.order, rails.trouble, rails.words) == (said.number, trouble, words):
            return None
        rails.order, rails.trouble, rails.words = said.number, trouble, words
        record.news = True
        return record

    def due(self, now: int) -> list[AgentEffect]:
        """The order, for every rank that has not followed it yet and did not get it just now."""
        order, ranks = self.order, []
        if order is None:
            return []
        for record in self._crew.ranks.values():
            rails = record.rails
            answered = rails.order == order.number
            if record.state is not RankState.ALIVE or not record.acknowledged or (answered and not rails.trouble):
                continue
            told_at = rails.told_at if rails.told == order.number else None
            if long_ago(told_at, now, limits.RAIL_FOLLOW_NS if answered else limits.ORDER_REPEAT_NS):
                rails.told, rails.told_at = order.number, now
                ranks.append(record.rank)
        return [Relay(tuple(ranks), order)] if ranks else []
