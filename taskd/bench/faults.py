"""The faults of a rail between hosts: how each one begins, to the microsecond, and how it is undone.

hosts.py and sockets.py are the tools. This module gives the faults the names that tests and figures share. Only the
flapping rail waits here, because its rhythm is the fault.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from taskd.bench import sockets
from taskd.bench.hosts import Hosts

SLOW_MEGABITS = 10.0
FLAPS = 5
FLAP_S = 0.05
"""Shorter than the time that any link needs to come up again, so the rail is never usable for long."""


@dataclass(frozen=True)
class Fault:
    """One kind of fault. `inject` returns when it began, in nanoseconds of CLOCK_MONOTONIC."""

    name: str
    inject: Callable[[Hosts, int, str], int]
    heal: Callable[[Hosts, int, str], None]


def _down(hosts: Hosts, host: int, rail: str) -> int:
    begin_ns = time.monotonic_ns()
    hosts.down(host, rail)
    return begin_ns


def _up(hosts: Hosts, host: int, rail: str) -> None:
    hosts.up(host, rail)


def _vanish(hosts: Hosts, host: int, rail: str) -> int:
    begin_ns = time.monotonic_ns()
    hosts.unplug(host, rail)
    return begin_ns


def _reappear(hosts: Hosts, host: int, rail: str) -> None:
    hosts.plug(host, rail)


def _silence_one_way(hosts: Hosts, host: int, rail: str) -> int:
    begin_ns = time.monotonic_ns()
    hosts.silence(host, rail)
    return begin_ns


def _silence(hosts: Hosts, host: int, rail: str) -> int:
    """Let nothing arrive that this host sends on the rail, and nothing that is sent to it."""
    begin_ns = time.monotonic_ns()
    for other in hosts.hosts:
        hosts.silence(other.index, rail, None if other.index == host else host)
    return begin_ns


def _speak(hosts: Hosts, host: int, rail: str) -> None:
    for other in hosts.hosts:
        hosts.speak(other.index, rail)


def _reset(hosts: Hosts, host: int, rail: str) -> int:
    one = hosts.hosts[host]
    identities = sockets.connections(one, rail)
    begin_ns = time.monotonic_ns()
    sockets.reset(one, identities)
    return begin_ns


def _slow(hosts: Hosts, host: int, rail: str) -> int:
    begin_ns = time.monotonic_ns()
    hosts.slow(host, rail, SLOW_MEGABITS)
    return begin_ns


def _fast(hosts: Hosts, host: int, rail: str) -> None:
    hosts.fast(host, rail)


def _flap(hosts: Hosts, host: int, rail: str) -> int:
    begin_ns = time.monotonic_ns()
    for _ in range(FLAPS):
        hosts.down(host, rail)
        time.sleep(FLAP_S)  # the rhythm of the fault
        hosts.up(host, rail)
        time.sleep(FLAP_S)  # the rhythm of the fault
    return begin_ns


def _all_down(hosts: Hosts, host: int, rail: str) -> int:
    begin_ns = time.monotonic_ns()
    for each in hosts.rails:
        hosts.down(host, each)
    return begin_ns


def _all_up(hosts: Hosts, host: int, rail: str) -> None:
    for each in hosts.rails:
        hosts.up(host, each)


def _all_silent(hosts: Hosts, host: int, rail: str) -> int:
    begin_ns = time.monotonic_ns()
    for each in hosts.rails:
        _silence(hosts, host, each)
    return begin_ns


def _all_speak(hosts: Hosts, host: int, rail: str) -> None:
    for each in hosts.rails:
        _speak(hosts, host, each)


def _nothing(hosts: Hosts, host: int, rail: str) -> None:
    """Do nothing: this fault leaves nothing that must be undone."""


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("reset", _reset, _nothing),
        Fault("down", _down, _up),
        Fault("vanish", _vanish, _reappear),
        Fault("silence", _silence, _speak),
        Fault("one-way", _silence_one_way, _speak),
        Fault("slow", _slow, _fast),
        Fault("flap", _flap, _nothing),
        Fault("both-down", _all_down, _all_up),
        Fault("both-silent", _all_silent, _all_speak),
    )
}
