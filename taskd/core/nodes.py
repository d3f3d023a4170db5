"""The manager's side of the talk with the agents of the nodes: takes their messages and answers them.

A beat that changes nothing costs one comparison per rank and gives no effect. What can go wrong, and what follows:

- *Strangers*: messages of other jobs' agents, former lives and unknown nodes, and repeated messages, change nothing and
  are counted.
- *The manager's journal is lost*: agents that know a newer term or epoch teach it. Both only grow.
- *An answer or an order is lost*: it is sent again to the nodes that do not follow it.
- *A node goes*, by its own word, by a verdict, or because another agent replaces it: one place deals with its ranks.

Invariants: no message from outside raises an error; an order goes to a node at most once per ORDER_REPEAT_NS unless it
is new; when the job is over, Stop is the only message left. This module files nothing (filing does), judges no silence
(detector) and decides nothing (repairs). Deaths go to the repairs last, so the repairs see everything else in place.
"""

from __future__ import annotations

from taskd.core import limits
from taskd.core.collectives import Collectives
from taskd.core.detector import Detector
from taskd.core.events import Sender, Verdict
from taskd.core.filing import Filed, Filing
from taskd.core.hangs import Hangs
from taskd.core.job import Job
from taskd.core.messages import (
    AgentHello,
    Answer,
    DeviceReport,
    Evidence,
    Goodbye,
    PauseAnswers,
    Report,
    Stillness,
    Stop,
)
from taskd.core.messages import Proofs as ProofsTold
from taskd.core.pause.pauses import Pauses
from taskd.core.proof.proofs import Proofs
from taskd.core.rails.rails import Rails
from taskd.core.rails.watch import RailWatch
from taskd.core.records import NodeCause, NodeRecord, NodeState
from taskd.core.repair.repairs import Repairs
from taskd.core.times import Moment, long_ago
from taskd.core.types import EvidenceKind, RankState, StopKind
from taskd.core.words import LEFT_UNSAID, cut, milliseconds, rank_words


