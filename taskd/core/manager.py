"""The manager's brain: composes membership, detector and repairs behind one `step(now, event) -> effects`.

A beat that changes nothing costs one comparison per rank, gives no effect and is not journaled. What can go wrong here,
and what follows:

- *The manager sleeps* (a gap between two steps): its waking time stands still meanwhile, so nobody looks silent.
- *It restarts*: `replay` brings back what the journal holds, `Restarted` renews the term and all clocks.
- *Its journal is lost*: agents that know a newer term or epoch teach it; both only grow.
- *Strangers*: other jobs' agents, former lives, unknown nodes, repeated messages change nothing and are counted.

Invariants: nothing from outside raises; an order goes to a node at most once per ORDER_REPEAT_NS unless it is new; when
the job is over, the only word left is Stop. Not here: bytes, sockets, files, clocks.
"""

from __future__ import annotations

from typing import Any

from taskd.core import facts, limits
from taskd.core.collectives import FailedCollectives, LateCollectives
from taskd.core.counters import Counters
from taskd.core.detector import Detector
from taskd.core.effects import ManagerEffect
from taskd.core.events import (
    ConnectionLost,
    ManagerEvent,
    ProofVerdict,
    RailVerdict,
    RailWish,
    Restarted,
    Said,
    Sender,
    Tick,
    Verdict,
)
from taskd.core.filing import act_on, learn, lose_ranks, stranger
from taskd.core.job import Job
from taskd.core.membership import Filed, Membership
from taskd.core.messages import AgentHello, Answer, Evidence, Goodbye, Report
from taskd.core.messages import Proofs as ProofsTold
from taskd.core.proof.doubts import Doubts
from taskd.core.proof.proofs import Proofs
from taskd.core.rails import facts as rail_facts
from taskd.core.rails.rails import Rails
from taskd.core.rails.watch import RailWatch
from taskd.core.records import NodeCause, NodeRecord, NodeState
from taskd.core.repair.placement import Rules
from taskd.core.repair.repairs import Repairs
from taskd.core.types import EvidenceKind, RankState, Strategy
from taskd.core.words import cut, milliseconds, rank_words


