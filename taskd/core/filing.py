"""What the manager does about news of nodes: says it, and hands it to the repairs in the one right order.

Deaths come last: they see everything else in place. It files nothing (membership does) and decides nothing (repairs).
"""

from __future__ import annotations

from taskd.core import limits
from taskd.core.job import Job
from taskd.core.membership import Filed
from taskd.core.messages import AgentHello, Report
from taskd.core.records import NodeRecord, NodeState
from taskd.core.repair.repairs import Repairs
from taskd.core.words import rank_words


def learn(node: NodeRecord, report: Report, job: Job, repairs: Repairs, now: int, at: int) -> bool:
    """A node may know a newer term or epoch than a manager that has lost its journal, or its end. True: it did."""
    forgot = False
    if job.term < report.term <= job.term + limits.MAX_LEAP:
        forgot, term = True, report.term + 1
        text = f"node {node.name} follows term {report.term}, this manager was in {job.term}: now in {term}"
        job.note("term", text, node=node.name)
        job.renew_term(term)
    if report.epoch > job.epoch:
        forgot |= repairs.adopt(report.epoch, f"node {node.name} knows of", sorted(node.ranks), now, at)
    if report.term > job.term or report.epoch > job.epoch:
        repairs.members.counters.count("leap of a term or an epoch")
    return forgot


def act_on(filed: Filed, node: NodeRecord, job: Job, repairs: Repairs, now: int, at: int) -> None:
    """What a report of this node has changed."""
    for rank in filed.rivals:
        holder = job.members.ranks[rank].where
        job.note("refused", f"rank {rank} is claimed on node {node.name}, node {holder} holds it", rank, node.name)
    if filed.replaced:
        repairs.replaced(filed.replaced, now, at)
    if filed.joined:
        job.note("joined", f"{rank_words(filed.joined)} joined on node {node.name}", node=node.name)
        repairs.back(filed.joined, now, at)
    job.tell_when_complete()
    if filed.returned:
        repairs.returned(filed.returned, now, at)
    if filed.moved:
        repairs.moved(filed.moved, now, at)
    if job.over is not None:
        return
    if filed.left:
        job.note("left", f"{rank_words(filed.left)} ended in good order", node=node.name)
    for rank in filed.left:
        if job.over is None:
            repairs.left(rank, now, at)
    if filed.died and job.over is None:
        repairs.died(filed.died, "process", 0, now, at)
    if filed.left or filed.died:
        repairs.check_end(now, at)


def lose_ranks(node: NodeRecord, reason: str, kind: str, age_ns: int, repairs: Repairs, now: int, at: int) -> None:
    """A node is gone, and with it whoever still sat there; only workers of a side agent outlive its goodbye."""
    members = repairs.members
    records = [members.ranks[rank] for rank in sorted(node.ranks)]
    if node.state is NodeState.LEFT and not node.spawns:
        for record in records:
            members.doubt(record)
        return
    dead = [record.rank for record in records if members.kill(record, 0, False, reason)]
    if dead:
        repairs.died(dead, kind, age_ns, now, at)


def stranger(job: str, size: int, hello: AgentHello) -> str:
    """Why this agent has no business with a job of this name and world size; empty: it has."""
    if hello.job != job:
        return f"it belongs to job {hello.job}, this is the manager of job {job}"
    if size and hello.world_size and hello.world_size != size:
        return f"its workers believe in a world of {hello.world_size} ranks, the job has {size}"
    return ""
