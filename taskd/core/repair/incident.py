"""One incident: a fault from open to closed, and the record that people read afterwards. Failure modes:

- *More ranks die during a repair*: the same incident grows. The ladder is asked again with all of them.
- *A strategy fails too often*: it is exhausted for this incident, and the ladder takes the next rung.
- *An external launcher recovers the job* (plain torchrun): one OBSERVE incident grows with every rank that the launcher
  ends. It closes when all of these ranks are back.

Invariants: a closed incident stays closed. An exhausted strategy is not chosen again in the same incident.
Not here: which strategy is chosen (ladder), and how it is carried out (attempts).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from taskd.core import limits
from taskd.core.repair.ladder import Decision, Loss
from taskd.core.starts_over import LastCheckpoint, StartsOver
from taskd.core.table import Table
from taskd.core.types import Outcome, Strategy
from taskd.core.words import milliseconds


class IncidentState(Enum):
    """Where an incident stands."""

    SETTLING = auto()  # no decision yet; before any training it waits, since others may be dying of the same cause
    OBSERVING = auto()
    REPAIRING = auto()
    CLOSED = auto()


class IncidentCause(Enum):
    """What changes the state of an incident."""

    GROWN = auto()
    OBSERVE = auto()
    REPAIR = auto()
    HEALED = auto()
    BACK = auto()  # all dead ranks are back, or all ranks have gone
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


_OWN = frozenset({"exception", "refusal"})  # kinds of incidents that begin with a word of the script's own process


@dataclass(slots=True)
class PhaseTime:
    """How long one phase of an incident took. `ended_at` None: the phase is under way."""

    name: str
    began_at: int
    ended_at: int | None = None

    def took_ms(self, now: int) -> int:
        """The duration of the phase, up to now if it is under way."""
        return milliseconds((now if self.ended_at is None else self.ended_at) - self.began_at)


@dataclass(slots=True, eq=False)
class Incident:
    """The record of one fault. Times are the manager's clock in nanoseconds."""

    id: int
    kind: str
    opened_at: int
    state: IncidentState = IncidentState.SETTLING
    strategy: Strategy = Strategy.OBSERVE
    reason: str = ""
    trouble: str = ""  # the last event without a repair yet; the ladder gives it as the cause if no rank died
    state_lost: bool = False  # no survivor holds a whole state that training may continue from
    overtaken: bool = False  # its epoch is over: the repair went further than this manager remembers
    ranks: set[int] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    phases: list[PhaseTime] = field(default_factory=list)
    checkpoint: LastCheckpoint = field(default_factory=LastCheckpoint)
    over: StartsOver = field(default_factory=StartsOver)  # the starts of all ranks in it
    attempts: int = 0
    tries: dict[Strategy, int] = field(default_factory=dict)
    exhausted: set[Strategy] = field(default_factory=set)
    answered: set[int] = field(default_factory=set)  # dead ranks that a decision has dealt with already
    missing: set[int] = field(default_factory=set)  # OBSERVING: ranks that have not come back
    fallen: dict[int, Loss] = field(default_factory=dict)  # the first death of each rank in it
    outcome: Outcome = Outcome.OPEN
    closed_at: int | None = None
    notes: list[str] = field(default_factory=list)
    cost: dict[str, int] = field(default_factory=dict)  # of a rail incident: the traffic of others
    settles_at: int | None = None  # the manager's waking time at which SETTLING ends
    waits_since: int | None = None  # since when its ranks wait for a node with room

    def move(self, cause: IncidentCause) -> None:
        """Apply one row of the table."""
        self.state = INCIDENT.after(self.state, cause)

    def restart_clocks(self, at: int) -> None:
        """The manager was away: its waiting times start again."""
        self.settles_at = None if self.settles_at is None else at + limits.SETTLE_NS
        self.waits_since = None if self.waits_since is None else at

    def settles(self, at: int) -> bool:
        """Whether the wait for more deaths of the same cause is over."""
        return self.settles_at is not None and self.settles_at <= at

    @property
    def is_own(self) -> bool:
        """Whether errors that the script has raised, and what ranks have refused, are its only cause. That uses up
        nobody's restarts."""
        return all(loss.refused for loss in self.fallen.values()) if self.fallen else self.kind in _OWN

    def worn_out(self, strategy: Strategy) -> bool:
        """Whether a strategy has used all its tries."""
        return self.tries.get(strategy, 0) >= limits.MAX_ATTEMPTS

    @property
    def good_end(self) -> Outcome:
        """The outcome when training continues."""
        return Outcome.STARTED_OVER if self.over.times else Outcome.HEALED

    def start_over(self, steps: int, text: str, now: int) -> None:
        """All ranks start over. `steps`: how many steps were done before."""
        self.over.count(steps, self.checkpoint.updates, now, self.is_own)
        self.state_lost, self.checkpoint.updates = False, -1  # what they train from here on is a state again
        self.note(text)

    def answers(self, lost: set[int]) -> bool:
        """A decision deals with these deaths. Return True if some are new: then the previous attempt did not fail."""
        new = bool(lost - self.answered) and self.attempts > 0
        self.answered |= lost
        return new

    def follow(self, decision: Decision) -> None:
        """Take over the strategy and the reason of a decision. A job that is repaired is not stopped any more."""
        self.strategy, self.reason = decision.strategy, decision.reason
        if decision.strategy not in (Strategy.DUMP, Strategy.EXIT):
            self.checkpoint.stops = ""

    def detected(self, age_ns: int, now: int) -> None:
        """The fault began `age_ns` before it was seen. 0: not known."""
        if age_ns:
            self.phases.append(PhaseTime("detect", now - age_ns, now))

    def concern(self, text: str, ranks: Iterable[int], nodes: Iterable[str]) -> None:
        """Add an event to the incident, with its ranks and nodes."""
        self.ranks.update(ranks)
        self.nodes.update(nodes)
        self.note(text)

    def overtake(self) -> None:
        """The repair went further than this manager remembers, so earlier failures in it no longer count."""
        self.state_lost, self.overtaken = False, True
        self.tries.clear()
        self.exhausted.clear()

    def note(self, text: str) -> None:
        """Add one sentence to the notes."""
        if len(self.notes) < limits.MAX_INCIDENT_NOTES:
            self.notes.append(text)

    def begin(self, phase: str, now: int) -> None:
        """A phase begins. The same phase of a later attempt gets its own entry."""
        if len(self.phases) < limits.MAX_INCIDENT_NOTES:
            self.phases.append(PhaseTime(phase, now))

    def end(self, phase: str, now: int) -> None:
        """A phase ends, if it is under way."""
        for time in reversed(self.phases):
            if time.name == phase and time.ended_at is None:
                time.ended_at = now
                return

    def end_all(self, now: int) -> None:
        """End all phases under way: another attempt begins, or the incident closes."""
        for time in self.phases:
            if time.ended_at is None:
                time.ended_at = now

    def close(self, cause: IncidentCause, outcome: Outcome, now: int) -> None:
        """Close the incident with this outcome."""
        self.move(cause)
        self.end_all(now)
        self.outcome, self.closed_at = outcome, now

    @property
    def _steps_lost(self) -> int | None:
        """None: the incident is open, training does not continue, or no step was seen."""
        if self.outcome is Outcome.STARTED_OVER:
            return self.over.steps_lost if self.over.saved else self.over.steps_lost or None
        return 0 if self.outcome is Outcome.HEALED else None

    def facts(self, now: int) -> dict[str, object]:
        """The incident for people and programs, ready for JSON."""
        return {
            "id": self.id,
            "kind": self.kind,
            "state": self.state.name.lower(),
            "strategy": self.strategy.value,
            "reason": self.reason,
            "ranks": sorted(self.ranks),
            "nodes": sorted(self.nodes),
            "opened_at_ns": self.opened_at,
            "closed_at_ns": self.closed_at,
            "duration_ms": milliseconds((now if self.closed_at is None else self.closed_at) - self.opened_at),
            "phases": [{"name": time.name, "ms": time.took_ms(now)} for time in self.phases],
            "attempts": self.attempts,
            "outcome": self.outcome.value,
            "steps_lost": self._steps_lost,
            "last_checkpoint": self.checkpoint.text or None,
            "saved": self.over.saved,
            "cost": dict(self.cost),
            "notes": list(self.notes),
        }
