"""What a node's agent sees of a rank that stands still in the simulated job, and of the ranks that wait for it.

A beat page shows when its rank last made progress: it applied its update, or came to the step's collective. If there is
no progress after that, the agent inspects the process. Larger stories leave this out. The module does NOT choose which
rank stands still, and checks nothing (stand_watch.py).
"""

from __future__ import annotations

from dataclasses import replace

from taskd.core import limits
from taskd.core.events import Reading
from taskd.core.messages import Place, Still
from taskd.core.types import Doing, Phase
from taskd.core.waits import digest
from taskd.sim.crowd import Group
from taskd.sim.model import mix
from taskd.sim.worker import RAISED, REFUSED, SimWorker

MS = 1_000_000
MOST_RANKS = 64


def seen(worker: SimWorker, now: int) -> Reading:
    """What a page shows, and what the agent adds if the page shows no progress."""
    reading, group, crowd, stand = worker.reading(now), worker.group, worker.world.crowd, worker.stand
    if group is None or crowd.world_size > MOST_RANKS or reading.phase is Phase.PARKED:
        return reading
    comes_at = comes(group, worker.rank)
    inside = comes_at <= now and (stand is None or stand.since >= comes_at) and worker.plan not in (RAISED, REFUSED)
    applied_at = group.completed_at + crowd.apply_delay_ns(worker.rank, group.done)
    mark = max(at for at in (group.completed_at, applied_at, comes_at if inside else 0) if at <= now)
    if now - mark < limits.STILL_NS:
        return reading
    doing = Doing.SLEEPS if stand is None else stand.doing
    doing_since = mark if stand is None else max(mark, stand.since)
    age_ms, doing_ms = (now - mark) // MS, (now - doing_since) // MS
    still = Still(worker.rank, worker.incarnation, mark, age_ms, doing, doing_ms, "")
    number, done = digest(f"0@0-{crowd.world_size - 1}"), max(group.done, 0)
    return replace(reading, still=still, places=(Place(worker.rank, number, 1, done + inside, done),))


def comes(group: Group, rank: int) -> int:
    """When a rank that does not stand still comes to the step's collective."""
    pace = group.crowd.pace
    return group.completed_at + pace.compute_ns + mix((group.done << 20) ^ rank) % pace.spread_ns
