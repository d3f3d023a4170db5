"""The verification of a change of use: did all ranks follow it, and does a rail that was put back carry data?

A change is followed when every rank has answered. A rail that was put back must then be proved by bytes, on every line
and for every pair of ranks that sends data. Failure modes, and what follows:

- *A rank does not answer*: it is named, its order is repeated, and the bytes decide.
- *A rank cannot follow*, or its backend reported success and moved nothing: undone, with the rank's own sentence.
- *A line carries nothing, or only for some pairs*, while others carry much between the same ranks: out again.
- *A pair sends little* (most pairs do, in a ring): this does not count against the rail. The verification waits for the
  pair only until the line has carried enough for all of its pairs.
- *The rail rests at the other end*: nothing can flow on that line, so it is left out.
- *Nothing is sent at all*: after a while the rail stays, unproved.

Invariants: no rail goes out again because a rank had nothing to send. No rail is called proved without bytes on every
line that was checked. Not here: which rail is lost, lent and when it returns (judgement, lending).
"""

from __future__ import annotations

from taskd.core import limits
from taskd.core.events import RailVerdict
from taskd.core.membership import Membership
from taskd.core.messages import RankReport
from taskd.core.rails.carriers import Carriers
from taskd.core.rails.records import RESTING, Shuffle
from taskd.core.rails.sightings import Key, Seen, Sightings
from taskd.core.rails.standing import Standing
from taskd.core.types import RailFinding, RailState, RankState
from taskd.core.words import cut, join, rank_words, verb