class Manager:
    """One job's manager. `world_size` 0: the first agent that knows it tells."""

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
    ) -> None:
        self.name = job
        self.node_count = node_count
        self.counters = Counters()
        self._members = Membership(world_size, self.counters)
        self._detector = Detector()
        self._job = Job(self._members, term)
        self._repairs = Repairs(self._job, Rules(strategies, recover, max_restarts, spare_wait_ns))
        self._rails = Rails(self._job)
        self._watch = RailWatch(self._rails, self._members)
        self._late = LateCollectives(self._job)
        self._failed = FailedCollectives(self._job)
        self._proofs = Proofs(self._job, self.counters)
        self._doubts = Doubts(self._job, self._repairs, self._proofs)
        self._now = -1  # the shell's clock at the last step
        self._slept = 0  # how much of it this manager has slept through
        self._journal: list[ManagerEvent] = []
        self._mattered = False
        self._strangers: dict[str, int] = {}  # when an unknown node was last asked to introduce itself

    # ---- the shell's side -------------------------------------------------------------------------------------

    def step(self, now_ns: int, event: ManagerEvent) -> list[ManagerEffect]:
        """Take one event; gives what is to be done, in order, after `to_journal` has been written down."""
        now = max(now_ns, self._now)
        gap = now - self._now if self._now >= 0 else 0
        self._now = now
        self._journal.clear()
        effects: list[ManagerEffect] = []
        if gap > limits.SLEPT_NS and not isinstance(event, Restarted):
            slept = Verdict("", RankState.ALIVE, gap, f"the manager slept for {milliseconds(gap)} ms")
            effects += self._found(slept, now)
        self._mattered = False
        self._take(event, now, now - self._slept)
        if self._mattered:
            self._journal.append(event)
        effects += self._job.take_effects(now)
        witness = isinstance(event, ConnectionLost) or (isinstance(event, Said) and isinstance(event.message, Evidence))
        if isinstance(event, Tick) or (witness and self._mattered):
            effects += self._judge(now)
        if isinstance(event, Tick) or (isinstance(event, Said) and isinstance(event.message, Report)):
            effects += self._judge_rails(now)
        if isinstance(event, Said) and isinstance(event.message, ProofsTold):
            effects += self._judge_proofs(now)
        return effects

    def replay(self, now_ns: int, event: ManagerEvent) -> list[ManagerEffect]:
        """Take one event of the journal again. Silence is not judged here: its verdicts are in the journal."""
        self._now = max(now_ns, self._now)
        self._take(event, self._now, self._now - self._slept)
        return self._job.take_effects(self._now)

    def to_journal(self) -> tuple[ManagerEvent, ...]:
        """What of the last step a replay needs, in order. Empty for a quiet beat."""
        return tuple(self._journal)

    def next_deadline(self) -> int | None:
        """When `step(Tick())` is to be called at the latest; None: there is nobody to watch."""
        if not self._members.nodes and self._repairs.deadline() is None:
            return None
        due = [self._now + limits.TICK_NS]
        if self._job.over is not None:
            return due[0]
        for at in (self._detector.next_check(), self._repairs.deadline()):
            if at is not None:
                due.append(at + self._slept)
        return min(due)

    def facts(self, now_ns: int) -> dict[str, Any]:
        """How the job stands, ready for JSON: what `taskd status` shows."""
        at = max(now_ns, self._now) - self._slept
        found = facts.of_job(self.name, self.node_count, self._job, self._repairs, self._rails, self.counters, at)
        found["incidents"]["known"] += len(self._doubts.history)
        return found | {"proof": facts.of_proofs(self._proofs, self._doubts.found, at)}

    def incidents(self, now_ns: int) -> list[dict[str, Any]]:
        """Every incident that is remembered, the oldest first, ready for JSON."""
        repairs = self._repairs
        known = filter(None, [*repairs.history, repairs.incident, *self._rails.incidents(), *self._doubts.history])
        found = sorted(known, key=lambda incident: incident.id)
        return [incident.facts(max(now_ns, self._now)) for incident in found[-limits.MAX_KEPT_INCIDENTS :]]

    def rails(self, now_ns: int) -> dict[str, Any]:
        """How every rail stands, ready for JSON: what `taskd rail list` shows."""
        return rail_facts.of_rails(self._rails, self._watch, max(now_ns, self._now) - self._slept)

    def rail_wish(self, rail: str, node: str, out: bool) -> RailWish | str:
        """What an operator's order means here, to be handed to `step`; or why it cannot be. `node` empty: all."""
        return rail_facts.wish(self._rails, self._watch, rail, node, out)

    # ---- events -----------------------------------------------------------------------------------------------

    def _take(self, event: ManagerEvent, now: int, at: int) -> None:
        if isinstance(event, Said):
            self._said(event.sender, event.message, now, at)
        elif isinstance(event, Tick):
            self._mattered = self._job.over is None and self._repairs.tick(now, at)
        elif isinstance(event, ConnectionLost):
            node = self._members.nodes.get(event.node)
            if node is not None and node.state in (NodeState.UP, NodeState.SILENT):
                self._mattered = True
                self._detector.connection_lost(node, at)
        elif isinstance(event, Verdict):
            self._mattered = True
            self._apply(event, now, at)
        elif isinstance(event, RailVerdict | RailWish):
            self._mattered = True
            self._rails.take(event, now, at)
        elif isinstance(event, ProofVerdict):
            self._mattered = True
            self._doubts.take(event, now, at)
        elif isinstance(event, Restarted):
            self._mattered = True
            self._proofs.restart()
            self._rails.restarted(at)
            self._watch.restart()
            self._job.renew_term(self._job.term + 1)
            self._detector.rebase(at)
            self._repairs.restarted(at)
            self._strangers.clear()
            for node in self._members.nodes.values():
                node.order_told_at = -1
            self._job.note("restarted", f"the manager is back and goes on in term {self._job.term}")
        if self._job.over is not None and self._rails.troubles:
            self._mattered = True
            self._rails.finish(now)

    def _said(self, sender: Sender, message: object, now: int, at: int) -> None:
        if isinstance(message, AgentHello):
            self._hello(sender, message, now, at)
            return
        node = self._members.nodes.get(sender.node)
        if node is None or (node.life != sender.life and sender.life not in node.former_lives):
            self._ask_who(sender, at)
            return
        if node.life != sender.life:
            self.counters.count("former life of an agent")
            return
        if sender.sequence <= node.sequence:
            self.counters.count("repeated or late message")
            return
        node.sequence = sender.sequence
        if isinstance(message, Goodbye):
            self._goodbye(node, message, now, at)
            return
        self._heard(node, now, at)
        if isinstance(message, Report):
            self._report(node, message, now, at)
        elif isinstance(message, Evidence):
            self._evidence(node, message, now, at)
        elif isinstance(message, ProofsTold):
            self._proofs.file(node.name, message.proofs, at)

    def _heard(self, node: NodeRecord, now: int, at: int) -> None:
        """A sign of life of a node's agent."""
        if node.state is NodeState.UP:
            self._detector.heard(node, at)
            return
        self._mattered = True
        was = node.state.value
        if node.state is NodeState.SILENT:
            was += f" for {milliseconds(at - node.silent_since)} ms"
        self._members.move_node(node, NodeCause.HEARD)
        self._detector.watch(node, at)
        for rank in node.ranks:
            self._members.ranks[rank].doubt_report()  # SUSPECT ends with the rank's own next report
        self._job.note("node", f"node {node.name}, which was {was}, is heard again", node=node.name)
        self._answer(node, Filed(), want_hello=True)
        self._repairs.roomier(now, at)

    # ---- hello, goodbye ---------------------------------------------------------------------------------------

    def _hello(self, sender: Sender, hello: AgentHello, now: int, at: int) -> None:
        members = self._members
        known = members.nodes.get(hello.node)
        life = known.life if known is not None else 0
        if known is not None and known.life == sender.life and sender.sequence <= known.sequence:
            self.counters.count("repeated or late message")
            return
        refusal = stranger(self.name, self._members.world_size, hello)
        admitted = refusal or members.admit(sender, hello)
        if isinstance(admitted, str):
            self.counters.count("agent refused")
            self._mattered = bool(self._journal)  # a row holds either all of a step or nothing
            self._job.note("refused", f"the agent of node {hello.node} was not let in: {admitted}", node=hello.node)
            self._job.tell(sender.node, Answer(self._job.term, False, cut(admitted), False, 0, (), ()), sender.life)
            return
        node = admitted
        self._mattered = True
        node.sequence = sender.sequence
        reborn = known is not None and life != sender.life
        if known is None:
            self._detector.watch(node, at)
            self._job.note("node", f"node {node.name} is here ({node.role})", node=node.name)
            self._repairs.roomier(now, at)
        else:
            self._heard(node, now, at)
        if reborn and node.spawns:
            lose_ranks(node, f"the launcher of node {node.name} was started again", "node", 0, self._repairs, now, at)
        elif reborn:
            self._job.note("node", f"the agent of node {node.name} was started again", node=node.name)
        if not members.world_size and hello.world_size:
            members.grow(hello.world_size)
        self._repairs.attendance.node_came(at)
        self._answer(node, Filed())
        order = self._job.order
        if self._job.over is None and order is not None and order.incident and not self._repairs.deciding:
            node.order_told_at = now
            self._job.tell(node.name, order)

    def _ask_who(self, sender: Sender, at: int) -> None:
        """Somebody unknown speaks: an agent that this manager has forgotten, or whose hello was lost."""
        self.counters.count("message of an unknown agent")
        asked = self._strangers.get(sender.node)
        if self._journal:
            return  # this step goes into the journal, and strangers do not: it speaks again soon
        if asked is not None and at - asked < limits.ORDER_REPEAT_NS:
            return
        if asked is None and len(self._strangers) >= limits.MAX_UNHEARD_SENDERS:
            self._strangers.clear()
        self._strangers[sender.node] = at
        answer = Answer(self._job.term, True, "", True, self._job.epoch, (), ())
        self._job.tell(sender.node, answer, sender.life)

    def _goodbye(self, node: NodeRecord, goodbye: Goodbye, now: int, at: int) -> None:
        if node.state is NodeState.LEFT:
            return
        self._mattered = True
        self._members.move_node(node, NodeCause.GOODBYE)
        self._forget(node, now)
        self._job.note("node", f"node {node.name} has left: {goodbye.reason}", node=node.name)
        lose_ranks(node, f"the launcher of node {node.name} ended", "node", 0, self._repairs, now, at)
        self._repairs.check_end(now, at)

    def _forget(self, node: NodeRecord, now: int) -> None:
        self._detector.forget(node)
        self._rails.forget(node.name, now)
        self._watch.forget(node.name)

    # ---- reports ----------------------------------------------------------------------------------------------

    def _report(self, node: NodeRecord, report: Report, now: int, at: int) -> None:
        self._mattered |= learn(node, report, self._job, self._repairs, now, at)
        trained = self._members.trained
        filed = self._members.file(node, report.ranks, at)
        self._mattered |= self._members.trained is not trained or filed is not None
        if filed is not None:
            self._detector.explained(node, filed.died)
            act_on(filed, node, self._job, self._repairs, now, at)
            if filed.confirmed or filed.refused:
                self._answer(node, filed)
            if filed.left:
                self._let_go()
        if report.full and self._repairs.told_all(node.name, at):
            self._mattered = True
        self._watch.file(node.name, report.rails, at)
        if self._rails.remind(node.name, report.rail_order, now):
            self._mattered = True
        behind = not node.ranks.isdisjoint(self._repairs.behind)
        if behind or report.term != self._job.term or self._job.over is not None:
            self._remind(node, now, report.term != self._job.term, behind)

    def _answer(self, node: NodeRecord, filed: Filed, want_hello: bool = False) -> None:
        confirmed, refused = tuple(filed.confirmed), tuple(filed.refused)
        answer = Answer(self._job.term, True, "", want_hello, self._job.epoch, confirmed, refused)
        self._job.tell(node.name, answer)

    def _remind(self, node: NodeRecord, now: int, term: bool, order: bool) -> None:
        """Say the order (or Stop, or the term) again, if it has not just been said."""
        just_said = node.order_told_at >= 0 and now - node.order_told_at < limits.ORDER_REPEAT_NS
        if just_said or self._job.said:
            return
        self._mattered = True
        node.order_told_at = now
        if self._job.over is not None:
            self._job.tell(node.name, self._job.over)
            return
        if term:
            self._answer(node, Filed())
        if order and self._job.order is not None and not self._repairs.deciding:
            self._job.tell(node.name, self._job.order)

    # ---- evidence and verdicts --------------------------------------------------------------------------------

    def _evidence(self, node: NodeRecord, evidence: Evidence, now: int, at: int) -> None:
        self._mattered = True
        record = self._members.find(evidence.rank)
        if record is not None and evidence.incarnation != record.incarnation:
            self.counters.count("evidence against another incarnation")
            return
        kind, reason = evidence.kind, evidence.reason
        seen_by = f"rank {evidence.witness}" if evidence.witness >= 0 else f"the agent of node {node.name}"
        if kind is EvidenceKind.PROCESS_EXIT and record is not None:
            if record.node is node and self._members.kill(record, evidence.exit_code, True, reason):
                self._detector.explained(node, [record.rank])
                self._repairs.died([record.rank], "process", 0, now, at)
                self._repairs.check_end(now, at)
            return
        if kind is EvidenceKind.COMPILING and self._repairs.incident is not None:
            self._repairs.incident.note(reason)
        if kind is EvidenceKind.COLLECTIVE_LATE:
            self._late.told(evidence, seen_by, node.name)
            return
        failed = kind is EvidenceKind.COLLECTIVE_ERROR or (kind is EvidenceKind.LINK_DOWN and record is not None)
        if failed and not (record is not None and record.state is RankState.DEAD):
            against = record.node if record is not None else None
            self._detector.collective_error(against, f"{seen_by} saw: {reason}", node.name, at)
        about = f" about rank {evidence.rank}" if record is not None else ""
        self._job.note("evidence", f"{seen_by} says{about}: {reason}", evidence.rank, node.name)
        if kind is EvidenceKind.COLLECTIVE_ERROR and evidence.witness in node.ranks:
            self._failed.told(evidence.witness)
            self._let_go()

    def _let_go(self) -> None:
        """Nobody holds what no repair can come for."""
        if self._repairs.incident is None and self._job.over is None and self._failed.let_go():
            self._mattered = True

    def _judge(self, now: int) -> list[ManagerEffect]:
        """What silence means by now. Each verdict is journaled, so that a replay needs none of the quiet beats."""
        effects: list[ManagerEffect] = []
        members, at = self._members, now - self._slept
        while self._job.over is None:
            others = members.counts[RankState.ALIVE] > 0
            if (verdict := self._detector.verdict(at, members.progress_at, members.progress_node, others)) is None:
                break
            effects += self._found(verdict, now)
        return effects

    def _judge_rails(self, now: int) -> list[ManagerEffect]:
        """What reports say about rails by now, in the same way."""
        effects: list[ManagerEffect] = []
        at, repairing = now - self._slept, self._repairs.recovery is not None
        while self._job.over is None and (verdict := self._watch.find(at, repairing)) is not None:
            self._journal.append(verdict)
            self._rails.apply(verdict, now, at)
            effects += self._job.take_effects(now)
        return effects

    def _judge_proofs(self, now: int) -> list[ManagerEffect]:
        """What the ranks have told of what they hold. In a repair, or just before one, it would change nothing."""
        effects: list[ManagerEffect] = []
        while self._job.over is None and not self._repairs.busy and (verdict := self._proofs.find()) is not None:
            self._journal.append(verdict)
            self._doubts.take(verdict, now, now - self._slept)
            effects += self._job.take_effects(now)
        return effects

    def _found(self, verdict: Verdict, now: int) -> list[ManagerEffect]:
        self._journal.append(verdict)
        self._apply(verdict, now, now - self._slept)
        return self._job.take_effects(now)

    def _apply(self, verdict: Verdict, now: int, at: int) -> None:
        if not verdict.node:
            self._slept += verdict.age_ns
            self._job.note("slept", verdict.reason)
            return
        node = self._members.nodes.get(verdict.node)
        if node is None or node.state not in (NodeState.UP, NodeState.SILENT):
            return
        if verdict.state is RankState.SUSPECT:
            if node.state is NodeState.SILENT:
                return
            self._members.move_node(node, NodeCause.SILENT)
            node.silent_since = at - verdict.age_ns
            self._detector.suspect(node, at)
            doubted = [rank for rank in sorted(node.ranks) if self._members.doubt(self._members.ranks[rank])]
            what = f": {rank_words(doubted)} suspected" if doubted else ""
            self._job.note("suspect", f"{verdict.reason}{what}", node=node.name)
        elif verdict.state is RankState.DEAD:
            self._members.move_node(node, NodeCause.JUDGED)
            self._forget(node, now)
            self._job.note("lost", f"node {node.name} is lost: {verdict.reason}", node=node.name)
            lose_ranks(node, verdict.reason, "node", verdict.age_ns, self._repairs, now, at)
            self._repairs.check_end(now, at)
