"""Faults of a script's own code: it raises, and its process ends or waits to do the step again.

Apart from what else may strike, since the error of a living process has an answer to wait for: a repair in which nobody
is replaced, or the word that there will be none. It does NOT choose the moment (faults.py).
"""

from __future__ import annotations

from taskd.core.events import Raised
from taskd.core.messages import Evidence
from taskd.core.types import EvidenceKind
from taskd.sim.setting import Setting
from taskd.sim.worker import RAISED, SimWorker

MS = 1_000_000
UNREPAIRED_NS = 15_000 * MS
"""An error that nobody answers goes on its way after this."""
ERROR = "ValueError: data"


def ends(world: Setting, victim: SimWorker) -> None:
    """Nobody has caught it: it is told, and the process ends."""
    evidence = Evidence(EvidenceKind.EXCEPTION, victim.rank, victim.incarnation, victim.rank, 0, ERROR)
    victim.home.worker_says(victim, evidence)
    world.loop.after(world.rng.randint(0, 300 * MS), victim.die, 1, ERROR)


def waits(world: Setting, victim: SimWorker) -> None:
    """It has left the step: whoever comes to the next collective waits there for this rank."""
    if victim.group is None or victim.finished:
        return
    world.loop.tell(f"rank {victim.rank}", f"raises {ERROR}")
    updates = victim.group.held_by(victim, world.loop.now)
    victim.group.breaks()
    victim.plan = RAISED
    victim.hear(Raised(updates, ERROR))
    world.loop.after(UNREPAIRED_NS, _unanswered, victim)


def _unanswered(victim: SimWorker) -> None:
    if victim.plan == RAISED:
        victim.die(1, ERROR)
