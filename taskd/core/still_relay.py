"""Which ranks of one node make no progress, on the way to the manager. Alone, since this part belongs to the agent.

What a look at the pages found is told at once when something of it is new, and again every so often while a rank is
still; that none is any more is told once. A healthy job whose steps are short says nothing here. It does NOT judge what
it relays: a long step is no hang.
"""

from __future__ import annotations

from taskd.core import limits
from taskd.core.crew import Crew
from taskd.core.events import Reading
from taskd.core.messages import Stillness
from taskd.core.stands import OUTSIDE
from taskd.core.times import long_ago


class StillRelay:
    """What the next beat tells."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._still: dict[int, Reading] = {}
        self._told: tuple[object, ...] = ()  # what was told last, but for its ages
        self._told_at: int | None = None

    def read(self, readings: tuple[Reading, ...]) -> None:
        """A look at the pages."""
        for reading in readings:
            if reading.still is not None:
                self._still[reading.rank] = reading
            else:
                self._still.pop(reading.rank, None)

    def again(self) -> None:
        """The manager may know nothing of it."""
        self._told_at = None

    def due(self, now: int) -> Stillness | None:
        """What the beat of now tells; None: nothing."""
        if not self._still and not self._told:
            return None
        readings = [reading for reading in self._still.values() if self._lives(reading)]
        stills = [reading.still for reading in readings if reading.still is not None]
        places = tuple(place for reading in readings for place in reading.places)
        told = tuple((one.rank, one.incarnation, one.mark, one.doing, one.words) for one in stills)
        whole = (*told, places) if told else ()
        stopped = any(one.doing in OUTSIDE for one in stills)
        repeat_ns = limits.STILL_STOPPED_REPEAT_NS if stopped else limits.STILL_REPEAT_NS
        if whole == self._told and not long_ago(self._told_at, now, repeat_ns):
            return None
        if not whole and not self._told:
            return None
        self._told, self._told_at = whole, now
        return Stillness(tuple(stills[: limits.MAX_RANKS_PER_NODE]), places)

    def _lives(self, reading: Reading) -> bool:
        record = self._crew.ranks.get(reading.rank)
        return record is not None and record.live and record.incarnation == reading.incarnation
