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


def earliest(*times: int | None) -> int | None:
    """The first of these times; None: never."""
    return min((time for time in times if time is not None), default=None)


def long_ago(time: int | None, now: int, least_ns: int) -> bool:
    """Whether it was so long ago at least, or never."""
    return time is None or now - time >= least_ns


def lately(time: int | None, now: int, most_ns: int) -> bool:
    """Whether it was at all, and so long ago at most."""
    return time is not None and now - time <= most_ns
