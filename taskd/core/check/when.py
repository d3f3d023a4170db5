"""When nodes are checked, and which of them: what an earlier check still says is not asked again.

A check costs seconds in which nobody trains, so there has to be a reason: the job starts, a node is new, or a fault may
come from the hardware. A script that raises an error says nothing about its node. Failure modes, and what follows:

- *A node is new*: it meets two of the old ones and nobody else. Three nodes can name a bad one among them.
- *There are no two old ones*: all are checked, since they are three at most.
- *A fault may come from the hardware*: its nodes are checked like new ones.
- *Software has crashed, and the last check is old or there was none*: all are checked. Otherwise nobody is.

Not here: the check itself (check.py), and when a decision about the set of nodes is made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from signal import Signals

from taskd.core import limits
from taskd.core.check.report import node_words
from taskd.core.policy.rules import Event, Fault

_OF_HARDWARE = {Event.NODE_LOST, Event.HANG}
_SIGNALS = {128 + number for number in (Signals.SIGBUS, Signals.SIGSEGV, Signals.SIGILL, Signals.SIGFPE)}
"""Signals that a damaged memory or processor may cause, as exit codes. A wrong pointer causes them, too."""


class Cause(Enum):
    """Why a check is considered."""

    START = "the job starts"
    NODES = "nodes are new"
    HARDWARE = "the fault may come from the hardware"
    SOFTWARE = "software has crashed"


@dataclass(frozen=True, slots=True)
class Due:
    """Which nodes are to be checked, and why. No node: nothing is to be done."""

    nodes: tuple[int, ...]
    reason: str


def cause_of(fault: Fault) -> Cause:
    """Whether this fault may come from the hardware."""
    hardware = bool(_OF_HARDWARE & fault.events) or fault.exit_code in _SIGNALS
    return Cause.HARDWARE if hardware else Cause.SOFTWARE


def due(cause: Cause, nodes: Collection[int], concerned: Iterable[int] = (), age_ns: int | None = None) -> Due:
    """Say who is to be checked. `nodes`: all that train. `concerned`: those that are new or had the fault. `age_ns`: of
    the last check of the others. None: there was none."""
    everyone = tuple(sorted(nodes))
    fresh = age_ns is not None and age_ns <= limits.CHECK_FRESH_NS
    if cause is Cause.START:
        return Due(everyone, "the job starts, so all nodes are checked")
    if cause is Cause.SOFTWARE:
        if fresh:
            return Due((), "software has crashed, and the last check is fresh: no node is checked")
        return Due(everyone, "software has crashed, and there is no fresh check: all nodes are checked")
    some = sorted(set(concerned) & set(everyone))
    others = [node for node in everyone if node not in some]
    if not some:
        return Due((), f"{cause.value}, and none of the nodes is concerned: no node is checked")
    if not fresh or len(others) < 2:
        return Due(everyone, f"{cause.value}, and too little is known of the other nodes: all nodes are checked")
    partners = others[:2]
    reason = (
        f"{cause.value}: {node_words(some)} {'is' if len(some) == 1 else 'are'} checked with {node_words(partners)}"
    )
    return Due(tuple(sorted([*some, *partners])), reason)
