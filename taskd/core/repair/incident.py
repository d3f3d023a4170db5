"""One fault from open to closed, and the ladder that chooses what is done about it.

`decide` is a pure function of what is known: it gives a strategy and the sentence that says why. `Incident` is the
record that people read afterwards. What can go wrong, and what follows:

- *More ranks die while one is repaired*: the same incident grows; the ladder is asked again with all of them.
- *A strategy fails too often*: it is exhausted for this incident and the next rung is taken; EXIT is always there.
- *A script that fails at start on every rank*: one EXIT with the cause, no restart storm.
- *Recovery is somebody else's* (plain torchrun): one OBSERVE incident grows with whatever the launcher ends and closes
  when all of it is back.

Invariants: an incident that is closed stays closed; a strategy that is exhausted is not chosen again in it.
Not here: how a strategy is carried out (recovery).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from taskd.core import limits
from taskd.core.table import Table
from taskd.core.types import Outcome, Strategy
from taskd.core.words import LEFT_EARLY, cut, exit_words, join, milliseconds, rank_words, shell_code, verb


class IncidentState(Enum):
    """Where an incident stands."""

    SETTLING = auto()  # nothing was trained yet: others may be dying of the same cause
    OBSERVING = auto()
    REPAIRING = auto()
    CLOSED = auto()


class IncidentCause(Enum):
    """What moves it."""

    GROWN = auto()
    OBSERVE = auto()
    REPAIR = auto()
    HEALED = auto()
    BACK = auto()  # whoever was dead is back, or all have gone
    EXIT = auto()


_I, _IC = IncidentState, IncidentCause
INCIDENT = Table(
    "incident",
    "One fault, from open to closed.",
    _I.SETTLING,
    [
        (_I.SETTLING, _IC.GROWN, _I.SETTLING),
        (_I.SETTLING, _IC.OBSERVE, _I.OBSERVING),
        (_I.SETTLING, _IC.REPAIR, _I.REPAIRING),
        (_I.OBSERVING, _IC.GROWN, _I.OBSERVING),
        (_I.OBSERVING, _IC.OBSERVE, _I.OBSERVING),
        (_I.OBSERVING, _IC.REPAIR, _I.REPAIRING),
        (_I.REPAIRING, _IC.GROWN, _I.REPAIRING),
        (_I.REPAIRING, _IC.REPAIR, _I.REPAIRING),
        (_I.REPAIRING, _IC.OBSERVE, _I.OBSERVING),
        (_I.REPAIRING, _IC.HEALED, _I.CLOSED),
        ((_I.SETTLING, _I.OBSERVING, _I.REPAIRING), _IC.BACK, _I.CLOSED),
        ((_I.SETTLING, _I.OBSERVING, _I.REPAIRING), _IC.EXIT, _I.CLOSED),
    ],
)


@dataclass(slots=True)
class PhaseTime:
    """How long one phase of an incident took. `ended_at` -1: it is under way."""

    name: str
    began_at: int
    ended_at: int = -1


@dataclass(slots=True, eq=False)
class Incident:
    """The record of one fault. Times are the manager's clock in nanoseconds."""

    id: int
    kind: str
    opened_at: int
    state: IncidentState = IncidentState.SETTLING
    strategy: Strategy = Strategy.OBSERVE
    reason: str = ""
    ranks: set[int] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    phases: list[PhaseTime] = field(default_factory=list)
    restarts: int = 0  # how often all ranks were started over in it
    attempts: int = 0
    tries: dict[Strategy, int] = field(default_factory=dict)
    exhausted: set[Strategy] = field(default_factory=set)
    answered: set[int] = field(default_factory=set)  # whose death a decision has dealt with already
    missing: set[int] = field(default_factory=set)  # OBSERVING: who has not come back
    fallen: dict[int, Loss] = field(default_factory=dict)  # the last death of each rank that died in it
    outcome: Outcome = Outcome.OPEN
    closed_at: int = -1
    notes: list[str] = field(default_factory=list)
    cost: dict[str, int] = field(default_factory=dict)  # of a rail's: what others carried for it
    settles_at: int = -1  # the manager's waking time at which SETTLING ends
    waits_since: int = -1  # its ranks wait for a node with room since then

    def move(self, cause: IncidentCause) -> None:
        """Apply one row of the table."""
        self.state = INCIDENT.after(self.state, cause)

    def restart_clocks(self, at: int) -> None:
        """The manager was away: what it waits for is waited for anew."""
        self.settles_at = at + limits.SETTLE_NS if self.settles_at >= 0 else -1
        self.waits_since = at if self.waits_since >= 0 else -1

    def worn_out(self, strategy: Strategy, last: bool) -> bool:
        """It has had all its tries, or has failed and would spend the `last` start that a rank has left: with that one
        all begin anew, which is the dearest repair and the surest."""
        tries = self.tries.get(strategy, 0)
        return tries >= limits.MAX_ATTEMPTS or (last and tries > 0 and strategy is not Strategy.RESPAWN)

    @property
    def good_end(self) -> Outcome:
        """What it is when training goes on."""
        return Outcome.STARTED_OVER if self.restarts else Outcome.HEALED

    def answers(self, lost: set[int]) -> bool:
        """A decision deals with these deaths. True: some of them are new, and so the attempt before did not fail."""
        new = bool(lost - self.answered) and self.attempts > 0
        self.answered |= lost
        return new

    def follow(self, decision: Decision) -> None:
        """This is what is done about it from now on."""
        self.strategy, self.reason = decision.strategy, decision.reason

    def detected(self, age_ns: int, now: int) -> None:
        """It began so long before it was seen; 0: that is not known."""
        if age_ns:
            self.phases.append(PhaseTime("detect", now - age_ns, now))

    def concern(self, text: str, ranks: Iterable[int], nodes: Iterable[str]) -> None:
        """Something has happened that belongs to it, to these ranks on these nodes."""
        self.ranks.update(ranks)
        self.nodes.update(nodes)
        self.note(text)

    def forgive(self) -> None:
        """What failed in it says nothing any more: it was led on by somebody who remembers more."""
        self.tries.clear()
        self.exhausted.clear()

    def note(self, text: str) -> None:
        """One more sentence of its story."""
        if len(self.notes) < limits.MAX_INCIDENT_NOTES:
            self.notes.append(text)

    def begin(self, phase: str, now: int) -> None:
        """A phase begins. The same phase of a later attempt is a line of its own."""
        if len(self.phases) < limits.MAX_INCIDENT_NOTES:
            self.phases.append(PhaseTime(phase, now))

    def end(self, phase: str, now: int) -> None:
        """A phase ends, if it is under way."""
        for time in reversed(self.phases):
            if time.name == phase and time.ended_at < 0:
                time.ended_at = now
                return

    def end_all(self, now: int) -> None:
        """Whatever is under way ends: another attempt begins, or the incident closes."""
        for time in self.phases:
            if time.ended_at < 0:
                time.ended_at = now

    def close(self, cause: IncidentCause, outcome: Outcome, now: int) -> None:
        """The end of the story."""
        self.move(cause)
        self.end_all(now)
        self.outcome, self.closed_at = outcome, now

    def facts(self, now: int) -> dict[str, object]:
        """For people and programs, ready for JSON."""
        return {
            "id": self.id,
            "kind": self.kind,
            "state": self.state.name.lower(),
            "strategy": self.strategy.value,
            "reason": self.reason,
            "ranks": sorted(self.ranks),
            "nodes": sorted(self.nodes),
            "opened_at_ns": self.opened_at,
            "closed_at_ns": self.closed_at if self.closed_at >= 0 else None,
            "duration_ms": milliseconds((self.closed_at if self.closed_at >= 0 else now) - self.opened_at),
            "phases": [
                {"name": time.name, "ms": milliseconds((time.ended_at if time.ended_at >= 0 else now) - time.began_at)}
                for time in self.phases
            ],
            "attempts": self.attempts,
            "outcome": self.outcome.value,
            "cost": dict(self.cost),
            "notes": list(self.notes),
        }


