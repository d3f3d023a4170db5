"""The watch over rails: it turns reports into verdicts, and is the part of the rails machine that reads the reports.

Reports are many and none is journaled. `find` turns them into a few verdicts, which are journaled. Equal findings about
several lines of a node's rail are one verdict. A line is looked at when it is reported and something is odd about it.
The use of rails is looked at in rounds.

Its parts: the last reports (sightings), the lines that need a look (attention), the verdict about a line (judgement),
which rail is lent and comes back (lending), whether a change was followed and proved (verification).
Nothing of this is needed after a restart: the full state is reported again. It does NOT change any decision.
"""

from __future__ import annotations

from collections import deque

from taskd.core import limits
from taskd.core.events import RailVerdict
from taskd.core.membership import Membership
from taskd.core.messages import RailReport
from taskd.core.rails.attention import Attention
from taskd.core.rails.carriers import Carriers
from taskd.core.rails.judgement import LineJudge
from taskd.core.rails.lending import Lending
from taskd.core.rails.rails import Rails
from taskd.core.rails.sightings import Sightings
from taskd.core.rails.verification import Verification
from taskd.core.times import long_ago
from taskd.core.types import RailFinding, RailState


class RailWatch:
    """Calls its parts in turn, and returns one verdict after the other."""

    def __init__(self, rails: Rails, members: Membership) -> None:
        self._rails = rails
        standing = self._standing = rails.standing
        self.sightings = Sightings()
        self.carriers = Carriers(standing, self.sightings)
        self._attention = Attention()
        self._judge = LineJudge(standing, self.sightings, self.carriers, self._attention, members)
        self._lending = Lending(standing, self.sightings, self.carriers)
        self._verification = Verification(standing, self.sightings, self.carriers, members)
        self._found: deque[RailVerdict] = deque()
        self._swept_at = 0
        self._round_at: int | None = None
        self._in_round = False
        self._gathered = ("", 0)  # the rail whose lines were last looked at before lending it, and when

    def file(self, node: str, reports: tuple[RailReport, ...], at: int) -> None:
        """File one beat's lines. Costs a few comparisons for each line that is well."""
        for key, odd in self.sightings.file(node, reports, at):
            if odd or key in self._attention.odd or self._standing.state(*key) is not RailState.UP:
                self._attention.call(key)

    def forget(self, node: str) -> None:
        """A node is gone. Forget every line from it and to it."""
        self.sightings.forget(node)
        self._attention.forget(node)

    def restart(self) -> None:
        """The manager was restarted: forget old reports. Look at lines with a decision until they are reported."""
        self.sightings.clear()
        self._attention.restart((*key, peer) for key, rail in self._standing.known.items() for peer in rail.lines)

    def find(self, at: int, repairing: bool) -> RailVerdict | None:
        """Return the next verdict, or None. The caller must apply it before it calls `find` again."""
        if at - self._swept_at >= limits.RAIL_SWEEP_NS:
            self._swept_at = at
            self._attention.call_all(self.sightings.silent(at))  # also of lines that no report names any more
        while not self._found and (due := self._attention.take()) is not None:
            self._found.extend(self._judge.find(*due, at, repairing))
        if self._found:
            return self._found.popleft()
        if not self._in_round and not long_ago(self._round_at, at, limits.RAIL_ROUND_NS):
            return None
        self._round_at, self._in_round = at, True
        name = "" if self._rails.shuffle is not None else self._lending.wanted()
        if name and self._gathered != (name, at):
            self._gathered = (name, at)
            self._attention.call_rail(name)  # first look at its lines on all nodes: they go together
            return self.find(at, repairing)
        verdict = self._lending.lend(name) if name else self._change_of_use(at, repairing)
        self._in_round = verdict is not None
        return verdict

    def _change_of_use(self, at: int, repairing: bool) -> RailVerdict | None:
        """The verdict about the change under way, or about a rail that comes back."""
        shuffle = self._rails.shuffle
        if shuffle is None:
            return self._lending.come_back(at, repairing)
        lent = not shuffle.returns and not shuffle.operator
        if lent and any(self.carriers.none_left(node, shuffle.rail) for node in shuffle.nodes):
            reason = "it stays in use: no other rail is left"
            return RailVerdict(RailFinding.REFUSED, shuffle.rail, shuffle.nodes, (), reason)
        return self._verification.find(shuffle, at, repairing)
