"""Placement: what the ladder has to know about the dead ranks, and new seats for them.

The functions only read the membership. They are called when a decision is due, never for a report, so they may walk the
whole job. Only `take_seats` changes something: it gives seats. Not here: which strategy is chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from taskd.core import limits
from taskd.core.membership import Membership
from taskd.core.messages import Seat
from taskd.core.policy.rules import DEFAULT, Event, Policy
from taskd.core.policy.ruling import History
from taskd.core.records import NodeRecord, NodeState, RankRecord, Restart
from taskd.core.repair.incident import Incident
from taskd.core.repair.ladder import Decision, Loss, Objection, Saving, Situation, causes_first, decide, faults
from taskd.core.starts_over import StartsOver
from taskd.core.types import GivenUp, RankState, Strategy
from taskd.core.words import FOR_ITS_MEMORY, NOT_STARTED


@dataclass(frozen=True, slots=True)
class Rules:
    """What the user allows."""

    strategies: frozenset[Strategy]
    recover: bool
    max_restarts: int
    spare_wait_ns: int = limits.DEADLINE_SPARE_NS
    replaces_hung: bool = True
    policy: Policy = DEFAULT

    @property
    def allowed(self) -> frozenset[Strategy]:
        """The strategies that may be used. None if recovery is off."""
        return self.strategies if self.recover else frozenset()

    @property
    def may_replace_hung(self) -> bool:
        """Whether a hung rank is replaced, without starting any other rank over."""
        return self.replaces_hung and Strategy.IN_PLACE in self.allowed


def losses(members: Membership) -> tuple[Loss, ...]:
    """Every rank that is dead now."""
    dead = [record for record in members.ranks if record.state is RankState.DEAD]
    moving = movers(members, dead)
    return tuple(loss_of(members, record, record.rank in moving) for record in dead)


def movers(members: Membership, starting: Sequence[RankRecord]) -> set[int]:
    """Those of these ranks that are to leave their node and for which another one has room, after all ranks without a
    node."""
    lost = [record for record in starting if _is_to_leave(members, record)]
    if not lost:
        return set()
    homes = {record.rank: record.node for record in starting if record.node is not None and record.node.starts}
    homeless = [record for record in starting if record.rank not in homes]
    room = _room(members, {rank: node for rank, node in homes.items() if members.ranks[rank] not in lost})
    found = set()
    for record in [*homeless, *lost]:
        best = _roomiest(room, record.where)
        if best:
            room[best] -= 1
            found.add(record.rank)
    return found.intersection(record.rank for record in lost)


def _is_to_leave(members: Membership, record: RankRecord) -> bool:
    """Whether its device is lost, or its node is to be vacated."""
    node = record.node
    if node is None or not node.starts:
        return False
    return node.name in members.vacated or members.lost_devices.at(record.rank, node.name) is not None


def _roomiest(room: dict[str, int], but: str) -> str:
    """The node with the most room, so that ranks lost together come back together. Empty: none has room."""
    best = max((name for name in room if name != but), key=lambda name: (room[name], name), default="")
    return best if best and room[best] > 0 else ""


def loss_of(members: Membership, record: RankRecord, moves: bool = False) -> Loss:
    """A dead rank, as the ladder sees it. `moves`: away from a lost device."""
    node = record.node
    device = members.lost_devices.at(record.rank, record.where)
    # An incarnation number is never used twice, so a rank that has used them all up cannot be started again.
    spent = record.incarnation >= limits.MAX_INCARNATION
    return Loss(
        rank=record.rank,
        node=record.where,
        exit_code=record.exit_code,
        reason=record.reason,
        restarts=limits.MAX_INCARNATION if spent else 0 if record.asked else record.restarts,
        home=node is not None and node.starts,
        watched_only=node is not None and not node.spawns,
        finished=record.done,
        device=-1 if device is None else device,
        moves=moves,
        given_up=record.given_up,
        events=events_of(record),
    )


def forecast(
    members: Membership,
    rules: Rules,
    history: History,
    irreplaceable: str,
    ranks: Iterable[int],
    reason: str,
    moves: bool,
    now: int,
) -> Decision:
    """What the ladder would decide if these ranks, which live, were ended for an operator. `moves`: away from their
    node; `irreplaceable`: as in the situation."""
    records = [members.ranks[rank] for rank in ranks]
    moving = {record.rank for record in records} if moves else movers(members, records)
    each = [(loss_of(members, record, record.rank in moving), record.incarnation) for record in records]
    wanted = tuple(
        replace(
            loss,
            exit_code=0,
            reason=reason,
            given_up=GivenUp.ASKED,
            restarts=loss.restarts if used >= limits.MAX_INCARNATION else 0,
        )
        for loss, used in each
    )
    return decide(
        Situation(
            losses=wanted,
            fallen=wanted,
            trouble="",
            world_size=members.world_size,
            left=tuple(members.in_state(RankState.LEFT)),
            allowed=rules.allowed,
            exhausted=frozenset(),
            max_restarts=rules.max_restarts,
            trained=members.trained,
            state_lost=False,
            objection=Objection(irreplaceable),
            repairing=False,
            all_start=True,
            ruling=history.ruling(faults(wanted), 0, now),
        )
    )


def events_of(record: RankRecord) -> frozenset[Event]:
    """What the death of a rank was, in the words of a policy."""
    reason = record.reason
    parts = reason.split("; ")  # an event of its device may stand before its own words
    if record.left:
        return frozenset({Event.LEFT_EARLY, Event.PROCESS_EXIT})
    if any(part.startswith(NOT_STARTED) for part in parts):
        return frozenset({Event.NOT_STARTED})
    if record.exit_code:
        found = {Event.PROCESS_EXIT}
        if any(part.startswith(FOR_ITS_MEMORY) for part in parts):
            found.add(Event.OUT_OF_MEMORY)
        elif reason and record.exit_code > 0:
            found.add(Event.EXCEPTION)
        return frozenset(found)
    if record.given_up is not None:
        return frozenset({Event.HANG if record.given_up is GivenUp.HUNG else Event.NOT_FOLLOWED})
    return frozenset({Event.PROCESS_EXIT if record.proved else Event.NODE_LOST})


def situation(
    members: Membership,
    incident: Incident,
    rules: Rules,
    repairing: bool,
    history: History,
    repair_ns: int,
    over: StartsOver,
    now: int,
) -> Situation:
    """Collect everything that the ladder reads. `repair_ns`: how long the repair has taken so far."""
    checkpoint = incident.checkpoint
    homeless = sum(record.node is None or not record.node.starts for record in members.ranks)
    room = 0
    if homeless:
        room = sum(members.free_slots(node) for node in members.nodes.values())
    at = {rank: place for place, rank in enumerate(incident.fallen)}
    most = max(rules.max_restarts, 1)
    vain = over.in_vain(members.steps_done, checkpoint.updates, now, most) if incident.is_own else ""
    lost = causes_first(sorted(losses(members), key=lambda loss: at.get(loss.rank, len(at))))
    return Situation(
        losses=lost,
        fallen=causes_first(incident.fallen.values()),
        trouble=incident.trouble,
        world_size=members.world_size,
        left=tuple(members.in_state(RankState.LEFT)),
        allowed=rules.allowed,
        exhausted=frozenset(incident.exhausted),
        max_restarts=rules.max_restarts,
        trained=members.trained,
        state_lost=incident.state_lost,
        objection=Objection(over.irreplaceable, vain),
        repairing=repairing,
        all_start=room >= homeless,
        saving=Saving(not over.damaged and can_save(members), checkpoint.updates >= 0, checkpoint.stops),
        ruling=history.ruling(faults(lost), repair_ns, now),
    )


def can_save(members: Membership) -> bool:
    """Whether ranks that live can write a last checkpoint of each part of the model."""
    parts = {record.part for record in members.ranks if record.saves}
    return bool(parts) and all(record.part in parts for record in members.ranks)


def with_their_nodes(members: Membership, ranks: Iterable[int]) -> list[RankRecord]:
    """The live ranks on the nodes of these ranks, as far as workers can be started there."""
    nodes = {node.name: node for rank in ranks if (node := members.ranks[rank].node) is not None and node.starts}
    beside = sorted(rank for node in nodes.values() for rank in node.ranks)
    return [members.ranks[rank] for rank in beside if members.ranks[rank].live]


def others_may_follow(members: Membership, rules: Rules) -> bool:
    """Whether some ranks live, but no step was trained yet: they may be dying of the same cause as the dead ones."""
    gone = members.counts[RankState.DEAD] + members.counts[RankState.LEFT]
    return rules.recover and not members.trained and gone < members.world_size


def choose_nodes(members: Membership, strategy: Strategy, avoid_home: bool) -> tuple[dict[int, NodeRecord], list[int]]:
    """A node for every rank that is to be started, and the ranks without room on any node."""
    starting = members.ranks if strategy is Strategy.RESPAWN else [members.ranks[loss.rank] for loss in losses(members)]
    moving = movers(members, starting) if strategy in (Strategy.RECOVER, Strategy.RESPAWN) else set()
    chosen: dict[int, NodeRecord] = {}
    homeless: list[RankRecord] = []
    for record in starting:
        if record.node is not None and record.node.starts and not avoid_home and record.rank not in moving:
            chosen[record.rank] = record.node
        else:
            homeless.append(record)
    if not homeless:
        return chosen, []
    room = _room(members, chosen)
    unplaced: list[int] = []
    for record in sorted(homeless, key=lambda one: one.rank in moving):
        best = _roomiest(room, record.where if avoid_home or record.rank in moving else "")
        if best:
            room[best] -= 1
            chosen[record.rank] = members.nodes[best]
        else:
            unplaced.append(record.rank)
    return chosen, unplaced


def _room(members: Membership, chosen: dict[int, NodeRecord]) -> dict[str, int]:
    """Free slots of every node that is up, less the slots that its own dead ranks will take again."""
    room = {name: members.free_slots(node) for name, node in members.nodes.items() if node.state is NodeState.UP}
    for rank, node in chosen.items():
        if members.ranks[rank].state is RankState.DEAD and node.name in room:
            room[node.name] -= 1
    return room


def resting(members: Membership, chosen: Iterable[int], now: int) -> list[RankRecord]:
    """Of the ranks that are to be started, those that are to rest before: their last starts came to nothing."""
    records = [members.ranks[rank] for rank in sorted(chosen)]
    dead = [record for record in records if record.state is RankState.DEAD]
    return [record for record in dead if record.restart is not None and record.restart.rests_until > now]


def rest_ns(resting: Iterable[RankRecord], now: int) -> int:
    """For how long these ranks still rest. 0: they do not."""
    return max([0, *(record.restart.rests_until - now for record in resting if record.restart is not None)])


def take_seats(members: Membership, chosen: dict[int, NodeRecord], epoch: int, alone: bool, now: int) -> list[Seat]:
    """Give these ranks their new seats in this epoch. Each start of a dead rank counts as a restart, unless an operator
    wanted it, and unless it comes to nothing (RankRecord.died). `alone`: the other ranks keep their processes.

    A rank that was never heard of may still have processes, on a node that has not reported them yet. No rank had more
    incarnations than there were epochs, so the epoch's number is newer than any incarnation of such a rank.
    """
    seats = []
    for rank in sorted(chosen):
        record, node = members.ranks[rank], chosen[rank]
        vain = record.restart.vain if record.restart is not None else 0
        counts = record.state is RankState.DEAD and not record.asked
        record.restarts += counts
        refused = record.given_up is GivenUp.REFUSED
        record.restart = Restart(now, vain, counts=counts, alone=alone, after_refusal=refused)
        members.seat(record, record.incarnation + 1 if record.incarnation else min(epoch, limits.MAX_INCARNATION), node)
        seats.append(Seat(rank, record.incarnation, node.name))
    return seats
