"""The manager's logic: nodes, detector, repairs, rails, operators and proofs behind one `step(now, event) -> effects`.

A beat that changes nothing is not journaled. What can go wrong here, and what follows:

- *The manager sleeps* (a gap between two steps): its waking time stands still meanwhile, so no node looks silent.
- *It restarts*: `replay` brings back what the journal holds. `Restarted` renews the term and all clocks.

Invariants: a replay of `to_journal` makes the same decisions again; a verdict is journaled, so that a replay needs none
of the quiet beats. Not here: what agents say (nodes); bytes, sockets, files, clocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from taskd.core import facts, limits
from taskd.core.counters import Counters
from taskd.core.detector import Detector
from taskd.core.effects import ManagerEffect
from taskd.core.errands.operators import Operators
from taskd.core.events import (
    ConnectionLost,
    ErrandVerdict,
    ErrandWish,
    HangVerdict,
    ManagerEvent,
    PauseVerdict,
    PauseWish,
    ProofVerdict,
    RailVerdict,
    RailWish,
    Reached,
    Restarted,
    Said,
    Tick,
    Verdict,
)
from taskd.core.job import Job
from taskd.core.membership import Membership
from taskd.core.messages import AgentHello, Evidence, PauseAnswers, Report, Stillness
from taskd.core.messages import Proofs as ProofsTold
from taskd.core.nodes import Nodes
from taskd.core.pause import facts as pause_facts
from taskd.core.policy.rules import DEFAULT, Policy
from taskd.core.proof.doubts import Doubts
from taskd.core.proof.proofs import Proofs
from taskd.core.rails import facts as rail_facts
from taskd.core.rails.rails import Rails
from taskd.core.rails.watch import RailWatch
from taskd.core.records import NodeState
from taskd.core.repair.placement import Rules
from taskd.core.repair.repairs import Repairs
from taskd.core.stuck import Stuck
from taskd.core.times import Clocks, Moment
from taskd.core.types import RankState, Strategy
from taskd.core.words import milliseconds

_VERDICTS = RailVerdict | ProofVerdict | HangVerdict | PauseVerdict | ErrandVerdict


class Manager:
    """One job's manager. `world_size` 0: the first agent that knows the size tells it."""

    def __init__(
        self,
        job: str,
        world_size: int,
        node_count: int,
        strategies: frozenset[Strategy],
        recover: bool,
        max_restarts: int,
        term: int = 1,
        spare_wait_ns: int = limits.DEADLINE_SPARE_NS,
        replaces_hung: bool = True,
        policy: Policy = DEFAULT,
    ) -> None:
        self.name = job
        self.node_count = node_count
        self.counters = Counters()
        self._members = Membership(world_size, self.counters)
        self._detector = Detector()
        self._job = Job(self._members, term)
        rules = Rules(strategies, recover, max_restarts, spare_wait_ns, replaces_hung, policy)
        self._repairs = Repairs(self._job, rules)
        self._rails = Rails(self._job)
        self._watch = RailWatch(self._rails, self._members)
        self._proofs = Proofs(self._job, self.counters)
        self._doubts = Doubts(self._job, self._repairs, self._proofs)
        self._operators = Operators(self._job, self._repairs, self._proofs)
        pauses = self._operators.pauses
        self._nodes = Nodes(
            job, self._job, self._detector, self._repairs, self._rails, self._watch, self._proofs, pauses
        )
        self._stuck = Stuck(self._nodes.hangs, self._repairs)
        self._clocks = Clocks()

    # ---- the shell's side -------------------------------------------------------------------------------------

    def step(self, now_ns: int, event: ManagerEvent) -> list[ManagerEffect]:
        """Take one event. Return what is to be done, in order, after `to_journal` has been written down."""
        gap = self._clocks.advance(now_ns)
        now = self._clocks.read(now_ns).now
        self._job.journal.clear()
        effects: list[ManagerEffect] = []
        if gap > limits.SLEPT_NS and not isinstance(event, Restarted):
            slept = Verdict("", RankState.ALIVE, gap, f"the manager slept for {milliseconds(gap)} ms")
            effects += self._found(slept, now)
        self._job.mattered = False
        self._take(event, self._clocks.read(now))
        if self._job.mattered:
            self._job.journal.append(event)
        effects += self._job.take_effects(now)
        witness = isinstance(event, ConnectionLost) or (isinstance(event, Said) and isinstance(event.message, Evidence))
        if isinstance(event, Tick) or (witness and self._job.mattered):
            effects += self._judge(now)
        told = Tick if isinstance(event, Tick) else type(event.message) if isinstance(event, Said) else None
        case, job, stuck, operators = self._repairs.case, self._job, self._stuck, self._operators
        at, repairing = self._clocks.read(now).at, case.attempts.attempt is not None
        if told in (Tick, Report):
            effects += self._judged(lambda: job.over or self._watch.find(at, repairing), self._rails.apply, now)
        if told is ProofsTold:
            effects += self._judged(lambda: job.over or self._proofs.find(), self._doubts.take, now)
        if told in (Tick, Report, Stillness):
            effects += self._judged(lambda: stuck.find(at), stuck.take, now)
        if told in (Tick, Report, AgentHello, PauseAnswers):
            effects += self._judged(lambda: operators.find(now), operators.take, now)
        return effects

    def replay(self, now_ns: int, event: ManagerEvent) -> list[ManagerEffect]:
        """Take one event of the journal again. Silence is not judged here: its verdicts are in the journal."""
        self._clocks.advance(now_ns)
        self._job.journal.clear()
        when = self._clocks.read(now_ns)
        self._take(event, when)
        return self._job.take_effects(when.now)

    def to_journal(self) -> tuple[ManagerEvent, ...]:
        """Return the events of the last step that a replay needs, in order. Empty for a quiet beat."""
        return tuple(self._job.journal)

    def next_deadline(self) -> int | None:
        """Return when `step(Tick())` is to be called at the latest. None: there is no node to watch."""
        if not self._members.nodes and self._repairs.deadline() is None:
            return None
        due = [self._clocks.read(0).now + limits.TICK_NS]
        if self._job.over is not None:
            return due[0]
        for at in (self._detector.next_check(), self._repairs.deadline()):
            if at is not None:
                due.append(self._clocks.now(at))
        return min(due)

    @property
    def term(self) -> int:
        """The number of this life of the job's manager."""
        return self._job.term

    @property
    def world_size(self) -> int:
        """How many ranks the job has; 0 until it is known."""
        return self._members.world_size

    @property
    def epoch(self) -> int:
        """How often the ranks were put together as a group."""
        return self._job.epoch

    def processes(self, host: str) -> set[int]:
        """Return the job's processes on a host, agents and ranks, as far as they are known."""
        here = [node for node in self._members.nodes.values() if node.host == host]
        pids = {node.pid for node in here}
        return (pids | {self._members.ranks[rank].pid for node in here for rank in node.ranks}) - {0}

    def facts(self, now_ns: int, first: int = 0) -> dict[str, Any]:
        """Return the state of the job, ready for JSON: what `taskd status` shows. For a large job it holds a part of
        the ranks and nodes, from the place `first` on, and says where the `next` part begins."""
        at = self._clocks.read(now_ns).at
        job, rails = self._job, self._rails
        found = facts.of_job(self.name, self.node_count, job, self._repairs.case, rails, self.counters, at, first)
        found["incidents"]["known"] += len(self._doubts.history) + len(self._repairs.devices.history)
        return found | {
            "proof": facts.of_proofs(self._proofs, self._doubts.found, at),
            "hang": facts.of_hang(self._nodes.hangs.hang, at),
            "devices": self._repairs.devices.facts(at),
            "pause": pause_facts.of_pause(self._operators.pauses, self._clocks.read(now_ns).now),
            "uncovered": facts.of_uncovered(self._members),
        }

    def incidents(self, now_ns: int) -> list[dict[str, Any]]:
        """Return every incident that is remembered, the oldest first, ready for JSON."""
        case, rails = self._repairs.case, self._rails.incidents.all()
        others = [*self._doubts.history, *self._repairs.devices.history]
        known = filter(None, [*case.history, case.incident, *rails, *others])
        found = sorted(known, key=lambda incident: incident.id)
        return [incident.facts(self._clocks.read(now_ns).now) for incident in found[-limits.MAX_KEPT_INCIDENTS :]]

    def rails(self, now_ns: int) -> dict[str, Any]:
        """Return the state of every rail, ready for JSON: what `taskd rail list` shows."""
        return rail_facts.of_rails(self._rails, self._watch, self._clocks.read(now_ns).at)

    def rail_wish(self, rail: str, node: str, out: bool) -> RailWish | str:
        """Turn an operator's order into an event for `step`, or say why it cannot be. `node` empty: all nodes."""
        return rail_facts.wish(self._rails, self._watch, rail, node, out)

    def pause(self, now_ns: int, request: str = "") -> dict[str, Any]:
        """Return how pause and errand stand and where each rank is, ready for JSON. `request`: of the errand."""
        return self._operators.facts(self._clocks.read(now_ns).now, request)

    def wish(self, now_ns: int, wish: PauseWish | ErrandWish) -> PauseWish | ErrandWish | str | None:
        """Return an operator's wish as an event for `step`, or say why it cannot be. None: it is followed already."""
        return self._operators.wish(wish, self._clocks.read(now_ns).now)

    # ---- events -----------------------------------------------------------------------------------------------

    def _take(self, event: ManagerEvent, when: Moment) -> None:
        if isinstance(event, Said):
            self._nodes.said(event.sender, event.message, when)
        elif isinstance(event, Tick):
            self._job.mattered = self._job.over is None and self._repairs.tick(when)
            self._nodes.tell_of_ends(when)
        elif isinstance(event, ConnectionLost):
            node = self._members.nodes.get(event.node)
            if node is not None and node.state in (NodeState.UP, NodeState.SILENT):
                self._job.mattered = True
                self._detector.connection_lost(node, when.at)
        elif isinstance(event, Verdict):
            self._job.mattered = True
            self._apply(event, when)
        elif isinstance(event, RailVerdict):
            self._job.mattered = True
            self._rails.apply(event, when)
        elif isinstance(event, RailWish):
            self._job.mattered = True
            self._rails.wish(event, when)
        elif isinstance(event, PauseVerdict | PauseWish | ErrandVerdict | ErrandWish):
            self._job.mattered = True
            self._operators.take(event, when)
        elif isinstance(event, ProofVerdict):
            self._job.mattered = True
            self._doubts.take(event, when)
        elif isinstance(event, HangVerdict):
            self._job.mattered = True
            self._stuck.take(event, when)
        elif isinstance(event, Reached):
            self._members.reached = event.steps
        elif isinstance(event, Restarted):
            self._job.mattered = True
            self._proofs.restart()
            self._rails.restarted(when.at)
            self._watch.restart()
            self._operators.pauses.restarted()
            self._job.renew_term(self._job.term + 1)
            self._detector.rebase(when.at)
            self._repairs.restarted(when.at)
            self._nodes.restarted()
            self._job.note("restarted", f"the manager is back and goes on in term {self._job.term}")
        if self._job.over is not None and self._rails.incidents.open:
            self._job.mattered = True
            self._rails.incidents.finish(when.now)

    # ---- verdicts ---------------------------------------------------------------------------------------------

    def _judge(self, now: int) -> list[ManagerEffect]:
        """Judge the silence of nodes. Each verdict is journaled, so that a replay needs none of the quiet beats."""
        effects: list[ManagerEffect] = []
        members, at = self._members, self._clocks.read(now).at
        while self._job.over is None:
            others = members.counts[RankState.ALIVE] > 0
            if (verdict := self._detector.verdict(at, members.progress_at, members.progress_node, others)) is None:
                break
            effects += self._found(verdict, now)
        return effects

    def _judged(self, find: Callable[[], Any], take: Callable[[Any, Moment], None], now: int) -> list[ManagerEffect]:
        """Take verdicts, in the same way, as long as `find` returns one. It may also say that none is wanted."""
        effects: list[ManagerEffect] = []
        while isinstance(verdict := find(), _VERDICTS):
            take(verdict, self._clocks.read(now))
            self._job.journal.append(verdict)  # after the rows that a replay needs before it
            effects += self._job.take_effects(now)
        return effects

    def _found(self, verdict: Verdict, now: int) -> list[ManagerEffect]:
        self._apply(verdict, self._clocks.read(now))
        self._job.journal.append(verdict)
        return self._job.take_effects(now)

    def _apply(self, verdict: Verdict, when: Moment) -> None:
        if verdict.node:
            self._nodes.judged(verdict, when)
        else:
            self._clocks.sleep(verdict.age_ns)
            self._job.note("slept", verdict.reason)
