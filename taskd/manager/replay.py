"""Runs a journal through the core again: a restarted manager does this, and `taskd replay` compares the results.

The core is given the recorded events at the recorded times. Beats that changed nothing were never recorded, so its
decisions depend on the rows alone. The same rows give the same decisions: `differences` names the first step where
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
from taskd.core.policy.rules import DEFAULT
from taskd.core.repair.ladder import REPAIRS
from taskd.core.types import Strategy
from taskd.errors import UsageError
from taskd.manager import record, snapshot
from taskd.manager.journal import Row, Snapshot
from taskd.manager.snapshot import Told
from taskd.policy import Source, parse

POLICY = "policy"
"""The name of the policy among the settings of a core. It is absent where the user has none."""


@dataclass(frozen=True)
class Step:
    """One recorded step, and the core's effects now. A step without events was written only for its notes."""

    row: Row
    recorded: list[ManagerEffect]
    effects: list[ManagerEffect]


class Decisions:
    """Selects the decisions among a step's effects. Repetitions are none: no journal holds the beats behind them."""

    def __init__(self) -> None:
        self._told: set[tuple[str, bytes]] = set()

    def among(self, effects: list[ManagerEffect]) -> list[ManagerEffect]:
        """The effects without repeated messages to the same node and without empty answers; their terms are 0."""
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


def settings_of(config: Config, source: Source | None = None) -> dict[str, Any]:
    """The values from which a core is made, ready for JSON. The journal keeps them: others would change decisions.

    `source`: the policy file's text, which is kept as it is."""
    written = {} if source is None else {POLICY: {"name": source.name, "text": source.text}}
    return written | {
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
    """A new core without any state. Raises Unreadable if another version of taskd wrote the settings, and UsageError if
    the policy in them is wrong."""
    missing = sorted(set(settings_of(Config())) - set(settings))
    if missing:
        raise record.Unreadable(f"another version of taskd wrote it: its settings lack {', '.join(missing)}")
    strategies = {Strategy(name) for name in settings["strategies"]}
    # Users have no word for the strategy that starts all ranks again: it is part of every repair that they allow.
    if strategies & REPAIRS:
        strategies.add(Strategy.RESPAWN)
    policy = parse(Source(**settings[POLICY])) if settings.get(POLICY) else DEFAULT
    return Manager(
        job=settings["job"],
        world_size=settings["world_size"],
        node_count=settings["node_count"],
        strategies=frozenset(strategies),
        recover=settings["recover"],
        max_restarts=settings["max_restarts"] if policy.limit is None else policy.limit,
        term=term,
        spare_wait_ns=settings["spare_wait_ms"] * limits.MS,
        replaces_hung=settings["hang"] == "replace",
        policy=policy,
    )


def beginning(settings: dict[str, Any], term: int, kept: Snapshot | None) -> tuple[Manager, list[Told]]:
    """The core before the first row of a journal, and the notes for people so far; raises Unreadable."""
    if kept is not None:
        return snapshot.unpacked(kept.state)
    try:
        return make_core(settings, term), []
    except UsageError as error:
        raise record.Unreadable(f"another version of taskd took its policy: {error}") from None


def steps(core: Manager, rows: Iterable[Row]) -> Iterator[Step]:
    """Feed the rows to the core one by one; raises Unreadable (or journal.Broken) at an invalid row."""
    for row in rows:
        effects: list[ManagerEffect] = []
        for event in record.events_of(row.events):
            effects += core.replay(row.at_ns, event)
        yield Step(row, record.effects_of(row.effects), effects)
