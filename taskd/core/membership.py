"""Membership: which incarnation of which rank sits on which node, and which agent speaks for the node.

Flat lists: one record per rank, one per node. A report that changes nothing costs one comparison per rank and no
allocation; nothing here ever walks the whole job because of a report. What can go wrong, and what follows:

- *A doubled, late or foreign message*: fenced by the agent's life and sequence; nothing changes, it is counted.
- *An older incarnation speaks*: live, it is refused; dead, it is confirmed, so that its agent stops repeating it.
- *Two processes claim a rank*: the one that is known stays; the other is refused until the first is gone.
- *A number is taken by a dead process* (an agent that lost its memory): the live one is asked back under the next.
- *Death told twice*: the second time finds DEAD and changes nothing.
- *A verdict was wrong* (the node was only cut off): a rank that nobody has replaced simply returns.

Invariants: a rank's incarnation only grows; a rank sits on one node; `node.ranks` and `rank.node` agree.
Not here: what silence means (detector), what to do about a death (repairs).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from taskd.core import limits
from taskd.core.counters import Counters
from taskd.core.events import Sender
from taskd.core.messages import AgentHello, Confirmed, RankReport, Refused
from taskd.core.records import LIVE, NODE, RANK, NodeCause, NodeRecord, NodeState, RankCause, RankRecord
from taskd.core.types import Phase, RankState


@dataclass(slots=True)
class Filed:
    """What one report changed. Ranks by what happened to them; what the agent is to be answered."""

    joined: list[int] = field(default_factory=list)
    died: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    returned: list[int] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
    rivals: list[int] = field(default_factory=list)
    replaced: list[int] = field(default_factory=list)  # another incarnation took the seat of a live one
    confirmed: list[Confirmed] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)


class Membership:
    """All nodes and ranks of the job."""

    def __init__(self, world_size: int, counters: Counters) -> None:
        self.counters = counters
        self.nodes: dict[str, NodeRecord] = {}
        self.ranks: list[RankRecord] = []
        self.counts = dict.fromkeys(RankState, 0)
        self.node_counts = dict.fromkeys(NodeState, 0)
        self.trained = False  # some rank has finished a step since all of them were last started
        self.progress_at: int | None = None  # when any rank was last seen to have gone on to another step
        self.progress_node = ""
        self.reached = 0  # steps done since then, as reports have said that are gone, or a journal
        self.grow(world_size)

    @property
    def world_size(self) -> int:
        """How many ranks the job has; 0 until it is known."""
        return len(self.ranks)

    def grow(self, world_size: int) -> None:
        """The size of the job has become known."""
        assert not self.ranks and world_size <= limits.MAX_RANKS
        self.ranks = [RankRecord(rank) for rank in range(world_size)]
        self.counts[RankState.ABSENT] = world_size

    def find(self, rank: int) -> RankRecord | None:
        """The record of a rank that somebody outside has named."""
        return self.ranks[rank] if 0 <= rank < len(self.ranks) else None

    def in_state(self, *states: RankState) -> list[int]:
        """Every rank in one of these states. Walks the job: for decisions, never for a report."""
        return [record.rank for record in self.ranks if record.state in states]

    @property
    def steps_done(self) -> int:
        """How far the training has come since all ranks were last started. Walks the job: for decisions."""
        return max([self.reached, *(record.steps_done for record in self.ranks)])

    @property
    def all_silent(self) -> bool:
        """No node is heard, and some may be again."""
        return self.node_counts[NodeState.SILENT] > 0 and not self.node_counts[NodeState.UP]

    @property
    def all_agents_left(self) -> bool:
        """Every agent has said goodbye."""
        return self.node_counts[NodeState.LEFT] == len(self.nodes)

    def free_slots(self, node: NodeRecord) -> int:
        """How many more workers can be started on this node."""
        if not node.starts:
            return 0
        taken = sum(self.ranks[rank].state is not RankState.DEAD for rank in node.ranks)
        return max(node.slots - taken, 0)

    # ---- nodes ------------------------------------------------------------------------------------------------

    def admit(self, sender: Sender, hello: AgentHello) -> NodeRecord | str:
        """An agent introduces itself. Gives its node, or the sentence that says why it is not let in."""
        node = self.nodes.get(hello.node)
        if sender.node != hello.node:
            return f"the agent that calls itself {sender.node} on the wire says hello for node {hello.node}"
        if node is None:
            if len(self.nodes) >= limits.MAX_NODES:
                return f"the job has {limits.MAX_NODES} nodes already, which is the most"
            node = self.nodes[hello.node] = NodeRecord(hello.node, life=sender.life)
            self.node_counts[node.state] += 1
        elif sender.life in node.former_lives:
            return f"another agent has taken over node {hello.node}"
        elif node.life != sender.life:
            node.former_lives.append(node.life)
            node.life, node.sequence = sender.life, -1
        node.host, node.pid, node.spawns = hello.host, hello.pid, hello.spawns
        node.slots, node.interval_ns = hello.slots, hello.interval_ms * limits.MS
        node.connection_lost_at = None
        return node

    def move_node(self, node: NodeRecord, cause: NodeCause) -> None:
        """Apply one row of the node's table."""
        self.node_counts[node.state] -= 1
        node.state = NODE.after(node.state, cause)
        self.node_counts[node.state] += 1

    # ---- ranks ------------------------------------------------------------------------------------------------

    def move(self, record: RankRecord, cause: RankCause) -> None:
        """Apply one row of the rank's table."""
        self.counts[record.state] -= 1
        record.state = RANK.after(record.state, cause)
        self.counts[record.state] += 1

    def seat(self, record: RankRecord, incarnation: int, node: NodeRecord) -> None:
        """Another incarnation takes the rank's seat; whatever an older one says from now on is stale."""
        assert incarnation > record.incarnation, f"rank {record.rank}: {record.incarnation} to {incarnation}"
        if record.node is not None:
            record.node.ranks.discard(record.rank)
            record.node.former_ranks.add(record.rank)
        record.node = node
        node.ranks.add(record.rank)
        node.former_ranks.discard(record.rank)
        self._keep_steps(record)
        record.incarnation = incarnation
        record.pid, record.report, record.exit_code, record.proved, record.reason = 0, None, 0, False, ""
        record.last, record.condemned = None, False
        record.rivals.clear()
        self.move(record, RankCause.SEATED)

    def _keep_steps(self, record: RankRecord) -> None:
        """What is on record of this rank is about to be replaced."""
        self.reached = max(self.reached, record.steps_done)

    def kill(self, record: RankRecord, exit_code: int, proved: bool, reason: str) -> bool:
        """This incarnation is dead. False: that was known."""
        record.proved = record.proved or proved
        if not RANK.allows(record.state, RankCause.DIED):
            return False
        self.move(record, RankCause.DIED)
        record.exit_code, record.reason = exit_code, reason
        if not proved:
            record.doubt_report()  # it may return
        return True

    def condemn(self, record: RankRecord, reason: str) -> bool:
        """Its process lives and is of no use: another incarnation is to take the seat. False: it was dead already."""
        record.condemned = self.kill(record, 0, False, reason)
        return record.condemned

    def doubt(self, record: RankRecord) -> bool:
        """Something speaks against it. False: nothing to doubt."""
        if not record.live or record.state is RankState.SUSPECT:
            return False
        self.move(record, RankCause.DOUBTED)
        record.doubt_report()
        return True

    # ---- reports ----------------------------------------------------------------------------------------------

    def file(self, node: NodeRecord, reports: tuple[RankReport, ...], now: int) -> Filed | None:
        """Take a node's beat. None: nothing changed that anybody must act on (the quiet path)."""
        filed: Filed | None = None
        ranks = self.ranks
        size = len(ranks)
        for report in reports:
            rank = report.rank
            if rank >= size:
                self.counters.count("rank beyond the world size")
                continue
            record = ranks[rank]
            last = record.report
            if (
                last is not None
                and report.acknowledged
                and record.node is node
                and not record.watched
                and (report.phase is not Phase.DONE or last.phase is Phase.DONE)
                and report.state is last.state
                and report.incarnation == last.incarnation
                and report.epoch == last.epoch
                and report.stage is last.stage
                and report.updates == last.updates
                and report.ok == last.ok
                and report.pid == last.pid
            ):
                if report.step > last.step:
                    self._progress(node, report, now)
                record.report = report
                continue
            if filed is None:
                filed = Filed()
            self._file(node, record, report, now, filed)
        return filed

    def _progress(self, node: NodeRecord, report: RankReport, now: int) -> None:
        self.progress_at = now
        self.progress_node = node.name
        if not self.trained and report.state is RankState.ALIVE:
            finished = report.phase in (Phase.APPLIED, Phase.BETWEEN, Phase.DONE)
            self.trained = report.step >= 1 or report.updates >= 1 or finished

    def _file(self, node: NodeRecord, record: RankRecord, report: RankReport, now: int, filed: Filed) -> None:
        if report.incarnation < record.incarnation or (report.incarnation == 0 and report.state in LIVE):
            self._stale(node, record, report, filed)
        elif report.incarnation == record.incarnation:
            self._same(node, record, report, now, filed)
        elif report.incarnation - record.incarnation > limits.MAX_LIVES:
            self.counters.count("incarnation out of reach")
            text = f"rank {report.rank} cannot be in incarnation {report.incarnation} after {record.incarnation}"
            filed.refused.append(Refused(report.rank, report.incarnation, 0, text))
        elif record.live and record.node is not node and not node.spawns:
            self._rival(node, record, report, filed)
        else:
            # An incarnation that this manager does not remember to have ordered. Our launchers start nobody without an
            # order, so it has lost its journal; elsewhere somebody else's launcher did it. The seat is taken anew.
            if record.live and record.incarnation > 0:
                filed.replaced.append(record.rank)
            self.seat(record, report.incarnation, node)
            self._same(node, record, report, now, filed)

    def _stale(self, node: NodeRecord, record: RankRecord, report: RankReport, filed: Filed) -> None:
        if report.state not in LIVE:
            filed.confirmed.append(Confirmed(report.rank, report.incarnation))
            return
        if not node.spawns and (record.node is node or not record.live):
            # A side agent numbers what others start; a new one does not know how far its forerunner had come.
            if record.live and record.pid == report.pid:
                self._ask_back(report, record.incarnation, filed)
                return
            if self.kill(record, 0, True, f"process {report.pid} runs in its place"):
                filed.died.append(record.rank)
            self._number_taken(record, report, filed)
            return
        self.counters.count("stale incarnation")
        text = f"rank {report.rank} goes on as incarnation {record.incarnation} on node {record.where}"
        filed.refused.append(Refused(report.rank, report.incarnation, 0, text))

    def _rival(self, node: NodeRecord, record: RankRecord, report: RankReport, filed: Filed) -> None:
        """Somebody on another node claims a rank whose process is there."""
        if report.state not in LIVE:
            filed.confirmed.append(Confirmed(report.rank, report.incarnation))
            return
        self.counters.count("rank claimed twice")
        text = f"rank {report.rank} is held by process {record.pid} on node {record.where}"
        filed.refused.append(Refused(report.rank, report.incarnation, 0, text))
        if node.name not in record.rivals:
            record.rivals.add(node.name)
            node.former_ranks.add(record.rank)
            filed.rivals.append(report.rank)

    def _same(self, node: NodeRecord, record: RankRecord, report: RankReport, now: int, filed: Filed) -> None:
        """A report of the very incarnation that is on record."""
        if record.node is not node:
            if record.live:
                self._rival(node, record, report, filed)
                return
            if record.node is not None:
                self._number_taken(record, report, filed)
                return
            record.node = node
            node.ranks.add(record.rank)
        elif record.pid not in (0, report.pid) and report.pid and record.state is not RankState.STARTING:
            # An agent speaks for its node: that it shows another process means that the known one is gone.
            if self.kill(record, 0, True, f"process {report.pid} runs in its place"):
                filed.died.append(record.rank)
            self._number_taken(record, report, filed)
            return
        if report.state in LIVE and record.state in (RankState.DEAD, RankState.LEFT):
            if record.condemned:
                self.counters.count("report of a rank that was given up")
                return
            if record.proved:
                self._number_taken(record, report, filed)
                return
            self.move(record, RankCause.RETURNED)
            filed.returned.append(record.rank)
        last = record.report
        self._keep_steps(record)  # a new agent may know less of a process than the one before
        record.report = report
        record.pid = report.pid or record.pid
        self._follow(record, report, filed)
        if last is None or report.step > last.step or report.updates > last.updates:
            self._progress(node, report, now)
        if not report.acknowledged:
            filed.confirmed.append(Confirmed(report.rank, report.incarnation))
        filed.moved.append(record.rank)

    def _number_taken(self, record: RankRecord, report: RankReport, filed: Filed) -> None:
        """A process under a number that belongs to an ended one: its agent forgot. Live, it is the next."""
        if report.state not in LIVE:
            filed.confirmed.append(Confirmed(report.rank, report.incarnation))
            return
        self.counters.count("incarnation of an ended process")
        self._ask_back(report, record.incarnation + 1 if record.incarnation < limits.MAX_INCARNATION else 0, filed)

    @staticmethod
    def _ask_back(report: RankReport, incarnation: int, filed: Filed) -> None:
        text = (
            f"incarnation {report.incarnation} of rank {report.rank} has ended; this one is {incarnation or 'too many'}"
        )
        filed.refused.append(Refused(report.rank, report.incarnation, incarnation, text))

    def _follow(self, record: RankRecord, report: RankReport, filed: Filed) -> None:
        """Bring the rank's state to what the report says of the process."""
        if report.state is RankState.DEAD:
            if self.kill(record, report.exit_code, True, report.reason):
                filed.died.append(record.rank)
        elif report.state is RankState.LEFT:
            if RANK.allows(record.state, RankCause.LEFT):
                self.move(record, RankCause.LEFT)
                record.proved = True
                filed.left.append(record.rank)
        elif report.state is RankState.STARTING:
            if RANK.allows(record.state, RankCause.STARTED):
                self.move(record, RankCause.STARTED)
        elif record.state is RankState.SUSPECT:
            self.move(record, RankCause.RETURNED)
        elif report.state is RankState.ALIVE and RANK.allows(record.state, RankCause.JOINED):
            self.move(record, RankCause.JOINED)
            filed.joined.append(record.rank)
