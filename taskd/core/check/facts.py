"""What nodes and the manager have seen in a check: the facts from which all verdicts follow.

A shell measures them and passes them in. Each fact is one's own word, of a node about itself (SelfTest), of one end of
a test about itself and its partner (Side), or of the manager (Contact). So that a word can be checked, both ends tell
the same things: the sender of a transfer says how it ended and how long it took, and so does the receiver. The
receiver's acknowledgement says whether the bytes were right, so the two agree if neither is mistaken.

What a shell has to keep:

- a time is the shortest of several tries in one test, and says nothing unless the way is OK;
- the work is a product of whole numbers with a known result, so it is right or wrong, and alike on all hardware;
- a node that did not answer in time has no SelfTest or no Side. Nobody answers for it, except that its agent says
  ENDED.

A fact may be false: nodes lie. Facts that contradict each other are evidence, and never raise. No judgement is here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Way(Enum):
    """How one transfer ended, as one end saw it."""

    OK = "worked"
    FAILED = "failed"  # there was no connection, or it broke
    LATE = "took too long"
    CORRUPT = "arrived damaged"


class Contact(Enum):
    """What the manager knows of a node after a turn."""

    HEARD = "heard"  # its agent answers
    SILENT = "silent"
    ENDED = "ended"  # its own host says that its probe has ended


@dataclass(frozen=True, slots=True)
class Work:
    """A matrix product and a copy in memory: what a node did, or what its partner saw of it."""

    right: bool = True
    compute_ns: int = 0
    memory_ns: int = 0


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What one node says of itself."""

    torch: str
    rails: tuple[tuple[str, Way], ...]  # each rail, and how a transfer from the node to itself over it ended
    work: Work = Work()
    local: Way = Way.OK  # the exchange between its own ranks

    @property
    def names(self) -> tuple[str, ...]:
        """The rails."""
        return tuple(name for name, _ in self.rails)


@dataclass(frozen=True, slots=True)
class Leg:
    """One rail in one test, as one end saw it: what it sent, and what it received."""

    rail: str
    sent: Way = Way.OK
    received: Way = Way.OK
    sent_ns: int = 0
    received_ns: int = 0


@dataclass(frozen=True, slots=True)
class Side:
    """What one node says of a test with another one."""

    legs: tuple[Leg, ...] = ()
    own: Work = Work()
    peer: Work | None = None  # None: no answer of the partner came
    elapsed_ns: int = 0  # how long the test took


@dataclass(frozen=True, slots=True)
class Outcome:
    """What both nodes of one test say. None: this node has said nothing in time."""

    nodes: tuple[int, int]
    sides: tuple[Side | None, Side | None]


@dataclass(frozen=True, slots=True)
class Turn:
    """Tests at the same time: no node is in two of them. An answer that is not there after `limit_ns` is none."""

    round: int
    number: int  # within the round
    pairs: tuple[tuple[int, int], ...]
    again: tuple[int, ...]  # nodes that test themselves once more before this turn
    limit_ns: int


@dataclass(frozen=True, slots=True)
class Answers:
    """All that came of one turn. A test without an outcome was answered by neither node; a node without a contact is
    taken for silent."""

    outcomes: tuple[Outcome, ...]
    contacts: tuple[tuple[int, Contact], ...]
    again: tuple[tuple[int, SelfTest], ...] = ()
