"""Relays to the manager which ranks of one node make no progress. A module of its own, as it belongs to the agent.

The result of a reading of the beat pages is sent at once when something in it is new. While a rank is still, it is sent
again from time to time. When no rank is still any more, this is sent once. A healthy job with short steps sends nothing
here. This module does NOT judge what it relays: a long step is no hang.
"""

from __future__ import annotations

from taskd.core import limits
from taskd.core.crew import Crew
from taskd.core.events import Reading
from taskd.core.messages import Stillness
from taskd.core.stands import OUTSIDE
from taskd.core.times import long_ago


class StillRelay:
    """The still ranks of one node, and what the manager was last told of them."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._still: dict[int, Reading] = {}
        self._told: tuple[object, ...] = ()  # what was sent last, without the ages
        self._told_at: int | None = None

    def read(self, readings: tuple[Reading, ...]) -> None:
        """Take a reading of the beat pages."""
        for reading in readings:
            if reading.still is not None:
                self._still[reading.rank] = reading
            else:
                self._still.pop(reading.rank, None)

    def again(self) -> None:
        """Send it again: the manager may know nothing of it."""
        self._told_at = None

    def due(self, now: int) -> Stillness | None:
        """Return what is to be sent with the beat of now. None: nothing."""
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
