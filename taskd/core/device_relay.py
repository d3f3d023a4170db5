"""The events of one node's devices: relayed to the manager, and given as the reason of a rank's death.

All events that are remembered go to the manager when a new one comes, and from time to time. What can go wrong, and
what follows:

- *A message is lost, or the manager has forgotten*: the events are sent again.
- *The driver shows processes under other numbers* (in a container): the device at the rank's place counts as its own,
  if its process has any device open. So another job's error on this node accuses no rank.
- *A device reports the same again and again*: it is counted. The number of different events is bounded.
- *An old event has nothing to do with a death*: an event that only ends a process explains the death of just that
  process, for a minute. A damaged device explains deaths of its rank for half an hour, a lost one explains them all.

Not here: what a device's numbers mean (taskd/devices), and what people are told (repair/devices.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from taskd.core import limits
from taskd.core.crew import Crew
from taskd.core.events import DeviceSeen
from taskd.core.local import LocalRank
from taskd.core.messages import DeviceEvent, DeviceReport, DeviceUser
from taskd.core.post import Post
from taskd.core.times import long_ago
from taskd.core.types import DeviceKind, Harm, RankState
from taskd.core.words import LEFT_EARLY, RAISED_AGAIN, cut, device_words, seconds


@dataclass(slots=True)
class Seen:
    """One event and the ranks that used its device: their incarnations by rank."""

    event: DeviceSeen
    users: dict[int, int]
    at: int
    times: int = 1

    def explains(self, record: LocalRank, now: int) -> bool:
        """Whether this may be why this process has died."""
        if self.event.kind is DeviceKind.LOST:
            return record.rank in self.users
        if self.event.harm is Harm.DEVICE:
            return record.rank in self.users and now - self.at <= limits.DEVICE_DAMAGED_NS
        own = self.users.get(record.rank) == record.incarnation
        return own and self.event.harm is Harm.PROCESS and now - self.at <= limits.DEVICE_NEAR_NS

    def report(self, now: int) -> DeviceEvent:
        """Return the event for the manager."""
        event = self.event
        what = (event.device, event.uuid, event.kind, event.code, event.text, event.harm)
        return DeviceEvent(*what, self.times, max(now - self.at, 0) // limits.MS)


class DeviceRelay:
    """The events of this node's devices."""

    def __init__(self, post: Post, crew: Crew) -> None:
        self._post = post
        self._crew = crew
        self._seen: dict[tuple[int, int, int], Seen] = {}
        self._places: dict[int, str] = {}  # by rank: the device at its place
        self._are_ours = False
        """Whether the driver has named a process of ours, so that it knows them by our numbers."""
        self._told_at: int | None = None

    def places(self, rank: int, device: str) -> None:
        """A rank says which device is at its place."""
        self._places[rank] = device

    def see(self, event: DeviceSeen, now: int) -> None:
        """A device has reported an event: tell the manager at once, if it is a new one."""
        key = (event.device, event.kind, event.code)
        users = self._users(event)
        known = self._seen.pop(key, None)
        if known is None and len(self._seen) >= limits.MAX_DEVICE_EVENTS:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = Seen(event, users or (known.users if known else {}), now, known.times + 1 if known else 1)
        if known is None:  # what comes again waits for the next report: a device may report without end
            self._told_at = None
            if (report := self.due(now)) is not None:
                self._post.send(report)

    def explain(self, record: LocalRank, now: int) -> None:
        """This process has died: name the event of its device that may be why.

        The event comes first, since an error that other ranks raise as well may follow it in the reason."""
        if record.state is not RankState.DEAD or record.ending:
            return
        found = [seen for seen in self._seen.values() if seen.explains(record, now)]
        if not found:
            return
        worst = max(found, key=lambda seen: (seen.event.harm, seen.at))
        words = f"{device_words(worst.event.device)} reported {worst.event.text} {seconds(now - worst.at)} s before"
        last = record.reason.startswith((LEFT_EARLY, RAISED_AGAIN))
        both = (record.reason, words) if last else (words, record.reason)
        record.reason = cut("; ".join(filter(None, both)))

    def again(self) -> None:
        """Send everything again: the manager may know nothing of it."""
        self._told_at = None

    def due(self, now: int) -> DeviceReport | None:
        """Return what is to be sent with the beat of now. None: nothing."""
        if not self._seen or not self._post.connected or not long_ago(self._told_at, now, limits.DEVICE_REPEAT_NS):
            return None
        self._told_at = now
        all_seen = list(self._seen.values())
        users = tuple(DeviceUser(place, rank) for place, seen in enumerate(all_seen) for rank in sorted(seen.users))
        return DeviceReport(tuple(seen.report(now) for seen in all_seen), users)

    def _users(self, event: DeviceSeen) -> dict[int, int]:
        """Return the incarnations of the ranks that use the event's device."""
        records = [record for record in self._crew.ranks.values() if record.pid]
        users = [record for record in records if record.pid in event.pids]
        self._are_ours |= bool(users)
        if not users and not (self._are_ours and event.pids):
            users = [one for one in records if one.pid in event.holders and self._at_place(one.rank, event)]
        return {record.rank: record.incarnation for record in users}

    def _at_place(self, rank: int, event: DeviceSeen) -> bool:
        name = self._places.get(rank, "")
        by_id = not name.isdecimal() and bool(event.uuid) and event.uuid.startswith(name)
        return bool(name) and (name == str(event.device) or by_id)
