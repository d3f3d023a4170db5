"""Which node keeps copies of whose records, and how the launchers find each other for it.

A node's ranks hand in their records at its neighbour, the next node that trains; when that one is gone too, at another
one and at last at the first node, without which there is no job; a spare's ranks begin at the first node. Each launcher
writes on the board where its keeper listens, and reads at once what it may need, for the board may be lost with a node.
Where the records of a rank are follows from the node on which it began, so nobody has to be asked about that; nothing
of it needs the manager.
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
"""A neighbour writes where it keeps copies within a moment of the first node's word, or it is gone already."""
SPARE = -1
_logger = log.get(__name__)


def open_keeper(ranks: Ranks, job: str, node: str, bind: str, key: keys.Key) -> Keeper | None:
    """This node's keeper, which others find from now on; None: it is a spare, or it can keep nothing."""
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
    """The keepers that this node may need, by the number of their node: a spare may start any rank."""
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
    """Where the ranks of this node hand in copies, in the order in which they try."""
    own = SPARE if ranks.spare else ranks.group_rank
    return [known[group] for group in _order(own, ranks.group_world_size) if group in known]


def places_of(ranks: Ranks, known: dict[int, Place], rank: int) -> list[Place]:
    """Where copies of this rank's records may be: handed in by the node on which it began, or by a spare."""
    count = ranks.group_world_size
    began = _order(ranks.rows[rank][0], count) if rank in ranks.rows else []
    return [known[group] for group in dict.fromkeys([*began, *_order(SPARE, count)]) if group in known]


def _order(own: int, count: int) -> list[int]:
    wanted = [(own + distance) % count for distance in range(1, NEIGHBOURS + 1)] + [0]
    return [group for group in dict.fromkeys(wanted) if group != own]


def _key(group: int) -> str:
    return f"keeper/{group}"


def _own_address(ranks: Ranks) -> str:
    """This host as the other nodes reach it: the address from which it would speak to the first one."""
    if ranks.group_rank == 0:
        return ranks.master_addr
    if ranks.spec.local_addr:
        return ranks.spec.local_addr
    try:
        family, kind, _, _, address = socket.getaddrinfo(ranks.master_addr, ranks.master_port, type=socket.SOCK_DGRAM)[
            0
        ]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # a datagram socket only chooses its way
            return str(probe.getsockname()[0])
    except OSError:
        return socket.getfqdn()
