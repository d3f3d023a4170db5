"""Decides which node keeps copies of another node's records, and how the launchers find each other for that.

A node's ranks send their records to its neighbour, the next node that trains. If the neighbour is gone, they send to
another node, and at last to the first node, without which there is no job. A spare's ranks begin with the first node.
Each launcher writes its keeper's address on the board. It reads the addresses that it may need at once, because the
board may be lost with a node. The place of a rank's records follows from the node on which the rank began. So finding
them takes no questions and no manager.
It does NOT keep or send anything.
"""

from __future__ import annotations

import socket

from taskd import log
from taskd.backup.copies import Place
from taskd.backup.keeper import Keeper
from taskd.errors import BackendError, PeerError
from taskd.launch.ranks import Ranks
from taskd.wire import keys

NEIGHBOURS = 2
LOOK_SECONDS = 10.0
"""How long to wait for a neighbour's address. It comes a moment after the first node's word, or the neighbour is gone.
"""
SPARE = -1
_logger = log.get(__name__)


def open_keeper(ranks: Ranks, job: str, node: str, bind: str, key: keys.Key) -> Keeper | None:
    """Open this node's keeper and write its address on the board; None: the node is a spare, or no keeper can open."""
    if ranks.spare:
        return None
    keeper = None
    try:
        keeper = Keeper(job, node, bind, key)
        keeper.start()
    except BackendError as error:
        _logger.warning("%s; other nodes' ranks have to do without", error)
    place = [_own_address(ranks), keeper.records_port, keeper.port] if keeper is not None else None
    ranks.board.tell(_key(ranks.group_rank), place)
    return keeper


def learn(ranks: Ranks) -> dict[int, Place]:
    """The keepers that this node may need, by node number. A spare may start any rank, so it needs all."""
    count = ranks.group_world_size
    wanted = range(count) if ranks.spare else _order(ranks.group_rank, count)
    found = {}
    for group in wanted:
        try:
            place = ranks.board.read(_key(group), LOOK_SECONDS)
        except PeerError:
            place = None
        if place is not None:
            found[group] = Place(*place)
        else:
            _logger.warning("node %d of this job keeps no copies of other nodes' records", group)
    return found


def own_places(ranks: Ranks, known: dict[int, Place]) -> list[Place]:
    """The keepers to which this node's ranks send copies, in the order in which they try."""
    own = SPARE if ranks.spare else ranks.group_rank
    return [known[group] for group in _order(own, ranks.group_world_size) if group in known]


def places_of(ranks: Ranks, known: dict[int, Place], rank: int) -> list[Place]:
    """The keepers that may have copies of this rank's records, sent from the node on which it began, or by a spare."""
    count = ranks.group_world_size
    began = _order(ranks.rows[rank][0], count) if rank in ranks.rows else []
    return [known[group] for group in dict.fromkeys([*began, *_order(SPARE, count)]) if group in known]


def _order(own: int, count: int) -> list[int]:
    wanted = [(own + distance) % count for distance in range(1, NEIGHBOURS + 1)] + [0]
    return [group for group in dict.fromkeys(wanted) if group != own]


def _key(group: int) -> str:
    return f"keeper/{group}"


def _own_address(ranks: Ranks) -> str:
    """This host's address for the other nodes: the local address that it would use to reach the first node."""
    if ranks.group_rank == 0:
        return ranks.master_addr
    if ranks.spec.local_addr:
        return ranks.spec.local_addr
    try:
        family, kind, _, _, address = socket.getaddrinfo(ranks.master_addr, ranks.master_port, type=socket.SOCK_DGRAM)[
            0
        ]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # a datagram socket only chooses its route, and sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return socket.getfqdn()
