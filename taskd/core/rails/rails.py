"""Rails decided: which lines are lost, which rails are lent and come back, and what operators want of them.

The transport heals in milliseconds; here stands what lasts. Every change is a verdict (watch finds it, the journal
keeps it) or an operator's wish, so that a replay needs no report. What can go wrong, and what follows:

- *A rail flaps*: it stays lent until K probes and a quiet time have passed, which doubles each time, up to a bound.
- *It is put back and carries nothing*, not for every pair of ranks, or is lost again: it is lent again (rolled back).
- *Orders are lost, ranks start later*: an order says how all rails of a node shall stand, and is repeated.
- *A rank cannot follow* (its backend has no rails to choose, or reports success and moves nothing): the change is
  undone, with the rank's own sentence; what could not be put back is lent, and tried again after its back-off.
- *A lost rail is never seen again*: its lines are forgotten, and its incident says so when it closes.
- *A node goes*: its lines go too, whoever waited for it goes on.
- *The journal is lost*: an agent holds an order that this manager never gave: the next number says what holds now.

Invariants: one change of use at a time; numbers of orders only grow; no order of this machine's own takes the last
rail between two nodes; an incident is open exactly as long as a rail is lost or lent. Not here: reports (watch),
proof (verification).
"""

from __future__ import annotations

from collections import deque

from taskd.core import limits
from taskd.core.events import RailVerdict, RailWish
from taskd.core.job import Job
from taskd.core.messages import RailOrder
from taskd.core.rails.records import CARRIES, RAIL, RESTING, Line, Rail, RailCause, Shuffle, Trouble, Use, UseCause
from taskd.core.records import NodeState
from taskd.core.repair.incident import Incident, IncidentCause
from taskd.core.times import Moment, long_ago
from taskd.core.types import Outcome, RailFinding, RailState, Strategy
from taskd.core.words import cut, join, milliseconds, some, verb

_CAUSE = {
    RailFinding.SILENT: RailCause.SILENT,
    RailFinding.ANSWERED: RailCause.ANSWERED,
    RailFinding.LOST: RailCause.LOST,
    RailFinding.CONNECTED: RailCause.CONNECTED,
    RailFinding.PROVED: RailCause.PROVED,
}


