"""Membership: which incarnation of which rank sits on which node, and which agent speaks for the node.

Flat lists: one record per rank, one per node. What can go wrong, and what follows:

- *Another agent speaks for a node*: the newest life counts, and a former life is refused.
- *A death is reported twice*: the second report finds DEAD and changes nothing.

Invariants: a rank's incarnation only grows; a rank sits on one node; `node.ranks` and `rank.node` agree.
Not here: what a report means (filing), what silence means (detector), what to do about a death (repairs).
"""

from __future__ import annotations

from taskd.core import limits
from taskd.core.counters import Counters
from taskd.core.events import Sender
from taskd.core.lost import LostDevices
from taskd.core.messages import AgentHello, RankReport
from taskd.core.records import NODE, RANK, NodeCause, NodeRecord, NodeState, RankCause, RankRecord
from taskd.core.types import GivenUp, Phase, RankState


class Membership:
    """All nodes and ranks of the job."""

    def __init__(self, world_size: int, counters: Counters) -> None:
        self.counters = counters
        self.nodes: dict[str, NodeRecord] = {}
        self.ranks: list[RankRecord] = []
        self.lost_devices = LostDevices()
        self.vacated: set[str] = set()  # nodes whose ranks are to be elsewhere, for an operator
        self.counts = dict.fromkeys(RankState, 0)
        self.node_counts = dict.fromkeys(NodeState, 0)
        self.paused = False  # an operator pauses the job: to stand still is no hang
        self.stands_since: int | None = None  # since when ranks stand for an operator, and no repair keeps them from it
        self._stood_ns = 0
        self.trained = False  # some rank has finished a step since all of them were last started
        self.progress_at: int | None = None  # when any rank was last seen to have gone on to another step
        self.progress_node = ""
        self.reached = 0  # steps done since then, as reports that are no longer kept, or a journal, have said
        self.forgotten = False  # the last epoch may be forgotten, and the ranks that could tell it are gone
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

    def stands(self, now: int, wanted: bool) -> None:
        """An operator lets all ranks stand from now on, or not any longer."""
        if self.stands_since is not None:
            self._stood_ns += now - self.stands_since
        self.stands_since = now if wanted else None

    def stood_ns(self, now: int) -> int:
        """Return for how long ranks have stood for operators, in the whole job."""
        return self._stood_ns + (0 if self.stands_since is None else now - self.stands_since)

    def find(self, rank: int) -> RankRecord | None:
        """Return the record of a rank that a message from outside has named, if there is one."""
        return self.ranks[rank] if 0 <= rank < len(self.ranks) else None

    def in_state(self, *states: RankState) -> list[int]:
        """Return every rank in one of these states. Walks the job: for decisions, never for a report."""
        return [record.rank for record in self.ranks if record.state in states]

    @property
    def steps_done(self) -> int:
        """How far the training has come since all ranks were last started. Walks the job: for decisions."""
        return max([self.reached, *(record.steps_done for record in self.ranks)])

    @property
    def all_silent(self) -> bool:
        """Whether no node is heard, but some may be heard again."""
        return self.node_counts[NodeState.SILENT] > 0 and not self.node_counts[NodeState.UP]

    @property
    def all_agents_left(self) -> bool:
        """Whether every agent has said goodbye."""
        return self.node_counts[NodeState.LEFT] == len(self.nodes)

    def free_slots(self, node: NodeRecord) -> int:
        """How many more workers can be started on this node. A place whose device is lost is none."""
        if not node.starts or node.name in self.vacated:
            return 0
        lost, name = self.lost_devices, node.name
        here = [rank for rank in node.ranks if self.ranks[rank].state is not RankState.DEAD]
        taken = len(here) if not lost.count(name) else sum(lost.at(rank, name) is None for rank in here)
        return max(node.slots - lost.count(name) - taken, 0)

    # ---- nodes ------------------------------------------------------------------------------------------------

    def admit(self, sender: Sender, hello: AgentHello) -> NodeRecord | str:
        """An agent introduces itself. Return its node, or the sentence that says why it is not let in."""
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
        """Another incarnation takes the rank's seat. All that an older one says from now on is stale."""
        assert incarnation > record.incarnation, f"rank {record.rank}: {record.incarnation} to {incarnation}"
        if record.node is not None:
            record.node.ranks.discard(record.rank)
            record.node.former_ranks.add(record.rank)
        record.node = node
        node.ranks.add(record.rank)
        node.former_ranks.discard(record.rank)
        self.keep_steps(record)
        record.incarnation = incarnation
        record.pid, record.report, record.exit_code, record.proved, record.reason = 0, None, 0, False, ""
        record.last, record.given_up = None, None
        record.rivals.clear()
        self.move(record, RankCause.SEATED)

    def keep_steps(self, record: RankRecord) -> None:
        """Remember the steps of this rank, before its record is overwritten."""
        self.reached = max(self.reached, record.steps_done)

    def kill(self, record: RankRecord, exit_code: int, proved: bool, reason: str) -> bool:
        """This incarnation is dead. Return False if that was known."""
        record.proved = record.proved or proved
        if not RANK.allows(record.state, RankCause.DIED):
            return False
        self.move(record, RankCause.DIED)
        record.exit_code, record.reason = exit_code, reason
        if not proved:
            record.doubt_report()  # it may return
        return True

    def give_up(self, record: RankRecord, why: GivenUp, reason: str) -> bool:
        """Its process lives but is of no use: another incarnation is to take the seat. False: it was dead already."""
        killed = self.kill(record, 0, False, reason)
        if killed:
            record.given_up = why
        return killed

    def doubt(self, record: RankRecord) -> bool:
        """Suspect this rank. Return False if it is suspect already, or not alive."""
        if not record.live or record.state is RankState.SUSPECT:
            return False
        self.move(record, RankCause.DOUBTED)
        record.doubt_report()
        return True

    def went_on(self, node: NodeRecord, report: RankReport, now: int) -> None:
        """A rank of this node was seen to have gone on to another step."""
        self.progress_at = now
        self.progress_node = node.name
        if not self.trained and report.state is RankState.ALIVE:
            finished = report.phase in (Phase.APPLIED, Phase.BETWEEN, Phase.DONE)
            self.trained = report.step >= 1 or report.updates >= 1 or finished
