"""Reads the beat pages of this node's workers: how far each worker is, how old its beat is, and whether it works.

All pages are read at each interval. One page is read by itself when its process has ended: its last content shows at
which point of the step the process left. If a beat is overdue, the process' state is checked. Whether a rank works is
checked only during a repair, since that costs more. What it does is checked only if it makes no progress
(stillness.py). A page may hold any numbers; the values that leave this module are valid. It does NOT judge what it
reads: the core does.
"""

from __future__ import annotations

from collections.abc import Callable

from taskd import _native, log
from taskd.agent.deaths import Deaths
from taskd.agent.memory_kills import MemoryKills
from taskd.agent.stillness import StillWatch
from taskd.agent.workers import Worker, Workers
from taskd.core import events
from taskd.core.limits import MS
from taskd.core.messages import Place, Still
from taskd.core.types import PageFlag, Phase
from taskd.mistakes import Mistakes

BEAT_AGE_MS_MAX = 2**31
_logger = log.get(__name__)
_PHASES = frozenset(int(phase) for phase in Phase)


class Pages:
    """The beat pages of one node."""

    def __init__(self, workers: Workers, deaths: Deaths, memory: MemoryKills) -> None:
        self.on_compiles: Callable[[], None] = lambda: None
        """Called at each reading while a rank of this node has used torch's compiler."""
        self._workers = workers
        self._deaths = deaths
        self._memory = memory
        self.still = StillWatch(workers)
        self.mistakes = Mistakes(_logger, "the other ranks of this node are read on")
        self._carried = 0  # how many bytes all rails of this node have carried

    def read(self, now: int, closely: bool) -> events.Readings | None:
        """Read every page once; None: there is nothing to report. `closely`: also check whether the ranks work."""
        self._memory.look(now)
        watched = [
            worker for worker in self._workers.by_rank.values() if worker.page is not None and not worker.reported
        ]
        beats = _native.scan([worker.page for worker in watched if worker.page is not None])
        rails = self._workers.rails.read(now)
        if rails:
            self._carried = sum(line.bytes_out + line.bytes_in for line in rails)
        readings = []
        for worker, beat in zip(watched, beats, strict=True):
            if beat is None or beat.beat_count == 0:
                continue
            with self.mistakes.about(f"reading the page of rank {worker.rank}"):
                readings.append(self._read_one(worker, beat, now, closely))
        return events.Readings(tuple(readings), rails) if readings or rails else None

    def _read_one(self, worker: Worker, beat: _native.Beat, now: int, closely: bool) -> events.Reading:
        age_ns = max(0, now - beat.beat_ns)
        if age_ns > self._deaths.overdue_ns(beat.beat_period_ns):
            self._deaths.doubt(worker, now)
        if beat.flags & PageFlag.COMPILES:
            self.on_compiles()
        work = worker.effort.look(now, self._carried) if closely else 0
        return _reading(worker, beat, age_ns, work, self.still.read(worker, beat, now, self._carried))

    def last_word(self, rank: int) -> events.Readings | None:
        """Read the last content of a rank's page after its process has ended."""
        worker = self._workers.by_rank.get(rank)
        if worker is None or worker.page is None:
            return None
        (beat,) = _native.scan([worker.page])
        if beat is None or not beat.beat_count:
            return None
        return events.Readings((_reading(worker, beat, 0, worker.effort.work),), ())


_MOVES: tuple[None, tuple[Place, ...]] = (None, ())


def _reading(
    worker: Worker, beat: _native.Beat, age_ns: int, work: int, still: tuple[Still | None, tuple[Place, ...]] = _MOVES
) -> events.Reading:
    """Convert one reading of a page to the core's event."""
    step = max(-1, min(beat.step, 2**62))
    return events.Reading(
        rank=worker.rank,
        incarnation=worker.incarnation,
        epoch=min(beat.epoch, 2**31 - 1),
        step=step,
        phase=Phase(beat.phase) if beat.phase in _PHASES else Phase.SETUP,
        beat_age_ms=min(age_ns // MS, BEAT_AGE_MS_MAX),
        step_ms=worker.note_step(step, beat.progress_ns, beat.phase == Phase.PARKED),
        work=work,
        compiling=bool(beat.flags & PageFlag.COMPILING),
        still=still[0],
        places=still[1],
    )