# ---- the ladder -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loss:
    """One dead rank, as the ladder sees it."""

    rank: int
    node: str
    exit_code: int
    reason: str
    restarts: int
    home: bool  # its node's agent lives and can start it again
    watched_only: bool  # its node's agent lives (or was) a side process, which starts nothing
    finished: bool  # its work was done: nothing is lost with it

    @property
    def left(self) -> bool:
        """It has left by itself, inside a step: the others may be about to do the same."""
        return self.reason.startswith(LEFT_EARLY)

    @property
    def words(self) -> str:
        """How it died, in brackets."""
        if not self.exit_code:
            return self.reason or "no exit code"
        return exit_words(self.exit_code) + (f": {cut(self.reason, _MOST_REASON)}" if self.reason else "")


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that the ladder looks at."""

    losses: tuple[Loss, ...]
    trouble: str  # what else went wrong, when nobody died
    world_size: int
    left: tuple[int, ...]  # ranks that have ended in good order
    recover: bool
    allowed: frozenset[Strategy]
    exhausted: frozenset[Strategy]
    max_restarts: int
    trained: bool
    state_lost: bool  # survivors were asked: none of them holds a whole state
    repairing: bool  # ranks are parked for a repair: it has to come to an end
    all_start: bool  # every rank's node can start workers, or its rank can be placed elsewhere
    fallen: tuple[Loss, ...] = ()  # who died in this incident, in time, those that were started again included


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done, and why."""

    strategy: Strategy
    reason: str
    exit_code: int = 0


_MOST_REASON = 200
ALL_AGAIN = ", so all start again: respawn"
REPAIRS = frozenset({Strategy.IN_PLACE, Strategy.RESPAWN, Strategy.RECOVER})


