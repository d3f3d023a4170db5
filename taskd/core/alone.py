"""A launcher without a manager: when it gives the job up, since nobody is going to decide anything.

A pure question of times, apart from the agent that asks it. It does not act, and it does not look for a manager.
"""

from __future__ import annotations

from taskd.core import limits
from taskd.core.crew import Crew
from taskd.core.messages import Stop
from taskd.core.types import RankState
from taskd.core.words import exit_words, shell_code


def verdict(crew: Crew, term: int, alone_ns: int, idle_ns: int, linger_ns: int) -> Stop | str | None:
    """After so long without a connection, and so long without a process: Stop, the reason to leave, or None."""
    abandoned = alone_ns >= limits.ABANDONED_NS
    dead = [record for record in crew.ranks.values() if record.state is RankState.DEAD]
    if dead and abandoned:
        died = f"rank {dead[0].rank} died ({exit_words(dead[0].exit_code)})"
        reason = f"{died}, and for {limits.ABANDONED_NS // limits.SECOND} s there was no manager to replace it"
        return Stop(term, shell_code(dead[0].exit_code), reason)
    if not crew.ranks and term and abandoned:
        return "the manager is gone, and nobody will need this spare"
    if crew.ranks and not crew.live() and not dead and idle_ns >= linger_ns:
        return "all workers of this node have ended in good order"
    return None
