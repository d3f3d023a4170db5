"""Starts and ends this node's workers as the core orders, if the agent is a launcher.

A newcomer whose previous life was on another node waits for its records first (backup/heirs.py). On a spare that has
just come, it also waits until that node can start workers quickly. The result of a start is reported as an event: a
process, or the reason why there is none. A process that ends as soon as it is started has no record in the agent, so
its end is reported here as well.
It does NOT know how processes are made (a launcher's `Spawner` does), and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from taskd import log
from taskd.agent.deaths import UNKNOWN_EXIT
from taskd.agent.workers import Workers
from taskd.backup.heirs import Heirs
from taskd.core import effects, events
from taskd.core.words import cut
from taskd.errors import BackendError

_logger = log.get(__name__)


class Spawner(Protocol):
    """How a launcher starts and ends the workers of its node."""

    def prepared(self) -> bool:
        """Whether a worker started now starts as quickly as one can here. It will be so soon if it is not."""

    def spawn(self, seat: effects.Spawn) -> int:
        """Start a worker for this seat and return its pid at once. Raises BackendError, with a sentence, on failure."""

    def end(self, rank: int, pid: int) -> None:
        """End this worker's process without waiting for it."""

    def reap(self, pid: int) -> int | None:
        """The exit code (negative: the signal) of a worker that has ended; None if it lives or is no child of ours."""

    def excuse(self, pid: int) -> None:
        """Note that this worker has left in good order: a crash of its interpreter at shutdown is no failure."""


class Starter:
    """The starter of one node. Without a spawner it starts and ends nothing."""

    def __init__(
        self,
        spawner: Spawner | None,
        heirs: Heirs | None,
        workers: Workers,
        post: Callable[[events.AgentEvent], object],
    ) -> None:
        """`heirs`: given if ranks can move between this node and others. `post` takes an event."""
        self._spawner = spawner
        self._heirs = heirs
        self._workers = workers
        self._post = post
        self._held: dict[int, effects.Spawn] = {}
        """By rank: workers that wait until the node is prepared."""

    def begin(self) -> None:
        """Begin to copy records, if ranks can move between nodes."""
        if self._heirs is not None:
            self._heirs.start()

    def spawn(self, seat: effects.Spawn) -> None:
        """Start a worker for this seat, now or when its records have arrived."""
        if self._heirs is None or self._heirs.ready(seat):
            self._start(seat)

    def go_on(self) -> None:
        """Start the workers whose records have arrived meanwhile, and those that waited for this node."""
        if self._held and self._spawner is not None and self._spawner.prepared():
            held, self._held = self._held, {}
            for seat in held.values():
                self._start(seat)
        for seat, reason in self._heirs.settled() if self._heirs is not None else ():
            if reason:
                self._post(events.StartFailed(seat.rank, seat.incarnation, cut(reason)))
            else:
                self._start(seat)

    def end(self, effect: effects.End) -> None:
        """End this worker, or the wait for its start."""
        worker = self._workers.by_rank.get(effect.rank)
        held = self._held.get(effect.rank)
        if held is not None and held.incarnation == effect.incarnation:
            del self._held[effect.rank]
            self._post(events.StartFailed(effect.rank, effect.incarnation, cut(effect.reason)))
            return
        if self._heirs is not None and self._heirs.unwanted(effect.rank, effect.incarnation):
            self._post(events.StartFailed(effect.rank, effect.incarnation, cut(effect.reason)))
            return
        if self._spawner is None or worker is None or worker.incarnation != effect.incarnation:
            _logger.info("rank %d is to end (%s); this agent did not start it", effect.rank, effect.reason)
            return
        self._spawner.end(effect.rank, worker.pid)

    def close(self) -> None:
        """Stop copying records, and drop all waiting starts."""
        if self._heirs is not None:
            self._heirs.stop()

    def _start(self, seat: effects.Spawn) -> None:
        assert self._spawner is not None, "only an agent that spawns is told to"
        if not self._spawner.prepared():
            self._held[seat.rank] = seat
            return
        try:
            pid = self._spawner.spawn(seat)
        except BackendError as error:
            self._post(events.StartFailed(seat.rank, seat.incarnation, cut(str(error))))
            return
        self._post(events.Started(seat.rank, seat.incarnation, pid))
        worker = self._workers.meet(pid)
        if worker is None:
            code = self._spawner.reap(pid)
            reason = "it ended as soon as it was started"
            self._post(events.Gone(seat.rank, seat.incarnation, UNKNOWN_EXIT if code is None else code, reason))
            return
        self._workers.seat(worker, seat.rank, seat.incarnation)
