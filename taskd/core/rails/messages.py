"""What workers, agents and the manager say to each other about rails: how they stand, and how they shall stand.

The same rules as in `core/messages.py` hold, which lists these messages too: levels, not edges; every field bounded.
They hold no behaviour.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from taskd.core import limits
from taskd.core.fields import AtMost, Between, Count, Incarnation, Name, RailName, RankId, Text
from taskd.core.types import RailState


@dataclass(frozen=True, slots=True)
class RailReport:  # large: a message has as many fields as it tells
    """How one rail of a node stands toward one peer node, over all pairs of their ranks. Counters only grow, as long as
    the agent lives. The node itself is a peer when several of its ranks talk over a rail."""

    rail: RailName
    peer: Name
    state: RailState  # the worst of the pairs: DOWN, PROBING, SUSPECT, UP
    age_ms: Annotated[int, Between(0, 2**53)]  # for how long the state has been so
    pairs: Count  # of ranks that use the rail between the two nodes
    pairs_up: Count
    pairs_moved: Count  # whose rail has carried data, either way, since it was connected or ordered last
    bytes_out: Count
    bytes_in: Count
    round_trip_ns: Count  # the longest of the pairs; 0: not measured yet
    downs: Count  # how often the rail of a pair went down
    hedged: Count
    retransmitted: Count
    duplicates: Count
    last_error: Annotated[int, Between(0, limits.MAX_ERRNO)]  # the system's number for it; 0: none yet
    pairs_starved: Count = 0  # that have not, since then, while other rails carried much between the same two ranks


@dataclass(frozen=True, slots=True)
class CountersShown:
    """A worker uses rails: the descriptor of what one of its transports counts travels beside this, to its agent. Said
    again after every welcome, since a new agent knows nothing of it. The machines of the core never see it."""

    rank: RankId
    incarnation: Incarnation
    transport: RailName


@dataclass(frozen=True, slots=True)
class RailOrder:
    """How the rails of one node shall stand: those named carry nothing new, all others are in use. Repeated until
    every rank of the node has answered; one of an older term, or with an older number of the same term, is void."""

    term: Count
    number: Count  # grows over the whole job
    out: Annotated[tuple[RailName, ...], AtMost(limits.MAX_RAILS)]
    reason: Text


@dataclass(frozen=True, slots=True)
class RailsFollowed:
    """A worker has done what the rail order of this number says, or says why it cannot. Said again when told again."""

    rank: RankId
    incarnation: Incarnation
    number: Count
    ok: bool
    reason: Text  # why it cannot; or what its transport knows of it, beyond a yes
