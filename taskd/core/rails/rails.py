"""The decisions about rails: which lines are lost, which rails are lent and come back, and what operators want.

The transport reacts to a bad line in milliseconds. This module keeps what lasts. Every change is a verdict (watch finds
it, the journal keeps it) or an operator's wish, so a replay needs no report. Failure modes, and what follows:

- *A rail flaps*: it stays lent until K probes and a quiet time have passed. The quiet time doubles at each loss, up to
  a bound.
- *A rail is put back and carries nothing*, or not for every pair of ranks, or is lost again: it is lent again (rolled
  back).
- *A rank cannot follow* (its backend cannot choose rails, or reports success and moves nothing): the change is undone,
  with the rank's own sentence. A rail that could not be put back is lent, and tried again after its back-off.
- *A node goes*: its lines go too. A change that waited for the node continues without it.

Invariants: one change of use at a time. No order that this machine gives by itself takes the last rail between two
nodes. Not here: reports (watch), proof (verification), the records (standing), orders to nodes (orders), what people
are shown (incidents).
"""

from __future__ import annotations

from taskd.core import limits
from taskd.core.events import RailVerdict, RailWish
from taskd.core.job import Job
from taskd.core.rails.incidents import RailIncidents
from taskd.core.rails.orders import RailOrders
from taskd.core.rails.records import CARRIES, RAIL, RESTING, Line, Rail, RailCause, Shuffle, Use, UseCause
from taskd.core.rails.standing import Standing
from taskd.core.records import NodeState
from taskd.core.times import Moment
from taskd.core.types import RailFinding, RailState
from taskd.core.words import join, some, verb

_CAUSE = {
    RailFinding.SILENT: RailCause.SILENT,
    RailFinding.ANSWERED: RailCause.ANSWERED,
    RailFinding.LOST: RailCause.LOST,
    RailFinding.CONNECTED: RailCause.CONNECTED,
    RailFinding.PROVED: RailCause.PROVED,
}


