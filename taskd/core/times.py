"""Times as the machines of the core compare them. Alone, since the manager's parts and the agent's compare alike.

A time is an integer of nanoseconds, and None where there is none: never yet, or no more. The manager has two clocks,
which travel together as a `Moment`: what needs one of them alone takes that one. Nothing here reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment on the two clocks of the manager."""

    now: int
    """The shell's clock: for people, and for what is said again."""
    at: int
    """The manager's waking time, which stands still while it sleeps: for all that is waited for."""


class Clocks:
    """The two clocks of the manager, as far as its steps have told them. It is there so that nobody else adds up what
    the manager has slept through; it does not say what counts as sleep."""

    def __init__(self) -> None:
        self._now: int | None = None  # the shell's clock at the last step
        self._slept = 0  # how much of it this manager has slept through

    def read(self, now_ns: int) -> Moment:
        """The moment at this time of the shell's clock, which never goes back."""
        now = now_ns if self._now is None else max(now_ns, self._now)
        return Moment(now, now - self._slept)

    def advance(self, now_ns: int) -> int:
        """A step is taken at this time; gives how long ago the last one was."""
        now = self.read(now_ns).now
        gap = 0 if self._now is None else now - self._now
        self._now = now
        return gap

    def sleep(self, duration_ns: int) -> None:
        """The manager has slept for so long: its waking time stood still."""
        self._slept += duration_ns

    def now(self, at: int) -> int:
        """What the shell's clock will show at this waking time, if the manager does not sleep."""
        return at + self._slept


def earliest(*times: int | None) -> int | None:
    """The first of these times; None: never."""
    return min((time for time in times if time is not None), default=None)


def long_ago(time: int | None, now: int, least_ns: int) -> bool:
    """Whether it was so long ago at least, or never."""
    return time is None or now - time >= least_ns


def lately(time: int | None, now: int, most_ns: int) -> bool:
    """Whether it was at all, and so long ago at most."""
    return time is not None and now - time <= most_ns
