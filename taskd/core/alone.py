"""A launcher without a manager: when it gives the job up, since nobody is going to decide anything.

Ranks that train need no manager. Those that have been parked for a repair do: nobody else can let them go. So a repair
without a manager has a lease, and when that is over the node's ranks end, as they would have under another launcher.
A pure question of times, apart from the agent that asks it. It does not act, and it does not look for a manager.
"""

from __future__ import annotations

from taskd.core import limits
from taskd.core.crew import Crew
from taskd.core.messages import Order, Stop
from taskd.core.types import RankState, Stage
from taskd.core.words import exit_words, shell_code

LEASE_SECONDS = limits.ABANDONED_NS // limits.SECOND


def waits(crew: Crew, order: Order | None) -> str:
    """What this node's ranks wait for that only a manager can bring, as a sentence; empty if they wait for nothing."""
    if order is None or order.stage is Stage.RUNNING or not crew.live():
        return ""
    return (
        f"the manager is gone in the middle of a repair: this node's ranks wait for it, for {LEASE_SECONDS} s at most"
    )


def lease_over(crew: Crew, order: Order | None, alone_ns: int) -> Stop | None:
    """What ends ranks that have waited too long in a repair."""
    if order is None or alone_ns < limits.ABANDONED_NS or not waits(crew, order):
        return None
    return Stop(order.term, 1, f"for {LEASE_SECONDS} s there was no manager to end the repair that was under way")


def verdict(crew: Crew, term: int, alone_ns: int, idle_ns: int, linger_ns: int) -> Stop | str | None:
    """After so long without a connection, and so long without a process: Stop, the reason to leave, or None."""
    abandoned = alone_ns >= limits.ABANDONED_NS
    dead = [record for record in crew.ranks.values() if record.state is RankState.DEAD]
    if dead and abandoned:
        died = f"rank {dead[0].rank} died ({exit_words(dead[0].exit_code)})"
        reason = f"{died}, and for {LEASE_SECONDS} s there was no manager to replace it"
        return Stop(term, shell_code(dead[0].exit_code), reason)
    if not crew.ranks and term and abandoned:
        return "the manager is gone, and nobody will need this spare"
    if crew.ranks and not crew.live() and not dead and idle_ns >= linger_ns:
        return "all workers of this node have ended in good order"
    return None