def decide(now: Situation) -> Decision:
    """The cheapest rung that can mend this situation."""
    what = describe(now.losses) if now.losses else now.trouble
    if now.left and now.fallen and not now.losses:
        what = f"{describe(now.fallen)}, and {now.trouble}"
    if not now.recover or not now.allowed & REPAIRS:
        return Decision(Strategy.OBSERVE, f"{what}; recovery is off in this job: observe")
    if now.losses and not now.repairing and all(loss.finished for loss in now.losses):
        return Decision(
            Strategy.OBSERVE, f"{what} when {_its(now)} work was done, so nothing is lost or to be repaired: observe"
        )
    if now.losses and not now.repairing and all(loss.watched_only for loss in now.losses):
        return Decision(Strategy.OBSERVE, f"{what}, whose launcher is not ours to start it again: observe")
    impossible = _impossible(now)
    if impossible:
        return Decision(Strategy.EXIT, f"{what}; {impossible}: exit", exit_code_of(now.losses or now.fallen))
    return _climb(now, what)


def describe(losses: tuple[Loss, ...]) -> str:
    """`rank 2 died (SIGKILL) on node a`."""
    assert losses
    first = losses[0]
    same = {(loss.words, loss.node) for loss in losses}
    ranks = rank_words(loss.rank for loss in losses)
    if len(same) == 1:
        return f"{ranks} died ({first.words}) on node {first.node}"
    if len({loss.words for loss in losses}) == 1:
        return f"{ranks} died ({first.words}) on nodes {join(sorted({loss.node for loss in losses}))}"
    each = [f"rank {loss.rank} ({loss.words}) on node {loss.node}" for loss in losses[:4]]
    if len(losses) > 4:
        each.append(f"{len(losses) - 4} more")
    return f"{join(each)} died"


def _impossible(now: Situation) -> str:
    """Why no repair can help; empty: one may."""
    if now.left:
        has = verb(len(now.left), "has", "have")
        return f"{rank_words(now.left)} {has} left with exit code 0 before and can repair nothing"
    own = all(loss.exit_code > 0 for loss in now.losses)
    if now.losses and len(now.losses) == now.world_size and own and not now.trained:
        return "every rank failed in its set-up, so starting again would not help"
    spent = [loss for loss in now.losses if loss.restarts >= now.max_restarts]
    if spent:
        times = spent[0].restarts
        return (
            f"{rank_words(loss.rank for loss in spent)} {verb(len(spent), 'was', 'were')} started again "
            f"{times} {verb(times, 'time', 'times')}, which is the limit"
        )
    return ""


def exit_code_of(losses: tuple[Loss, ...]) -> int:
    """The job's exit code after these losses, in time: that of the first one whose work was not done."""
    first = next((loss for loss in losses if not loss.finished), losses[0] if losses else None)
    return shell_code(first.exit_code) if first is not None else 1


def _climb(now: Situation, what: str) -> Decision:
    """The rungs, from cheap to dear."""
    open_rungs = now.allowed - now.exhausted
    everybody = len(now.losses) == now.world_size
    respawn = Strategy.RESPAWN in open_rungs and now.all_start
    if respawn and not now.trained:
        return Decision(Strategy.RESPAWN, f"{what} before any step was seen to be done{ALL_AGAIN}")
    if respawn and now.state_lost:
        return Decision(Strategy.RESPAWN, f"{what}{ALL_AGAIN}")
    if respawn and everybody:
        return Decision(Strategy.RESPAWN, f"{what} and nobody holds the state{ALL_AGAIN}")
    if not now.losses and not now.state_lost and Strategy.IN_PLACE in open_rungs:
        return Decision(Strategy.IN_PLACE, f"{what}: recover-in-place")
    if not everybody and not now.state_lost:
        home = all(loss.home for loss in now.losses)
        if Strategy.IN_PLACE in open_rungs and home:
            return Decision(Strategy.IN_PLACE, f"{what}, whose agent can start {_them(now)} again: recover-in-place")
        if respawn and home and Strategy.IN_PLACE in now.exhausted:
            return Decision(Strategy.RESPAWN, f"{what} and repair in place has failed{ALL_AGAIN}")
        if Strategy.RECOVER in open_rungs:
            return Decision(Strategy.RECOVER, f"{what}, {_why_not_home(now, home)}: recover")
    if respawn:
        return Decision(Strategy.RESPAWN, f"{what} and every cheaper repair has failed{ALL_AGAIN}")
    failed = sorted(strategy.value for strategy in now.exhausted)
    why = f"{join(failed)} {verb(len(failed), 'has', 'have')} failed" if failed else "no allowed strategy can repair it"
    if now.losses and now.trouble and now.trouble != what:
        why = f"{now.trouble}, {why}"
    return Decision(Strategy.EXIT, cut(f"{what}; {why}: exit"), exit_code_of(now.losses))


def _why_not_home(now: Situation, home: bool) -> str:
    if not home:
        return f"which cannot start {_them(now)} again"
    return "where it has failed" if Strategy.IN_PLACE in now.exhausted else "in place is not an allowed strategy"


def _its(now: Situation) -> str:
    return verb(len(now.losses), "its", "their")


def _them(now: Situation) -> str:
    return verb(len(now.losses), "it", "them")
