"""Running a journal through the core again: what a restarted manager does, and what `taskd replay` compares.

The core is fed the recorded events at the recorded times; beats that changed nothing were never written down, so what
it decides rests on the rows alone. The same rows give the same decisions: `differences` names the first step where
they do not, which would be a fault of the core (or of another version of it).

It does NOT write anything and sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from taskd.config import Config
from taskd.core import limits
from taskd.core.effects import ManagerEffect, Tell
from taskd.core.manager import Manager
from taskd.core.messages import Answer
from taskd.core.repair.ladder import REPAIRS
from taskd.core.types import Strategy
from taskd.manager import record, snapshot
from taskd.manager.journal import Row, Snapshot
from taskd.manager.snapshot import Told


@dataclass(frozen=True)
class Step:
    """One recorded step, and what the core does at it now. A step without events was written for its notes alone."""

    row: Row
    recorded: list[ManagerEffect]
    effects: list[ManagerEffect]


class Decisions:
    """What of a step's effects is a decision. Repetitions are none: they depend on beats that no journal holds."""

    def __init__(self) -> None:
        self._told: set[tuple[str, bytes]] = set()

    def among(self, effects: list[ManagerEffect]) -> list[ManagerEffect]:
        """The effects without what was told to the same node before, and without empty answers; terms are 0."""
        return [effect for effect in record.effects_of(record.effects_row(effects)) if self._new(effect)]

    def _new(self, effect: ManagerEffect) -> bool:
        if not isinstance(effect, Tell):
            return True
        message = effect.message
        if isinstance(message, Answer):
            return bool(message.confirmed or message.refused or not message.accepted)
        key = (effect.node, record.effects_row([effect]))
        if key in self._told:
            return False
        self._told.add(key)
        return True


def settings_of(config: Config) -> dict[str, Any]:
    """What a core is made from, as JSON; kept with the journal, since other settings would decide otherwise."""
    return {
        "job": config.job.id,
        "world_size": config.job.node_nums * config.job.proc_per_node,
        "node_count": config.job.node_nums,
        "strategies": sorted(config.recover.allowed),
        "recover": config.recover.process_recover,
        "max_restarts": config.recover.max_restarts,
        "spare_wait_ms": config.recover.spare_wait_ms,
        "hang": config.recover.hang,
    }


def make_core(settings: dict[str, Any], term: int) -> Manager:
    """A core that knows nothing yet; raises Unreadable where another version of taskd wrote the settings."""
    missing = sorted(set(settings_of(Config())) - set(settings))
    if missing:
        raise record.Unreadable(f"another version of taskd wrote it: its settings lack {', '.join(missing)}")
    strategies = {Strategy(name) for name in settings["strategies"]}
    # Starting everybody again has no name among the words that users write: it is part of whatever repair they allow.
    if strategies & REPAIRS:
        strategies.add(Strategy.RESPAWN)
    return Manager(
        job=settings["job"],
        world_size=settings["world_size"],
        node_count=settings["node_count"],
        strategies=frozenset(strategies),
        recover=settings["recover"],
        max_restarts=settings["max_restarts"],
        term=term,
        spare_wait_ns=settings["spare_wait_ms"] * limits.MS,
        replaces_hung=settings["hang"] == "replace",
    )


def beginning(settings: dict[str, Any], term: int, kept: Snapshot | None) -> tuple[Manager, list[Told]]:
    """The core before the first row of a journal, and the notes for people so far; raises Unreadable."""
    return (make_core(settings, term), []) if kept is None else snapshot.unpacked(kept.state)


def steps(core: Manager, rows: Iterable[Row]) -> Iterator[Step]:
    """Feed the rows to the core one by one; raises Unreadable (or journal.Broken) at a row that is none."""
    for row in rows:
        effects: list[ManagerEffect] = []
        for event in record.events_of(row.events):
            effects += core.replay(row.at_ns, event)
        yield Step(row, record.effects_of(row.effects), effects)