class Verification:
    """Checks the change of use under way."""

    def __init__(self, standing: Standing, sightings: Sightings, carriers: Carriers, members: Membership) -> None:
        self._standing = standing
        self._sightings = sightings
        self._carriers = carriers
        self._members = members
        self._began = 0  # the number of the order whose lines are measured

    def find(self, shuffle: Shuffle, at: int, repairing: bool) -> RailVerdict | None:
        """The verdict about this change, if there is one now."""
        return self._verify(shuffle, at, repairing) if shuffle.followed else self._follow(shuffle, at)

    # ---- every rank has answered --------------------------------------------------------------------------------

    def _follow(self, shuffle: Shuffle, at: int) -> RailVerdict | None:
        waiting = []
        for rank, report in self._answers(shuffle):
            if report.rail_order < shuffle.number:
                waiting.append(rank)
            elif report.rail_order == shuffle.number and report.rail_trouble:
                reason = cut(f"rank {rank} cannot follow: {report.rail_trouble}")
                return RailVerdict(RailFinding.REFUSED, shuffle.rail, shuffle.nodes, (), reason)
        if not waiting:
            self._began = 0
            words = "; ".join(filter(None, ("every rank has followed", self._said(shuffle))))
            return RailVerdict(RailFinding.FOLLOWED, shuffle.rail, shuffle.nodes, (), cut(words))
        if at >= shuffle.ends_at:
            seconds = limits.RAIL_FOLLOW_NS // limits.SECOND
            reason = f"{rank_words(waiting)} did not answer within {seconds} s; the order is repeated"
            return RailVerdict(RailFinding.LATE, shuffle.rail, shuffle.nodes, (), reason)
        return None

    def _answers(self, shuffle: Shuffle) -> list[tuple[int, RankReport]]:
        """The last reports of the living ranks of these nodes."""
        found = []
        for node in shuffle.nodes:
            record = self._members.nodes.get(node)
            for rank in sorted(record.ranks) if record is not None else ():
                report = self._members.ranks[rank].report
                if report is not None and self._members.ranks[rank].state is RankState.ALIVE:
                    found.append((rank, report))
        return found

    def _said(self, shuffle: Shuffle) -> str:
        """What ranks add to their yes: the words of the first one, and how many others have words."""
        answers = [(rank, one.rail_words) for rank, one in self._answers(shuffle) if one.rail_words]
        if not answers:
            return ""
        rank, words = answers[0]
        others = f" (and {len(answers) - 1} more)" if len(answers) > 1 else ""
        return f"rank {rank}{others}: {words}"

    # ---- bytes --------------------------------------------------------------------------------------------------

    def _verify(self, shuffle: Shuffle, at: int, repairing: bool) -> RailVerdict | None:
        """The verdict about a rail that was put back: do bytes flow on every line, for every pair of ranks?"""
        since = shuffle.ends_at - limits.RAIL_IDLE_NS
        patient = at - since >= limits.RAIL_VERIFY_NS
        keys, resting = self._lines(shuffle)
        fresh, self._began = self._began != shuffle.number, shuffle.number
        still, quiet, starved, partly = 0, 0, "", ""
        for key in keys:
            node, _, peer = key
            seen = self._sightings.of(key)
            if self._standing.state(*key) is RailState.DOWN and self._carriers.any(*key):
                return self._roll_back(shuffle, f"its line from {node} to {peer} is lost")
            if fresh or seen.bytes_at_return < 0:
                self._measure(key, seen)
            idle = max(seen.report.pairs - seen.report.pairs_moved, 0)
            # Bytes that ranks have sent since the order count, too: there may have been no more to send.
            carried = seen.bytes > seen.bytes_at_return or (seen.heard_at > since and seen.report.pairs_moved > 0)
            if carried and not idle:
                continue
            why = self._starves(key, seen, since)
            starved = starved or why
            enough = seen.bytes - seen.bytes_at_return >= limits.RAIL_VERIFY_BYTES * max(seen.report.pairs, 1)
            if patient and enough and not why:
                quiet += idle
                continue
            still += 1
            if carried:
                moved = seen.report.pairs - idle
                partly = partly or f"{moved} of {seen.report.pairs} pairs of {node} and {peer} use it"
        if keys and not still:
            how = "bytes flow on every line and rank"
            if quiet:
                has = verb(quiet, "pair has", "pairs have")
                how = f"bytes flow on every line; {quiet} {has} little to say to each other"
            how += f"; it rests at the other {verb(len(resting), 'end', 'ends')}, {join(resting)}" if resting else ""
            return self._verified(shuffle, keys, cut(how))
        if starved and patient and not repairing:
            return self._roll_back(shuffle, starved)
        if not keys and (resting or patient):
            why = f"it rests at the other {verb(len(resting), 'end', 'ends')}, {join(resting)}" if resting else ""
            return self._verified(shuffle, keys, f"it stays, unproved: {why or 'nobody uses it any more'}")
        if at >= shuffle.ends_at and not repairing:
            why = partly or self._said(shuffle) or "hardly anything was sent"
            return self._verified(shuffle, keys, cut(f"it stays, unproved: {why}"))
        return None

    def _lines(self, shuffle: Shuffle) -> tuple[list[Key], list[str]]:
        """The lines that can carry, and the peers where the rail rests. On a resting line neither end sends."""
        keys, resting = [], set()
        names: dict[str, set[str]] = {}
        for node in shuffle.nodes:
            for peer in sorted(self._sightings.peers.get((node, shuffle.rail), ())):
                key = (node, shuffle.rail, peer)
                if peer not in names:
                    names[peer] = self._sightings.names(peer)
                if self._rests(key, names[peer]) and self._carriers.any(*key):
                    resting.add(peer)
                else:
                    keys.append(key)
        return sorted(keys), sorted(resting)

    def _rests(self, key: Key, names: set[str]) -> bool:
        """Whether the rail rests, or may rest, at the peer of this line. `names`: the rails of the peer."""
        _, name, peer = key
        # A peer may have another name for its end. Only the transport knows which of its rails that is.
        alike = name in names
        return self._standing.use(peer, name) in RESTING or (not alike and bool(self._standing.out(peer)))

    def _measure(self, key: Key, seen: Seen) -> None:
        """Measure the traffic of this line and of the other rails from now on."""
        seen.bytes_at_return = seen.bytes
        seen.others_at_return = self._sightings.bytes_of_others(key)
        seen.cost_since = seen.cost_since or self._sightings.spent(key, seen)

    def _starves(self, key: Key, seen: Seen, since: int) -> str:
        """How this line starves: other rails carry traffic that it should share. Empty: it does not, or not yet long
        enough."""
        node, _, peer = key
        report = seen.report
        if seen.heard_at < since:
            return ""
        moved = self._sightings.bytes_of_others(key) - seen.others_at_return
        if seen.bytes == seen.bytes_at_return and moved >= limits.RAIL_VERIFY_BYTES * max(report.pairs, 1):
            return f"others carried {moved} bytes from {node} to {peer}, it carried none"
        if report.pairs_starved:
            count = report.pairs_starved
            sends = verb(count, "sends", "send")
            return f"{count} of {report.pairs} pairs of {node} and {peer} {sends} over others alone"
        return ""

    def _verified(self, shuffle: Shuffle, keys: list[Key], reason: str) -> RailVerdict:
        costs = [self._sightings.cost(key, self._sightings.of(key)) for key in keys]
        total = tuple(sum(cost) for cost in zip(*costs, strict=True)) if costs else (0, 0, 0)
        return RailVerdict(RailFinding.VERIFIED, shuffle.rail, shuffle.nodes, (), reason, (), *total)

    @staticmethod
    def _roll_back(shuffle: Shuffle, reason: str) -> RailVerdict:
        return RailVerdict(RailFinding.ROLL_BACK, shuffle.rail, shuffle.nodes, (), cut(f"out again: {reason}"))
