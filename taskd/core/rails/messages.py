"""The messages of workers, agents and the manager about rails: the state of rails, and the ordered state.

The rules of `core/messages.py` hold, which also lists these messages: levels, not edges; every field is bounded.
They have no behaviour.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from taskd.core import limits
from taskd.core.fields import AtMost, Between, Count, Incarnation, Name, RailName, RankId, Text
from taskd.core.types import RailState


@dataclass(frozen=True, slots=True)
class RailReport:  # large: a message has as many fields as it tells
    """The state of one rail of a node toward one peer node, over all pairs of their ranks. Counters only grow while the
    agent lives. The node is its own peer if several of its ranks talk to each other over a rail."""

    rail: RailName
    peer: Name
    state: RailState  # the worst of the pairs: DOWN, PROBING, SUSPECT, UP
    age_ms: Annotated[int, Between(0, 2**53)]  # for how long the state has lasted
    pairs: Count  # pairs of ranks that use the rail between the two nodes
    pairs_up: Count
    pairs_moved: Count  # pairs whose rail has carried data, either way, since it was connected or ordered last
    bytes_out: Count
    bytes_in: Count
    round_trip_ns: Count  # the longest of the pairs; 0: not measured yet
    downs: Count  # how often the rail of a pair went down
    hedged: Count
    retransmitted: Count
    duplicates: Count
    last_error: Annotated[int, Between(0, limits.MAX_ERRNO)]  # an errno; 0: no error yet
    pairs_starved: Count = 0  # pairs without data since then, although other rails carried much between these ranks


@dataclass(frozen=True, slots=True)
class CountersShown:
    """A worker uses rails. The file descriptor of one transport's counters travels to the agent with this message. It
    is sent again after every welcome, since a new agent does not have it. The machines of the core never see it."""

    rank: RankId
    incarnation: Incarnation
    transport: RailName


@dataclass(frozen=True, slots=True)
class RailOrder:
    """The ordered state of one node's rails: the named rails carry nothing new, all others are in use. It is repeated
    until every rank of the node has answered. An order of an older term, or an older number of the term, is void."""

    term: Count
    number: Count  # grows over the whole job
    out: Annotated[tuple[RailName, ...], AtMost(limits.MAX_RAILS)]
    reason: Text


@dataclass(frozen=True, slots=True)
class RailsFollowed:
    """A worker has followed the rail order of this number, or says why it cannot. Sent again for a repeated order."""

    rank: RankId
    incarnation: Incarnation
    number: Count
    ok: bool
    reason: Text  # why it cannot; if it can, what its transport adds to the yes
