"""The facts of a check as plain lists, as they travel between a probe, its launcher and the conductor.

What comes from another process is read strictly: whatever is not exactly as it must be is no answer. Numbers and names
have bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from taskd.core.check.facts import Leg, SelfTest, Side, Way, Work
from taskd.core.limits import MAX_RAILS
from taskd.errors import PeerError

_NAME_MOST = 64
_NS_MOST = 3_600 * 1_000_000_000
_Fact = TypeVar("_Fact")


def of_self_test(own: SelfTest) -> list[Any]:
    """Return what a node says of itself as lists."""
    return [own.torch, [[name, way.name] for name, way in own.rails], _of_work(own.work), own.local.name]


def self_test(said: Any) -> SelfTest:
    """Return what a node says of itself. Raises PeerError."""
    return _read(_self_test, said)


def of_side(side: Side) -> list[Any]:
    """Return what a node says of a test as lists."""
    legs = [[leg.rail, leg.sent.name, leg.received.name, leg.sent_ns, leg.received_ns] for leg in side.legs]
    return [legs, _of_work(side.own), None if side.peer is None else _of_work(side.peer), side.elapsed_ns]


def side(said: Any) -> Side:
    """Return what a node says of a test. Raises PeerError."""
    return _read(_side, said)


def _of_work(work: Work) -> list[Any]:
    return [work.right, work.compute_ns, work.memory_ns]


def _read(read: Callable[[Any], _Fact], said: Any) -> _Fact:
    try:
        return read(said)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise PeerError(f"a node has given an answer that cannot be read: {error!r}") from None


def _self_test(said: Any) -> SelfTest:
    torch, rails, work, local = said
    if len(rails) > MAX_RAILS:
        raise ValueError("too many rails")
    return SelfTest(_name(torch), tuple((_name(name), Way[way]) for name, way in rails), _work(work), Way[local])


def _side(said: Any) -> Side:
    legs, own, peer, elapsed = said
    if len(legs) > MAX_RAILS or len({leg[0] for leg in legs}) < len(legs):
        raise ValueError("too many rails, or one of them twice")
    read = tuple(Leg(_name(name), Way[sent], Way[got], _ns(out), _ns(into)) for name, sent, got, out, into in legs)
    return Side(read, _work(own), None if peer is None else _work(peer), _ns(elapsed))


def _work(said: Any) -> Work:
    right, compute, memory = said
    if not isinstance(right, bool):
        raise TypeError("right")
    return Work(right, _ns(compute), _ns(memory))


def _name(said: Any) -> str:
    if not isinstance(said, str) or not 0 < len(said) <= _NAME_MOST or not said.isprintable():
        raise ValueError("a name")
    return said


def _ns(said: Any) -> int:
    if type(said) is not int or not 0 <= said <= _NS_MOST:
        raise ValueError("a time")
    return said