class Rails:
    """Every rail of the job that is not simply in use, the change under way, and the rail incidents."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.known: dict[tuple[str, str], Rail] = {}  # by node and name
        self.troubles: dict[str, Trouble] = {}  # by name of the rail
        self.history: deque[Incident] = deque(maxlen=limits.MAX_KEPT_INCIDENTS - 1)
        self.shuffle: Shuffle | None = None
        self.last: Shuffle | None = None  # the change that ended last, for the operator who waits for it
        self.number = 0  # of the newest order
        self.numbers: dict[str, int] = {}  # of each node's order in force
        self._told_at: dict[str, int] = {}

    # ---- what others look at ----------------------------------------------------------------------------------

    def state(self, node: str, name: str, peer: str) -> RailState:
        """How a line stands, as decided."""
        rail = self.known.get((node, name))
        line = rail.lines.get(peer) if rail is not None else None
        return RailState.UP if line is None else line.state

    def use(self, node: str, name: str) -> Use:
        """Whether a rail carries traffic, as decided."""
        rail = self.known.get((node, name))
        return Use.IN_USE if rail is None else rail.use

    def out(self, node: str) -> tuple[str, ...]:
        """The rails of a node that are ordered to carry nothing."""
        return tuple(
            sorted(name for (where, name), rail in self.known.items() if where == node and rail.use in RESTING)
        )

    def incidents(self) -> list[Incident]:
        """Those of rails, the closed ones first."""
        return [*self.history, *(trouble.incident for trouble in self.troubles.values())]

    # ---- verdicts and wishes ----------------------------------------------------------------------------------

    def take(self, event: RailVerdict | RailWish, when: Moment) -> None:
        """What the journal has of rails."""
        if isinstance(event, RailWish):
            self.wish(event, when)
        else:
            self.apply(event, when)

    def apply(self, verdict: RailVerdict, when: Moment) -> None:
        """Do what a verdict says; one that no longer fits (its node has gone) changes nothing."""
        if verdict.finding in _CAUSE or verdict.finding is RailFinding.GONE:
            self._lines(verdict, when)
        elif verdict.finding is RailFinding.LEND:
            rails = [rail for rail in self._rails(verdict) if rail.use is Use.IN_USE]
            if self._change(rails, UseCause.LEND, verdict.reason, False, False, when):
                self._phase(verdict.rail, "borrow", "", when.now)
        elif verdict.finding is RailFinding.RETURN:
            rails = [rail for rail in self._rails(verdict) if rail.use is Use.LENT]
            if self._change(rails, UseCause.RETURN, verdict.reason, True, False, when):
                self._phase(verdict.rail, "verify", "borrow", when.now)
        elif self.shuffle is not None and self.shuffle.rail == verdict.rail:
            self._progress(self.shuffle, verdict, when)
        self._close(when.now, verdict.rail)

    def wish(self, wish: RailWish, when: Moment) -> None:
        """An operator's order, with which `facts.wish` found nothing wrong."""
        if self.shuffle is not None:
            return
        cause = UseCause.TAKE_OUT if wish.out else UseCause.PUT_BACK
        wanted = (Use.IN_USE, Use.LENT) if wish.out else (Use.OUT,)
        rails = [rail for node in wish.nodes if (rail := self._rail(node, wish.rail)).use in wanted]
        reason = "an operator took it out" if wish.out else "an operator put it back"
        self._change(rails, cause, reason, not wish.out, True, when)
        self._close(when.now, wish.rail)

    def forget(self, node: str, now: int) -> None:
        """A node is gone, and every line from it and to it."""
        for key in [key for key in self.known if key[0] == node]:
            del self.known[key]
        for rail in self.known.values():
            rail.lines.pop(node, None)
        self.numbers.pop(node, None)
        self._told_at.pop(node, None)
        shuffle = self.shuffle
        if shuffle is not None and node in shuffle.nodes:
            shuffle.nodes = tuple(other for other in shuffle.nodes if other != node)
            if not shuffle.nodes:
                self._end_shuffle(shuffle, "undone", f"node {node} is gone")
        for name in list(self.troubles):
            self._close(now, name)

    def restarted(self, at: int) -> None:
        """The manager was away: nothing is known of what was reported meanwhile, so all clocks start anew."""
        for rail in self.known.values():
            rail.since = at if rail.use in RESTING else rail.since
            rail.proved_at = at
            for line in rail.lines.values():
                line.since = at
        if self.shuffle is not None:
            self.shuffle.ends_at = at + limits.RAIL_FOLLOW_NS
            self.shuffle.followed = False
        self._told_at.clear()

    # ---- lines ------------------------------------------------------------------------------------------------

    def _lines(self, verdict: RailVerdict, when: Moment) -> None:
        """Lines of one rail move. Those that are UP are not kept."""
        rail = self._rail(verdict.nodes[0], verdict.rail)
        if verdict.finding is RailFinding.GONE:
            gone = [peer for peer in verdict.peers if rail.lines.pop(peer, None) is not None]
            if gone:
                self._tell_of(rail.name, "rail", f"{_words(rail)} to {some(gone)}: {verdict.reason}", rail.node)
            if verdict.rail in self.troubles:
                self.troubles[verdict.rail].end = "what was lost of it is not used any more"
            return
        cause = _CAUSE[verdict.finding]
        moved = [peer for peer in verdict.peers if self._line(rail, peer, cause, verdict.borrowers, when.at)]
        if not moved:
            return
        if cause is RailCause.LOST:
            self._lost(rail, moved, verdict, when.now)
        elif cause in (RailCause.CONNECTED, RailCause.PROVED):
            if rail.name in self.troubles:
                self.troubles[rail.name].end = CARRIES
            self._tell_of(rail.name, "rail", f"{_words(rail)} to {some(moved)}: {verdict.reason}", rail.node)
        self._pay(verdict)

    def _line(self, rail: Rail, peer: str, cause: RailCause, borrowers: tuple[str, ...], at: int) -> bool:
        """One line moves; False: it cannot, as it stands."""
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
            if again or len(rail.lines) == 1:  # another line of a rail that is lost already is the same trouble
                rail.worsen(at, again)
        return True

    def _lost(self, rail: Rail, peers: list[str], verdict: RailVerdict, now: int) -> None:
        """It is lost, and somebody else carries for it."""
        carried = f"no other rail is left between {verb(len(peers), 'the two', 'them')}"
        if verdict.borrowers:
            carried = f"{join(verdict.borrowers)} {verb(len(verdict.borrowers), 'carries', 'carry')} for it"
        text = f"{_words(rail)} to {some(peers)} is lost: {verdict.reason}; {carried}"
        self._concern(rail.name, (rail.node,), text, now)
        self._tell_of(rail.name, "rail", text, rail.node)

    # ---- the use of rails -------------------------------------------------------------------------------------

    def _change(
        self, rails: list[Rail], cause: UseCause, reason: str, returns: bool, operator: bool, when: Moment
    ) -> bool:
        """Begin a change of use: all other changes wait for its end. False: there is nothing to change, or not now."""
        if not rails or self.shuffle is not None:
            return False
        for rail in rails:
            rail.move(cause, when.at, reason)
            rail.returned_at = when.at if returns else rail.returned_at
        nodes = tuple(rail.node for rail in rails)
        name = rails[0].name
        self._order(nodes, f"rail {name}: {reason}", when.now)
        self.shuffle = Shuffle(name, nodes, self.number, when.at, returns, operator, when.at + limits.RAIL_FOLLOW_NS)
        what = "may carry again" if returns else "carries nothing from now on"
        self._tell_of(name, "rail", f"rail {name} of {join(nodes)} {what}: {reason}")
        return True

    def _progress(self, shuffle: Shuffle, verdict: RailVerdict, when: Moment) -> None:
        """The change under way goes on, or ends."""
        finding, rails = verdict.finding, [self._rail(node, shuffle.rail) for node in shuffle.nodes]
        self._pay(verdict)
        if finding is RailFinding.FOLLOWED and shuffle.returns:
            shuffle.followed, shuffle.ends_at = True, when.at + limits.RAIL_IDLE_NS
            return
        if finding is RailFinding.VERIFIED:
            for rail in rails:
                rail.refused = False
                rail.move(UseCause.VERIFIED, when.at, "")
            self._phase(shuffle.rail, "", "verify", when.now)
        elif finding is RailFinding.ROLL_BACK or (finding is RailFinding.REFUSED and shuffle.returns):
            self._roll_back(shuffle, rails, verdict, when)
        elif finding is RailFinding.REFUSED:
            for rail in rails:
                rail.refused = True
                if rail.use in RESTING:
                    rail.move(UseCause.REFUSED, when.at, verdict.reason)
            self._order(shuffle.nodes, f"rail {shuffle.rail}: {verdict.reason}", when.now)
        elif finding is RailFinding.LATE and shuffle.returns:
            shuffle.followed, shuffle.ends_at = True, when.at + limits.RAIL_IDLE_NS  # bytes will tell
            self._tell_of(shuffle.rail, "rail", verdict.reason)
            return
        undone = finding in (RailFinding.ROLL_BACK, RailFinding.REFUSED)
        outcome = "undone" if undone else "late" if finding is RailFinding.LATE else "done"
        self._end_shuffle(shuffle, outcome, verdict.reason)

    def _roll_back(self, shuffle: Shuffle, rails: list[Rail], verdict: RailVerdict, when: Moment) -> None:
        """What was put back goes out again."""
        refused = verdict.finding is RailFinding.REFUSED
        for rail in rails:
            rail.refused = refused
            rail.worsen(when.at, True)
            rail.move(UseCause.ROLL_BACK, when.at, verdict.reason)
        self._order(shuffle.nodes, f"rail {shuffle.rail}: {verdict.reason}", when.now)
        how = "cannot be put back" if refused else "was put back and does not carry as it should"
        text = f"rail {shuffle.rail} of {join(shuffle.nodes)} {how}: {verdict.reason}"
        self._concern(shuffle.rail, shuffle.nodes, text, when.now)
        self._phase(shuffle.rail, "borrow", "verify", when.now)

    def _end_shuffle(self, shuffle: Shuffle, outcome: str, words: str) -> None:
        shuffle.outcome, shuffle.words = outcome, words
        self._tell_of(
            shuffle.rail, "rail", f"rail {shuffle.rail} of {join(shuffle.nodes) if shuffle.nodes else '-'}: {words}"
        )
        self.shuffle, self.last = None, shuffle

    # ---- orders -----------------------------------------------------------------------------------------------

    def _order(self, nodes: tuple[str, ...], reason: str, now: int) -> None:
        self.number += 1
        for node in nodes:
            self.numbers[node] = self.number
            self._tell(node, cut(reason), now)

    def _tell(self, node: str, reason: str, now: int) -> None:
        self._told_at[node] = now
        self.job.tell(node, RailOrder(self.job.term, self.numbers[node], self.out(node), reason))

    def remind(self, node: str, holds: int, now: int) -> bool:
        """A node's agent holds the order of this number. Says the newest again where that is another; True: it did."""
        number = self.numbers.get(node, 0)
        if holds == number or self.job.over is not None:
            return False
        if holds - number > limits.MAX_LEAP:
            self.job.members.counters.count("leap of a rail order")
            return False
        if holds > number:
            self.number = max(self.number, holds)
            text = f"node {node} holds rail order {holds} of the past: it is told what holds now"
            self.job.note("rail", text, node=node)
            self._order((node,), "as the manager knows the rails", now)
            return True
        if not long_ago(self._told_at.get(node), now, limits.ORDER_REPEAT_NS):
            return False
        self._tell(node, "as before", now)
        return True

    # ---- incidents --------------------------------------------------------------------------------------------

    def _concern(self, name: str, nodes: tuple[str, ...], text: str, now: int) -> None:
        """Open the incident of this rail, or let it grow."""
        trouble = self.troubles.get(name)
        if trouble is None and len(self.troubles) < limits.MAX_OPEN_INCIDENTS - 1:
            incident = Incident(self.job.next_incident(), "rail", now, strategy=Strategy.BORROW, reason=cut(text))
            incident.move(IncidentCause.REPAIR)
            trouble = self.troubles[name] = Trouble(incident)
        if trouble is not None:
            trouble.incident.concern(cut(text), (), nodes)

    def _pay(self, verdict: RailVerdict) -> None:
        trouble = self.troubles.get(verdict.rail)
        if trouble is not None:
            trouble.borrowed += verdict.borrowed
            trouble.hedged += verdict.hedged
            trouble.retransmitted += verdict.retransmitted

    def _phase(self, name: str, begins: str, ends: str, now: int) -> None:
        trouble = self.troubles.get(name)
        if trouble is not None and ends:
            trouble.incident.end(ends, now)
        if trouble is not None and begins:
            trouble.incident.begin(begins, now)

    def _close(self, now: int, name: str) -> None:
        """Close the incident of a rail that is lost and lent nowhere any more."""
        if name not in self.troubles:
            return
        known = [rail for rail in self.known.values() if rail.name == name]
        if any(rail.use in (Use.LENT, Use.RETURNING) or rail.is_lost for rail in known):
            return
        resting = [rail.node for rail in known if rail.use is Use.OUT]
        end = f"it stays out of use on {join(resting)}, by an operator" if resting else self.troubles[name].end
        self._end(name, IncidentCause.HEALED, Outcome.HEALED, end, now)

    def finish(self, now: int) -> None:
        """The job is over: what is open stays as it is."""
        for name in list(self.troubles):
            self._end(name, IncidentCause.BACK, Outcome.OBSERVED, "the job is over", now)

    def _end(self, name: str, cause: IncidentCause, outcome: Outcome, why: str, now: int) -> None:
        trouble = self.troubles.pop(name)
        incident = trouble.incident
        incident.close(cause, outcome, now)
        incident.cost = {
            "borrowed_bytes": trouble.borrowed,
            "hedged_frames": trouble.hedged,
            "retransmitted_frames": trouble.retransmitted,
        }
        took = milliseconds(now - incident.opened_at)
        text = f"incident {incident.id} is {outcome.value} after {took} ms: {why}; others sent {trouble.borrowed} bytes"
        incident.note(text)
        self.job.note("closed", text, incident=incident.id)
        self.history.append(incident)

    # ---- records ----------------------------------------------------------------------------------------------

    def _rail(self, node: str, name: str) -> Rail:
        return self.known.setdefault((node, name), Rail(node, name))

    def _rails(self, verdict: RailVerdict) -> list[Rail]:
        nodes = self.job.members.nodes
        here = [node for node in verdict.nodes if node in nodes and nodes[node].state is not NodeState.LOST]
        return [self._rail(node, verdict.rail) for node in here]

    def _tell_of(self, name: str, kind: str, text: str, node: str = "") -> None:
        trouble = self.troubles.get(name)
        self.job.note(kind, text, node=node, incident=0 if trouble is None else trouble.incident.id)


def _words(rail: Rail) -> str:
    return f"rail {rail.name} of {rail.node}"
