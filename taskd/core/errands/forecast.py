"""Whether an errand can be followed: what would happen to the job if its ranks were ended now.

The same ladder that decides about a death is asked beforehand. If it would not repair the job in the way that the
operator means, the errand is refused with the ladder's own sentence. This module changes nothing, and it does NOT know
how far an errand is.
"""

from __future__ import annotations

from collections.abc import Mapping

from taskd.core.events import ErrandWish
from taskd.core.membership import Membership
from taskd.core.records import NodeRecord, NodeState
from taskd.core.repair import placement
from taskd.core.repair.repairs import Repairs
from taskd.core.types import Cover, ErrandKind, Strategy
from taskd.core.words import asked_words, cut, join, rank_words, some, verb


def why_not(members: Membership, repairs: Repairs, wish: ErrandWish, parts: Mapping[int, int], now: int) -> str:
    """Say why this errand cannot be followed. Empty: it can be. `parts`: the part of the model that each rank holds, as
    far as its proofs have told it."""
    if wish.kind is ErrandKind.STOP:
        return ""
    if wish.kind is ErrandKind.SAVE:
        return _not_needed(members, wish) or _unsaved(members, repairs)
    if wish.kind is ErrandKind.VACATE:
        return cut(
            _unfit(members, wish) or _costs(members, repairs, wish, Strategy.RECOVER, now) or _alone(wish, parts)
        )
    (rank,) = wish.ranks
    if members.find(rank) is None:
        return f"there is no rank {rank}: the job has ranks 0 to {members.world_size - 1}"
    return cut(_costs(members, repairs, wish, Strategy.IN_PLACE, now))


def _unsaved(members: Membership, repairs: Repairs) -> str:
    """Why no last checkpoint can be written now. Empty: it can be, if the script's function does not refuse."""
    if not repairs.rules.recover:
        return "recovery is off in this job, so no last checkpoint is written"
    if Strategy.DUMP not in repairs.rules.strategies:
        return "dump is not among the strategies of this job, so no last checkpoint is written"
    if repairs.starts_over.damaged:
        return "ranks were found to hold different things, so no last checkpoint is written"
    if not members.trained:
        return "no step is done yet, so there is nothing to be saved"
    if any(record.cover is Cover.STARTS_OVER for record in members.ranks):
        return "if that failed, all ranks would start over; the output of the job tells why"
    if not placement.can_save(members):
        return (
            "no rank can write a last checkpoint: the script names no function for it "
            "(taskd.session().register(last_checkpoint=...)), or some part of the model has no rank that could"
        )
    return ""


def _not_needed(members: Membership, wish: ErrandWish) -> str:
    """Whether the job goes on without the node whose launcher was told to end. Empty: it does not, or an operator
    asks."""
    node = members.nodes.get(wish.node)
    if not wish.node or (node is not None and node.ranks):
        return ""
    return f"the job goes on: no rank is on node {wish.node}"


def _costs(members: Membership, repairs: Repairs, wish: ErrandWish, wanted: Strategy, now: int) -> str:
    """What the errand would lead to, other than what is wanted. Empty: nothing else."""
    moves = wanted is Strategy.RECOVER
    who = (wish.ranks, asked_words(wish.by), moves)
    why = repairs.starts_over.irreplaceable
    found = placement.forecast(members, repairs.rules, repairs.case.restarts, why, *who, now)
    if found.strategy is not wanted:
        cannot = "cannot be moved" if moves else "cannot be replaced in place"
        return f"{rank_words(wish.ranks)} {cannot}; this would happen instead: {found.reason}"
    covers = {record.rank: record.cover for record in members.ranks}
    if worse := [rank for rank, cover in covers.items() if cover is Cover.STARTS_OVER]:
        says = f"{rank_words(worse)} {verb(len(worse), 'says', 'say')}"
        return f"all ranks would start over, {says}; the output of the job tells why"
    if unknown := [rank for rank, cover in covers.items() if cover is Cover.UNKNOWN]:
        have = verb(len(unknown), "has", "have")
        return (
            f"all ranks might start over: {rank_words(unknown)} {have} done no step of a taskd.session() so far, so "
            "nothing shows that only the ended ranks would be replaced"
        )
    return ""


def _alone(wish: ErrandWish, parts: Mapping[int, int]) -> str:
    """Whether these ranks are all that hold some part of the model."""
    elsewhere = {part for rank, part in parts.items() if rank not in wish.ranks}
    lost = [rank for rank in wish.ranks if parts.get(rank, 0) and parts[rank] not in elsewhere]
    if not lost:
        return ""
    hold = verb(len(lost), "holds", "hold")
    return f"all ranks would start over: {rank_words(lost)} {hold} a part of the model that no other node has"


def _unfit(members: Membership, wish: ErrandWish) -> str:
    """Why this node cannot be vacated. Empty: it can be, as far as nodes are concerned."""
    node = members.nodes.get(wish.node)
    if node is None:
        return f"there is no node {wish.node}: known are {some(sorted(members.nodes), 8)}"
    if node.state is not NodeState.UP:
        return f"node {node.name} is {node.state.value}"
    if not node.ranks:
        return f"no rank is on node {node.name}: end its launcher"
    if _began(members, node):
        return f"node {node.name} began the job: its launcher has the rendezvous or the manager, which cannot be moved"
    others = [one for one in members.nodes.values() if one is not node and one.state is NodeState.UP]
    room = {one.name: count for one in others if (count := members.free_slots(one))}
    if sum(room.values()) >= len(wish.ranks):
        return ""
    has = f"there is room for {sum(room.values())} on {join(sorted(room))}" if room else "no node waits as a spare"
    return (
        f"{rank_words(wish.ranks)} would have no place: {has}; start one more node first (taskd-run --nnodes MIN:MAX)"
    )


def _began(members: Membership, node: NodeRecord) -> bool:
    """Whether this is the first node of the job: rank 0 was started there first."""
    if 0 in node.former_ranks:
        return True
    return 0 in node.ranks and not any(0 in other.former_ranks for other in members.nodes.values())
