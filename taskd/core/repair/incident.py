"""One fault from open to closed: the record that people read afterwards. What can go wrong, and what follows:

- *More ranks die while one is repaired*: the same incident grows; the ladder is asked again with all of them.
- *A strategy fails too often*: it is exhausted for this incident, and the ladder takes the next rung.
- *Recovery is somebody else's* (plain torchrun): one OBSERVE incident grows with whatever the launcher ends and closes
  when all of it is back.

Invariants: an incident that is closed stays closed; a strategy that is exhausted is not chosen again in it.
Not here: which strategy is chosen (ladder), and how it is carried out (attempts).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from taskd.core import limits
from taskd.core.repair.ladder import Decision, Loss
from taskd.core.table import Table
from taskd.core.types import Outcome, Strategy
from taskd.core.words import milliseconds


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
    """How long one phase of an incident took. `ended_at` None: it is under way."""

    name: str
    began_at: int
    ended_at: int | None = None

    def took_ms(self, now: int) -> int:
        """So long, or so long by now."""
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
    trouble: str = ""  # what happened last and no repair has begun for; the ladder says it where nobody died
    state_lost: bool = False  # no survivor holds a whole state, or none that may be gone on with
    overtaken: bool = False  # it is of an epoch that is over: somebody led it on and was forgotten
    ranks: set[int] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    phases: list[PhaseTime] = field(default_factory=list)
    restarts: int = 0  # how often all ranks were started over in it
    steps_lost: int = 0  # that were seen to be done by then
    attempts: int = 0
    tries: dict[Strategy, int] = field(default_factory=dict)
    exhausted: set[Strategy] = field(default_factory=set)
    answered: set[int] = field(default_factory=set)  # whose death a decision has dealt with already
    missing: set[int] = field(default_factory=set)  # OBSERVING: who has not come back
    fallen: dict[int, Loss] = field(default_factory=dict)  # the last death of each rank that died in it
    outcome: Outcome = Outcome.OPEN
    closed_at: int | None = None
    notes: list[str] = field(default_factory=list)
    cost: dict[str, int] = field(default_factory=dict)  # of a rail's: what others carried for it
    settles_at: int | None = None  # the manager's waking time at which SETTLING ends
    waits_since: int | None = None  # its ranks wait for a node with room since then

    def move(self, cause: IncidentCause) -> None:
        """Apply one row of the table."""
        self.state = INCIDENT.after(self.state, cause)

    def restart_clocks(self, at: int) -> None:
        """The manager was away: what it waits for is waited for anew."""
        self.settles_at = None if self.settles_at is None else at + limits.SETTLE_NS
        self.waits_since = None if self.waits_since is None else at

    def settles(self, at: int) -> bool:
        """Those who may be dying of the same cause have had their time."""
        return self.settles_at is not None and self.settles_at <= at

    def worn_out(self, strategy: Strategy, last: bool) -> bool:
        """It has had all its tries, or has failed and would spend the `last` start that a rank has left: with that one
        all begin anew, which is the dearest repair and the surest."""
        tries = self.tries.get(strategy, 0)
        return tries >= limits.MAX_ATTEMPTS or (last and tries > 0 and strategy is not Strategy.RESPAWN)

    @property
    def good_end(self) -> Outcome:
        """What it is when training goes on."""
        return Outcome.STARTED_OVER if self.restarts else Outcome.HEALED

    def start_over(self, steps: int, text: str) -> None:
        """All ranks begin anew, and so many steps were done."""
        self.restarts += 1
        self.steps_lost += steps
        self.note(text)

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

    def overtake(self) -> None:
        """It was led on by somebody who remembers more: what failed in it says nothing any more."""
        self.state_lost, self.overtaken = False, True
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
            if time.name == phase and time.ended_at is None:
                time.ended_at = now
                return

    def end_all(self, now: int) -> None:
        """Whatever is under way ends: another attempt begins, or the incident closes."""
        for time in self.phases:
            if time.ended_at is None:
                time.ended_at = now

    def close(self, cause: IncidentCause, outcome: Outcome, now: int) -> None:
        """The end of the story."""
        self.move(cause)
        self.end_all(now)
        self.outcome, self.closed_at = outcome, now

    @property
    def _steps_lost(self) -> int | None:
        """None: it has not ended yet, nothing goes on, or nobody has seen a step."""
        if self.outcome is Outcome.STARTED_OVER:
            return self.steps_lost or None
        return 0 if self.outcome is Outcome.HEALED else None

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
            "closed_at_ns": self.closed_at,
            "duration_ms": milliseconds((now if self.closed_at is None else self.closed_at) - self.opened_at),
            "phases": [{"name": time.name, "ms": time.took_ms(now)} for time in self.phases],
            "attempts": self.attempts,
            "outcome": self.outcome.value,
            "steps_lost": self._steps_lost,
            "cost": dict(self.cost),
            "notes": list(self.notes),
        }