class Rails:
    """Applies verdicts and wishes to the records of rails. Begins and ends the one change of use under way."""

    def __init__(self, job: Job) -> None:
        self._members = job.members
        self.standing = Standing()
        self.orders = RailOrders(job, self.standing)
        self.incidents = RailIncidents(job, self.standing)
        self.shuffle: Shuffle | None = None
        self.last: Shuffle | None = None  # the change that ended last, for the operator who waits for it

    # ---- verdicts and wishes ----------------------------------------------------------------------------------

    def apply(self, verdict: RailVerdict, when: Moment) -> None:
        """Apply a verdict. A verdict that no longer fits (its node has gone) changes nothing."""
        if verdict.finding in _CAUSE or verdict.finding is RailFinding.GONE:
            self._lines(verdict, when)
        elif verdict.finding is RailFinding.LEND:
            rails = [rail for rail in self._rails(verdict) if rail.use is Use.IN_USE]
            if self._change(rails, UseCause.LEND, verdict.reason, False, False, when):
                self.incidents.phase(verdict.rail, "borrow", "", when.now)
        elif verdict.finding is RailFinding.RETURN:
            rails = [rail for rail in self._rails(verdict) if rail.use is Use.LENT]
            if self._change(rails, UseCause.RETURN, verdict.reason, True, False, when):
                self.incidents.phase(verdict.rail, "verify", "borrow", when.now)
        elif self.shuffle is not None and self.shuffle.rail == verdict.rail:
            self._progress(self.shuffle, verdict, when)
        self.incidents.close(verdict.rail, when.now)

    def wish(self, wish: RailWish, when: Moment) -> None:
        """Apply an operator's order that `facts.wish` has accepted."""
        if self.shuffle is not None:
            return
        cause = UseCause.TAKE_OUT if wish.out else UseCause.PUT_BACK
        wanted = (Use.IN_USE, Use.LENT) if wish.out else (Use.OUT,)
        rails = [rail for node in wish.nodes if (rail := self.standing.record(node, wish.rail)).use in wanted]
        reason = "an operator took it out" if wish.out else "an operator put it back"
        self._change(rails, cause, reason, not wish.out, True, when)
        self.incidents.close(wish.rail, when.now)

    def forget(self, node: str, now: int) -> None:
        """A node is gone. Forget every line from it and to it."""
        self.standing.forget(node)
        self.orders.forget(node)
        shuffle = self.shuffle
        if shuffle is not None and node in shuffle.nodes:
            shuffle.nodes = tuple(other for other in shuffle.nodes if other != node)
            if not shuffle.nodes:
                self._end_shuffle(shuffle, "undone", f"node {node} is gone")
        for name in list(self.incidents.open):
            self.incidents.close(name, now)

    def restarted(self, at: int) -> None:
        """The manager was restarted and has missed reports, so all clocks start again."""
        self.standing.restart(at)
        if self.shuffle is not None:
            self.shuffle.ends_at = at + limits.RAIL_FOLLOW_NS
            self.shuffle.followed = False
        self.orders.restart()

    # ---- lines ------------------------------------------------------------------------------------------------

    def _lines(self, verdict: RailVerdict, when: Moment) -> None:
        """Move the state of lines of one rail. Lines that are UP are not kept."""
        rail = self.standing.record(verdict.nodes[0], verdict.rail)
        if verdict.finding is RailFinding.GONE:
            gone = [peer for peer in verdict.peers if rail.lines.pop(peer, None) is not None]
            if gone:
                self.incidents.note(rail.name, f"{_words(rail)} to {some(gone)}: {verdict.reason}", rail.node)
            self.incidents.will_end(rail.name, "what was lost of it is not used any more")
            return
        cause = _CAUSE[verdict.finding]
        moved = [peer for peer in verdict.peers if self._line(rail, peer, cause, verdict.borrowers, when.at)]
        if not moved:
            return
        if cause is RailCause.LOST:
            self._lost(rail, moved, verdict, when.now)
        elif cause in (RailCause.CONNECTED, RailCause.PROVED):
            self.incidents.will_end(rail.name, CARRIES)
            self.incidents.note(rail.name, f"{_words(rail)} to {some(moved)}: {verdict.reason}", rail.node)
        self.incidents.pay(verdict)

    def _line(self, rail: Rail, peer: str, cause: RailCause, borrowers: tuple[str, ...], at: int) -> bool:
        """Move the state of one line. False: its state does not allow that."""
        line = rail.lines.get(peer) or Line(peer)
        if not RAIL.allows(line.state, cause):
            return False
        was = line.state
        line.state, line.since = RAIL.after(line.state, cause), at
        rail.lines[peer] = line
        if line.state is RailState.UP:
            del rail.lines[peer]
            rail.proved_at = at
            rail.refused = rail.refused and bool(rail.lines)
        if cause is RailCause.LOST:
            line.borrowers = borrowers
            again = was is RailState.PROBING or rail.use is Use.RETURNING
            if again or len(rail.lines) == 1:  # more lines of a lost rail are the same trouble
                rail.worsen(at, again)
        return True

    def _lost(self, rail: Rail, peers: list[str], verdict: RailVerdict, now: int) -> None:
        """Lines are lost. Note which other rails carry for them."""
        carried = f"no other rail is left between {verb(len(peers), 'the two', 'them')}"
        if verdict.borrowers:
            carried = f"{join(verdict.borrowers)} {verb(len(verdict.borrowers), 'carries', 'carry')} for it"
        text = f"{_words(rail)} to {some(peers)} is lost: {verdict.reason}; {carried}"
        self.incidents.concern(rail.name, (rail.node,), text, now)
        self.incidents.note(rail.name, text, rail.node)

    # ---- the use of rails -------------------------------------------------------------------------------------

    def _change(
        self, rails: list[Rail], cause: UseCause, reason: str, returns: bool, operator: bool, when: Moment
    ) -> bool:
        """Begin a change of use. All other changes wait for its end. False: nothing to change, or one is under way."""
        if not rails or self.shuffle is not None:
            return False
        for rail in rails:
            rail.move(cause, when.at, reason)
            rail.returned_at = when.at if returns else rail.returned_at
        nodes = tuple(rail.node for rail in rails)
        name = rails[0].name
        self.orders.give(nodes, f"rail {name}: {reason}", when.now)
        number, ends_at = self.orders.newest, when.at + limits.RAIL_FOLLOW_NS
        self.shuffle = Shuffle(name, nodes, number, when.at, returns, operator, ends_at)
        what = "may carry again" if returns else "carries nothing from now on"
        self.incidents.note(name, f"rail {name} of {join(nodes)} {what}: {reason}")
        return True

    def _progress(self, shuffle: Shuffle, verdict: RailVerdict, when: Moment) -> None:
        """Move the change under way on, or end it."""
        finding, rails = verdict.finding, [self.standing.record(node, shuffle.rail) for node in shuffle.nodes]
        self.incidents.pay(verdict)
        if finding is RailFinding.FOLLOWED and shuffle.returns:
            shuffle.followed, shuffle.ends_at = True, when.at + limits.RAIL_IDLE_NS
            return
        if finding is RailFinding.VERIFIED:
            for rail in rails:
                rail.refused = False
                rail.move(UseCause.VERIFIED, when.at, "")
            self.incidents.phase(shuffle.rail, "", "verify", when.now)
        elif finding is RailFinding.ROLL_BACK or (finding is RailFinding.REFUSED and shuffle.returns):
            self._roll_back(shuffle, rails, verdict, when)
        elif finding is RailFinding.REFUSED:
            for rail in rails:
                rail.refused = True
                if rail.use in RESTING:
                    rail.move(UseCause.REFUSED, when.at, verdict.reason)
            self.orders.give(shuffle.nodes, f"rail {shuffle.rail}: {verdict.reason}", when.now)
        elif finding is RailFinding.LATE and shuffle.returns:
            shuffle.followed, shuffle.ends_at = True, when.at + limits.RAIL_IDLE_NS  # the bytes decide
            self.incidents.note(shuffle.rail, verdict.reason)
            return
        undone = finding in (RailFinding.ROLL_BACK, RailFinding.REFUSED)
        outcome = "undone" if undone else "late" if finding is RailFinding.LATE else "done"
        self._end_shuffle(shuffle, outcome, verdict.reason)

    def _roll_back(self, shuffle: Shuffle, rails: list[Rail], verdict: RailVerdict, when: Moment) -> None:
        """Take the rails that were put back out again."""
        refused = verdict.finding is RailFinding.REFUSED
        for rail in rails:
            rail.refused = refused
            rail.worsen(when.at, True)
            rail.move(UseCause.ROLL_BACK, when.at, verdict.reason)
        self.orders.give(shuffle.nodes, f"rail {shuffle.rail}: {verdict.reason}", when.now)
        how = "cannot be put back" if refused else "was put back and does not carry as it should"
        text = f"rail {shuffle.rail} of {join(shuffle.nodes)} {how}: {verdict.reason}"
        self.incidents.concern(shuffle.rail, shuffle.nodes, text, when.now)
        self.incidents.phase(shuffle.rail, "borrow", "verify", when.now)

    def _end_shuffle(self, shuffle: Shuffle, outcome: str, words: str) -> None:
        shuffle.outcome, shuffle.words = outcome, words
        self.incidents.note(
            shuffle.rail, f"rail {shuffle.rail} of {join(shuffle.nodes) if shuffle.nodes else '-'}: {words}"
        )
        self.shuffle, self.last = None, shuffle

    def _rails(self, verdict: RailVerdict) -> list[Rail]:
        """The rails of a verdict, on nodes that are not lost."""
        nodes = self._members.nodes
        here = [node for node in verdict.nodes if node in nodes and nodes[node].state is not NodeState.LOST]
        return [self.standing.record(node, verdict.rail) for node in here]


def _words(rail: Rail) -> str:
    return f"rail {rail.name} of {rail.node}"
