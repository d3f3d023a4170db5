"""Times, and how the core's state machines compare them. A module of its own: manager and agent compare alike.

A time is an integer of nanoseconds, or None where there is no time: not yet, or no longer. The manager has two clocks,
which are passed together as a `Moment`. Code that needs only one of them takes only that one. Nothing here reads a
clock.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment on the two clocks of the manager."""

    now: int
    """The shell's clock: for people, and for repeated messages."""
    at: int
    """The manager's waking time, which stands still while it sleeps: for everything that is waited for."""


class Clocks:
    """The two clocks of the manager, as its steps have told them. Only this class adds up the time that the manager has
    slept. It does not decide what counts as sleep."""

    def __init__(self) -> None:
        self._now: int | None = None  # the shell's clock at the last step
        self._slept = 0  # how much of that time this manager has slept

    def read(self, now_ns: int) -> Moment:
        """Return the moment at this time of the shell's clock, which never goes back."""
        now = now_ns if self._now is None else max(now_ns, self._now)
        return Moment(now, now - self._slept)

    def advance(self, now_ns: int) -> int:
        """A step is taken at this time. Return how long ago the last one was."""
        now = self.read(now_ns).now
        gap = 0 if self._now is None else now - self._now
        self._now = now
        return gap

    def sleep(self, duration_ns: int) -> None:
        """The manager has slept for this long: its waking time stood still."""
        self._slept += duration_ns

    def now(self, at: int) -> int:
        """Return what the shell's clock will show at this waking time, if the manager does not sleep."""
        return at + self._slept


def earliest(*times: int | None) -> int | None:
    """Return the first of these times. None: never."""
    return min((time for time in times if time is not None), default=None)


def long_ago(time: int | None, now: int, least_ns: int) -> bool:
    """Whether `time` is at least `least_ns` ago, or never was."""
    return time is None or now - time >= least_ns


def lately(time: int | None, now: int, most_ns: int) -> bool:
    """Whether there is a `time`, at most `most_ns` ago."""
    return time is not None and now - time <= most_ns