class Nodes:
    """The nodes of a job, and what the manager and their agents say to each other."""

    def __init__(
        self,
        name: str,
        job: Job,
        detector: Detector,
        repairs: Repairs,
        rails: Rails,
        watch: RailWatch,
        proofs: Proofs,
        pauses: Pauses,
    ) -> None:
        """`name`: the job's name."""
        self._name = name
        self._job = job
        self._members = job.members
        self._filing = Filing(job.members)
        self._detector = detector
        self._repairs = repairs
        self._rails = rails
        self._watch = watch
        self._proofs = proofs
        self._pauses = pauses
        self._collectives = Collectives(job)
        self.hangs = Hangs(job)
        self._strangers: dict[str, int] = {}  # when an unknown node was last asked to introduce itself
        self._idle_said = False  # whether it was reported that recovery is on but impossible

    def said(self, sender: Sender, message: object, when: Moment) -> None:
        """Take an agent's message, if the sender is the current agent of its node."""
        if isinstance(message, AgentHello):
            self._hello(sender, message, when)
            return
        node = self._members.nodes.get(sender.node)
        if node is None or (node.life != sender.life and sender.life not in node.former_lives):
            self._ask_who(sender, when.at)
            return
        if node.life != sender.life:
            self._members.counters.count("former life of an agent")
            return
        if sender.sequence <= node.sequence:
            self._members.counters.count("repeated or late message")
            return
        node.sequence = sender.sequence
        if isinstance(message, Goodbye):
            self._goodbye(node, message, when)
            return
        self._heard(node, when)
        if isinstance(message, Report):
            self._report(node, message, when)
        elif isinstance(message, Evidence):
            self._evidence(node, message, when)
        elif isinstance(message, ProofsTold):
            self._proofs.file(node.name, message.proofs, when.at)
        elif isinstance(message, Stillness):
            self.hangs.file(node, message, when.at)
        elif isinstance(message, DeviceReport):
            self._repairs.devices.file(node.name, message, when)
        elif isinstance(message, PauseAnswers):
            self._pauses.file(node.name, message)

    def judged(self, verdict: Verdict, when: Moment) -> None:
        """Apply the detector's verdict about a node's silence."""
        node = self._members.nodes.get(verdict.node)
        if node is None or node.state not in (NodeState.UP, NodeState.SILENT):
            return
        if verdict.state is RankState.SUSPECT:
            if node.state is NodeState.SILENT:
                return
            self._members.move_node(node, NodeCause.SILENT)
            node.silent_since = when.at - verdict.age_ns
            self._detector.suspect(node, when.at)
            doubted = [rank for rank in sorted(node.ranks) if self._members.doubt(self._members.ranks[rank])]
            what = f": {rank_words(doubted)} suspected" if doubted else ""
            self._job.note("suspect", f"{verdict.reason}{what}", node=node.name)
        elif verdict.state is RankState.DEAD:
            self._members.move_node(node, NodeCause.JUDGED)
            self._forget(node, when.now)
            self._job.note("lost", f"node {node.name} is lost: {verdict.reason}", node=node.name)
            self._lose_ranks(node, verdict.reason, verdict.age_ns, when)
            self._repairs.ending.check(when)

    def restarted(self) -> None:
        """The manager was away: every node may be told everything again."""
        self._strangers.clear()
        self._collectives.ended.restarted()
        self.hangs.restarted()
        for node in self._members.nodes.values():
            node.order_told_at = None

    def tell_of_ends(self, when: Moment) -> None:
        """Tell ranks of others that have ended without a word, if there are any and no repair is under way."""
        if self._repairs.case.incident is None and self._job.over is None and self._collectives.ended.tell(when.at):
            self._job.mattered = True

    def _say_what_cannot_be(self, node: NodeRecord) -> None:
        """Report once that recovery is on, but that the launcher of this node's ranks will not start them again."""
        if self._repairs.rules.recover and not node.spawns and not self._idle_said:
            self._idle_said = True
            text = f"recovery is on, but taskd-run has not started the ranks of node {node.name}: they are watched only"
            self._job.note("idle", f"{text}, and one that dies is not replaced", node=node.name)

    # ---- hello, goodbye ---------------------------------------------------------------------------------------

    def _hello(self, sender: Sender, hello: AgentHello, when: Moment) -> None:
        members = self._members
        known = members.nodes.get(hello.node)
        life = known.life if known is not None else 0
        if known is not None and known.life == sender.life and sender.sequence <= known.sequence:
            self._members.counters.count("repeated or late message")
            return
        admitted = self._stranger(hello) or members.admit(sender, hello)
        if isinstance(admitted, str):
            self._members.counters.count("agent refused")
            self._job.mattered = bool(self._job.journal)  # a journal row holds all of a step or nothing
            self._job.note("refused", f"the agent of node {hello.node} was not let in: {admitted}", node=hello.node)
            self._job.tell(sender.node, Answer(self._job.term, False, cut(admitted), False, 0, (), ()), sender.life)
            return
        node = admitted
        self._job.mattered = True
        node.sequence = sender.sequence
        self._pauses.introduced(node.name)
        reborn = known is not None and life != sender.life
        if known is None:
            self._detector.watch(node, when.at)
            self._job.note("node", f"node {node.name} is here ({node.role})", node=node.name)
            self._say_what_cannot_be(node)
            self._repairs.roomier(when)
        else:
            self._heard(node, when)
        if reborn:
            self._repairs.devices.forget(node.name)
            self._members.vacated.discard(node.name)
        if reborn and node.spawns:
            self._lose_ranks(node, f"the launcher of node {node.name} was started again", 0, when)
        elif reborn:
            self._job.note("node", f"the agent of node {node.name} was started again", node=node.name)
        if not members.world_size and hello.world_size:
            members.grow(hello.world_size)
        self._repairs.attendance.node_came(when.at)
        self._answer(node, Filed())
        order = self._job.order
        if self._job.over is None and order is not None and order.incident and not self._repairs.case.deciding:
            self._job.tell_order(node, when.now)

    def _stranger(self, hello: AgentHello) -> str:
        """Say why this agent does not belong to this job. Empty: it does."""
        size = self._members.world_size
        if hello.job != self._name:
            return f"it belongs to job {hello.job}, this is the manager of job {self._name}"
        if size and hello.world_size and hello.world_size != size:
            return f"its workers believe in a world of {hello.world_size} ranks, the job has {size}"
        return ""

    def _ask_who(self, sender: Sender, at: int) -> None:
        """Ask an unknown agent for its hello: this manager has forgotten the agent, or the hello was lost."""
        self._members.counters.count("message of an unknown agent")
        asked = self._strangers.get(sender.node)
        if self._job.journal:
            return  # this step goes into the journal, but strangers do not; the agent sends again soon
        if not long_ago(asked, at, limits.ORDER_REPEAT_NS):
            return
        if asked is None and len(self._strangers) >= limits.MAX_UNHEARD_SENDERS:
            self._strangers.clear()
        self._strangers[sender.node] = at
        answer = Answer(self._job.term, True, "", True, self._job.epoch, (), ())
        self._job.tell(sender.node, answer, sender.life)

    def _heard(self, node: NodeRecord, when: Moment) -> None:
        """A sign of life of a node's agent."""
        if node.state is NodeState.UP:
            self._detector.heard(node, when.at)
            return
        self._job.mattered = True
        was = node.state.value
        if node.state is NodeState.SILENT:
            was += f" for {milliseconds(when.at - node.silent_since)} ms"
        self._members.move_node(node, NodeCause.HEARD)
        self._detector.watch(node, when.at)
        for rank in node.ranks:
            self._members.ranks[rank].doubt_report()  # SUSPECT ends with the rank's own next report
        self._job.note("node", f"node {node.name}, which was {was}, is heard again", node=node.name)
        self._answer(node, Filed(), want_hello=True)
        self._repairs.roomier(when)

    def _goodbye(self, node: NodeRecord, goodbye: Goodbye, when: Moment) -> None:
        if node.state is NodeState.LEFT:
            return
        self._job.mattered = True
        self._members.move_node(node, NodeCause.GOODBYE)
        self._forget(node, when.now)
        self._job.note("node", f"node {node.name} has left: {goodbye.reason}", node=node.name)
        self._lose_ranks(node, f"the launcher of node {node.name} ended", 0, when)
        self._repairs.ending.check(when)

    def _forget(self, node: NodeRecord, now: int) -> None:
        self._detector.forget(node)
        self._rails.forget(node.name, now)
        self._pauses.forget(node.name)
        self._members.vacated.discard(node.name)
        self._watch.forget(node.name)

    def _lose_ranks(self, node: NodeRecord, reason: str, age_ns: int, when: Moment) -> None:
        """A node is gone, and with it all ranks that sat there. Only workers of a side agent outlive its goodbye."""
        members = self._members
        members.forgotten |= self._repairs.attendance.told_nothing(node.name)
        records = [members.ranks[rank] for rank in sorted(node.ranks)]
        if node.state is NodeState.LEFT and not node.spawns:
            for record in records:
                members.doubt(record)
            return
        dead = [record.rank for record in records if members.kill(record, 0, False, reason)]
        if dead:
            self._repairs.faults.died(dead, "node", age_ns, when)

    # ---- reports ----------------------------------------------------------------------------------------------

    def _report(self, node: NodeRecord, report: Report, when: Moment) -> None:
        job, members = self._job, self._members
        job.mattered |= self._learn(node, report, when)
        trained = members.trained
        filed = self._filing.file(node, report.ranks, when.at)
        job.mattered |= members.trained is not trained or filed is not None
        if filed is not None:
            self._detector.explained(node, filed.died)
            self._act_on(filed, node, when)
            if filed.confirmed or filed.refused:
                self._answer(node, filed)
            if filed.left:
                self._collectives.ended.left(filed.left)
                self._let_go()
        self.tell_of_ends(when)
        if report.full and self._repairs.told_all(node.name, when.at):
            job.mattered = True
        self._watch.file(node.name, report.rails, when.at)
        if self._rails.orders.remind(node.name, report.rail_order, when.now):
            job.mattered = True
        behind = not node.ranks.isdisjoint(self._repairs.case.behind)
        away = node.name in members.vacated and not node.ranks and self._repairs.case.incident is None
        if behind or away or report.term != job.term or job.over is not None:
            self._remind(node, when.now, report.term != job.term, behind, away)

    def _learn(self, node: NodeRecord, report: Report, when: Moment) -> bool:
        """Learn a newer term or epoch from a node, if this manager has lost its journal or its end. True: it did."""
        job, forgot = self._job, False
        if job.term < report.term <= job.term + limits.MAX_LEAP:
            forgot, term = True, report.term + 1
            text = f"node {node.name} follows term {report.term}, this manager was in {job.term}: now in {term}"
            job.note("term", text, node=node.name)
            job.renew_term(term)
        if report.epoch > job.epoch:
            forgot |= self._repairs.adopt(report.epoch, f"node {node.name} knows of", sorted(node.ranks), when)
        if report.term > job.term or report.epoch > job.epoch:
            self._members.counters.count("leap of a term or an epoch")
        return forgot

    def _act_on(self, filed: Filed, node: NodeRecord, when: Moment) -> None:
        """Act on what a report of this node has changed."""
        job, repairs = self._job, self._repairs
        for rank in filed.rivals:
            holder = self._members.ranks[rank].where
            job.note("refused", f"rank {rank} is claimed on node {node.name}, node {holder} holds it", rank, node.name)
        if filed.replaced:
            repairs.faults.replaced(filed.replaced, when)
        if filed.joined:
            job.note("joined", f"{rank_words(filed.joined)} joined on node {node.name}", node=node.name)
            repairs.back(filed.joined, when)
        job.tell_when_complete()
        if filed.returned:
            repairs.returned(filed.returned, when)
        if filed.moved:
            repairs.moved(filed.moved, when)
        if job.over is not None:
            return
        unsaid = [rank for rank in filed.left if self._members.ranks[rank].left_unsaid]
        if well := sorted({*filed.left} - {*unsaid}):
            job.note("left", f"{rank_words(well)} ended in good order", node=node.name)
        if unsaid:
            job.note("left", f"{rank_words(unsaid)} {LEFT_UNSAID}", node=node.name)
        for rank in filed.left:
            if job.over is None:
                repairs.left(rank, when)
        if filed.died and job.over is None:
            repairs.faults.died(filed.died, "process", 0, when)
        if filed.left or filed.died:
            repairs.ending.check(when)

    def _answer(self, node: NodeRecord, filed: Filed, want_hello: bool = False) -> None:
        confirmed, refused = tuple(filed.confirmed), tuple(filed.refused)
        answer = Answer(self._job.term, True, "", want_hello, self._job.epoch, confirmed, refused)
        self._job.tell(node.name, answer)

    def _remind(self, node: NodeRecord, now: int, term: bool, order: bool, away: bool) -> None:
        """Send the order (or Stop, or the term) again, if it was not sent just now. `away`: the node was vacated, and
        all is well without it."""
        if self._job.said or not long_ago(node.order_told_at, now, limits.ORDER_REPEAT_NS):
            return
        self._job.mattered = True
        node.order_told_at = now
        if self._job.over is not None:
            self._job.tell(node.name, self._job.over)
            return
        if away:
            reason = f"node {node.name} is drained: its ranks are on other nodes, and the job goes on"
            self._job.tell(node.name, Stop(self._job.term, 0, cut(reason), StopKind.DRAINED))
            return
        if term:
            self._answer(node, Filed())
        if order and self._job.order is not None and not self._repairs.case.deciding:
            self._job.tell_order(node, now)

    # ---- evidence ---------------------------------------------------------------------------------------------

    def _evidence(self, node: NodeRecord, evidence: Evidence, when: Moment) -> None:
        self._job.mattered = True
        record = self._members.find(evidence.rank)
        if record is not None and evidence.incarnation != record.incarnation:
            self._members.counters.count("evidence against another incarnation")
            return
        kind, reason = evidence.kind, evidence.reason
        seen_by = f"rank {evidence.witness}" if evidence.witness >= 0 else f"the agent of node {node.name}"
        if kind is EvidenceKind.PROCESS_EXIT and record is not None:
            if record.node is node and self._members.kill(record, evidence.exit_code, True, reason):
                self._detector.explained(node, [record.rank])
                self._repairs.faults.died([record.rank], "process", 0, when)
                self._repairs.ending.check(when)
            return
        if kind is EvidenceKind.COMPILING and self._repairs.case.incident is not None:
            self._repairs.case.incident.note(reason)
        if kind is EvidenceKind.COLLECTIVE_LATE:
            self._collectives.late.told(evidence, seen_by, node.name)
            return
        failed = kind is EvidenceKind.COLLECTIVE_ERROR or (kind is EvidenceKind.LINK_DOWN and record is not None)
        if failed and not (record is not None and record.state is RankState.DEAD):
            against = record.node if record is not None else None
            self._detector.collective_error(against, f"{seen_by} saw: {reason}", node.name, when.at)
        about = f" about rank {evidence.rank}" if record is not None else ""
        self._job.note("evidence", f"{seen_by} says{about}: {reason}", evidence.rank, node.name)
        if kind is EvidenceKind.COLLECTIVE_ERROR and evidence.witness in node.ranks:
            self._collectives.failed.told(evidence.witness)
            self._let_go()

    def _let_go(self) -> None:
        """Tell ranks to raise their failed collective, if no repair can come for it."""
        if self._repairs.case.incident is None and self._job.over is None and self._collectives.failed.let_go():
            self._job.mattered = True
