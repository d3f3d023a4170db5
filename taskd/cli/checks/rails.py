"""The doctor's field "rails": what the ranks of this node would send tensors on the CPU over.

The inner group is rails, or gloo where the user asks for that, and then rails are not looked at. Named rails exist and
can be listened on, found ones are shown, enough ports of a given range are free, and the kernel tells when a cable is
pulled. It binds for a moment and connects to nobody: whether other nodes are reached is theirs to say as well. It does
NOT measure a rail.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING

from taskd.cli.checks import Finding, fault, ok, warning
from taskd.config import Config
from taskd.errors import UsageError
from taskd.nics import choice
from taskd.nics.choice import Rail

if TYPE_CHECKING:
    from taskd._native import Interface

TOPIC = "rails"
PROBED_PORTS_MAX = 1024
"""Of a very wide range the rest is taken to be like the beginning."""


def check(config: Config) -> list[Finding]:
    """Every finding of this field."""
    if config.worker.inner != "rail":
        words = f"{config.worker.inner}, as worker.inner says: a lost connection costs a step; rails are not used"
        return [ok(TOPIC, "inner group", words)]
    watched, interfaces = _interfaces()
    try:
        rails = choice.choose(config, interfaces)
    except UsageError as error:
        return [watched, fault(TOPIC, "rails", str(error), "correct it before the job starts"), _range(config, ())]
    return [_inner(rails), watched, *(_rail(rail, interfaces or []) for rail in rails), _range(config, rails)]


def _inner(rails: tuple[Rail, ...]) -> Finding:
    words = f"rail, over {', '.join(rail.name for rail in rails)}"
    if not any(rail.expected or rail.address == choice.LOOPBACK for rail in rails):
        words += "; a job of one node uses loopback"
    return ok(TOPIC, "inner group", words)


def _interfaces() -> tuple[Finding, list[Interface] | None]:
    try:
        from taskd import _native  # which may be what is wrong here: the doctor has to be able to say so
    except ImportError:
        return warning(
            TOPIC,
            "netlink",
            "what lists the interfaces does not load, so rails can be told by address only",
            "mend taskd._native first (above)",
        ), None
    try:
        interfaces = _native.list_interfaces()
    except OSError as error:
        return warning(
            TOPIC,
            "netlink",
            f"the kernel does not tell about interfaces ({error.strerror}): a pulled cable is noticed by silence only",
            "allow AF_NETLINK sockets in this container, and name rails by address (TASKD_RAILS=a=ADDRESS)",
        ), None
    return ok(TOPIC, "netlink", f"the kernel tells about {len(interfaces)} interfaces and their changes"), interfaces


def _rail(rail: Rail, interfaces: list[Interface]) -> Finding:
    check = f"rail {rail.name}"
    where = f"{rail.address} on {rail.interface}" if rail.interface else rail.address
    interface = next((found for found in interfaces if found.name == rail.interface), None)
    if interface is not None and not (interface.up and interface.carrier):
        trouble = "is switched off" if not interface.up else "has no carrier: its cable leads nowhere"
        cure = f"`ip link set {rail.interface} up`" if not interface.up else "plug it in, or look at the other end"
        return warning(TOPIC, check, f"{where}: the interface {trouble}; other rails would carry for it", cure)
    number = _listen(rail.address, 0)
    if number:
        return fault(
            TOPIC,
            check,
            f"{where}: nobody can listen there ({os.strerror(number)})",
            "correct TASKD_RAILS, or the address of the interface",
        )
    return ok(TOPIC, check, f"{where}, {'named' if rail.expected else 'found'}")


def _range(config: Config, rails: tuple[Rail, ...]) -> Finding:
    try:
        first, last = choice.ports(config)
    except UsageError as error:
        return fault(TOPIC, "ports", str(error), "correct TASKD_RAIL_PORTS")
    if not first:
        return ok(TOPIC, "ports", "whatever is free; name a range by TASKD_RAIL_PORTS where a firewall asks for it")
    needed = max(1, config.job.proc_per_node)
    for rail in rails:
        free = sum(
            _listen(rail.address, port) == 0 for port in range(first, min(last, first + PROBED_PORTS_MAX - 1) + 1)
        )
        if free < needed and last - first < PROBED_PORTS_MAX:
            words = f"{free} of {last - first + 1} ports are free on {rail.address} and {needed} ranks need one each"
            cure = "end who has them, or widen TASKD_RAIL_PORTS on every node"
            return fault(TOPIC, "ports", words, cure)
    return ok(TOPIC, "ports", f"{first} to {last}: enough are free for {needed} ranks on every rail")


def _listen(address: str, port: int) -> int:
    """0 when this address and port can be listened on, or the errno. The socket is closed at once."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            return error.errno or errno.EINVAL
    return 0
