"""Faults that a training process finds itself: its script raises, or going on would be wrong.

A module of its own, since a living process with an error waits for an answer: a repair that replaces no rank, a start
of all ranks, or the message that there will be no repair. It does NOT choose the moment (faults.py).
"""

from __future__ import annotations

from taskd.core.events import Raised
from taskd.core.messages import Evidence
from taskd.core.types import EvidenceKind
from taskd.core.words import WOULD_BE_WRONG
from taskd.sim.setting import Setting
from taskd.sim.worker import RAISED, REFUSED, SimWorker
from taskd.sim.world import World

MS = 1_000_000
UNREPAIRED_NS = 15_000 * MS
"""If no answer to an error comes within this time, the process ends with the error."""
ERROR = "ValueError: data"
REFUSAL = f"{WOULD_BE_WRONG}the step computes with what no repair gives back"


def ends(world: Setting, victim: SimWorker) -> None:
    """The script does not catch the error: it is reported, and the process ends."""
    evidence = Evidence(EvidenceKind.EXCEPTION, victim.rank, victim.incarnation, victim.rank, 0, ERROR)
    victim.home.worker_says(victim, evidence)
    world.loop.after(world.rng.randint(0, 300 * MS), victim.die, 1, ERROR)


def waits(world: Setting, victim: SimWorker) -> None:
    """The error has left the step: ranks that come to the next collective wait there for this rank."""
    if victim.group is None or victim.finished:
        return
    _says(world, victim, ERROR, RAISED)


def refuses(world: World, victim: SimWorker) -> None:
    """The process finds in its step that going on would be wrong: all ranks have to start over."""
    if victim.group is None or victim.finished:
        return
    world.proofs.refused()
    _says(world, victim, REFUSAL, REFUSED)


def saves(world: World, victim: SimWorker) -> None:
    """The same. Whoever then writes the last checkpoint may fail."""
    for other in world.workers():
        if isinstance(other, SimWorker) and other is not victim and not other.plan:
            other.plan = world.rng.choice(("", "", "save-fail", "save-die", "save-hang"))
            other.harmed |= other.plan in ("save-die", "save-hang")
    refuses(world, victim)


def _says(world: Setting, victim: SimWorker, words: str, plan: str) -> None:
    assert victim.group is not None
    world.loop.tell(f"rank {victim.rank}", f"says: {words}")
    updates = victim.group.held_by(victim, world.loop.now)
    victim.group.breaks()
    victim.plan = plan
    victim.hear(Raised(updates, words))
    world.loop.after(UNREPAIRED_NS, _unanswered, victim, words)


def _unanswered(victim: SimWorker, words: str) -> None:
    if victim.plan in (RAISED, REFUSED):
        victim.die(1, words)
