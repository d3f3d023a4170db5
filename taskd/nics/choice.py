"""Which rails this node has: those that the user named, or those that are found.

Named rails come from TASKD_RAILS, or from GLOO_SOCKET_IFNAME where only that is set. A named rail that does not exist
is the user's mistake, and is reported at once with the cure. There is one exception: for a rank that has run before, a
missing interface is a fault like any other, and the rails that are left carry. Found rails are interfaces that are up,
have a cable and an address of their own, and are neither loopback nor made by a container engine. The interface on the
way to the manager's host is also a found rail, whatever its kind, because all nodes have one. Only a connection shows
whether a found rail reaches the other nodes, so it is no fault if it never does (`expected` False). Nodes may have
different sets of rails, and one rail is enough. Loopback is the rail when there is nothing else, or when the whole job
is known to be on this host.

This module opens nothing and lists nothing (the caller has listed the interfaces). It does NOT talk to other nodes or
pair their rails with ours (csrc/rail/io/endpoint.hpp does).
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from taskd.config import Config
from taskd.core.limits import MAX_RAIL_NAME, MAX_RAILS
from taskd.errors import UsageError

CABLES = frozenset({"", "veth", "bond", "team", "vlan", "macvlan", "macvtap", "ipvlan", "ipoib"})
"""Kinds of interfaces that lead out of this host; empty: hardware. A bridge leads out if it contains one of these."""
LOOPBACK = "127.0.0.1"
PORTS_LEAST = 1024
HINT = "GLOO_SOCKET_IFNAME"
"""The variable that a gloo job has set already. The settings (taskd/config) use it where TASKD_RAILS is not set."""


class Address(Protocol):
    """The part of taskd._native.Address that is read here."""

    @property
    def text(self) -> str: ...


class Interface(Protocol):
    """The part of taskd._native.Interface that is read here; each property is explained there."""

    @property
    def name(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def up(self) -> bool: ...
    @property
    def carrier(self) -> bool: ...
    @property
    def loopback(self) -> bool: ...
    @property
    def master(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def addresses(self) -> Sequence[Address]: ...


Interfaces = Sequence[Interface]


@dataclass(frozen=True)
class Rail:
    """A local address with a name. Rails of other nodes may have the same name."""

    name: str
    address: str
    interface: str = ""  # the interface whose state is the rail's state; empty: none
    expected: bool = True  # False: found, not named; it counts as a rail to a peer only once it has reached that peer


def choose(
    config: Config,
    interfaces: Interfaces | None,
    one_host: bool | None = None,
    lost: list[str] | None = None,
) -> tuple[Rail, ...]:
    """The rails of this node, at least one. Raises UsageError for a named rail that is not possible.

    `interfaces`: None where the kernel does not list them. `one_host`: whether all ranks are on this host; None: what
    configuration and launcher tell. `lost`: if given, an impossible named rail is left out as long as another one is
    possible, and the sentence about it is added here.
    """
    if config.rail.rails:
        is_hint = config.sources.get("rail.rails", "").endswith(HINT)
        return _named(config.rail.rails, interfaces, HINT if is_hint else "TASKD_RAILS", lost)
    if interfaces is None:
        return (Rail("net", _way_to_others(config), expected=False),)
    local = known_to_be_on_one_host(config) if one_host is None else one_host
    found = () if local else _found(interfaces, _way_to_others(config))
    return found or (Rail("lo", LOOPBACK),)


def ports(config: Config) -> tuple[int, int]:
    """The first and the last port on which rails listen; (0, 0): any free port. Raises UsageError."""
    text = config.rail.ports
    if not text:
        return 0, 0
    first, last = (int(part) for part in text.split("-"))
    if not PORTS_LEAST <= first <= last <= 65535:
        raise UsageError(
            f"rail.ports: {text!r} is no range of ports; allowed: two numbers from {PORTS_LEAST} to 65535, "
            "the smaller one first, like 20000-20999"
        )
    return first, last


def known_to_be_on_one_host(config: Config) -> bool:
    """Whether configuration or launcher say so. Unknown means no: else a remote rank could never be reached."""
    if config.sources.get("job.node_nums"):
        return config.job.node_nums == 1
    world, local = os.environ.get("WORLD_SIZE", ""), os.environ.get("LOCAL_WORLD_SIZE", "")
    return bool(world) and world == local


# ---- named ----------------------------------------------------------------------------------------------------------


def _named(text: str, interfaces: Interfaces | None, variable: str, lost: list[str] | None = None) -> tuple[Rail, ...]:
    """The named rails. `variable`: where the user has named them, and can correct them."""
    parts = text.split(",")
    if lost is not None:
        parts = [part for part in parts if _there(part, interfaces, variable, lost)] or parts
    rails: list[Rail] = []
    for part in parts:
        left, equals, right = (piece.strip() for piece in part.partition("="))
        target = right if equals else left
        name = left if equals else left[:MAX_RAIL_NAME]
        rail = _of_address(name, target, interfaces) if _is_address(target) else None
        if rail is None and interfaces is None:
            raise UsageError(
                f"rail {name}: the kernel does not list interfaces here; name addresses in TASKD_RAILS instead"
            )
        rail = rail or _of_interface(name, target, interfaces or (), variable)
        for other in rails:
            if other.name == rail.name:
                raise UsageError(f"rail {name}: {variable} names it twice; give each rail a name of its own")
            if other.address == rail.address:
                raise UsageError(
                    f"rails {other.name} and {name}: both have the address {rail.address}, so they are one; "
                    f"name two interfaces, or two addresses, in {variable}"
                )
        rails.append(rail)
    if len(rails) > MAX_RAILS:
        raise UsageError(f"{variable} names {len(rails)} rails; {MAX_RAILS} at most can be used")
    return tuple(rails)


def _there(part: str, interfaces: Interfaces | None, variable: str, lost: list[str]) -> bool:
    """Whether this one named rail is possible; if not, the sentence with the reason is added to `lost`."""
    try:
        _named(part, interfaces, variable)
    except UsageError as error:
        lost.append(str(error))
        return False
    return True


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _of_address(name: str, target: str, interfaces: Interfaces | None) -> Rail:
    address = ipaddress.ip_address(target)
    # All of 127.0.0.0/8 belongs to loopback without being listed, so no interface's state applies to such an address.
    if address.is_loopback or interfaces is None:
        return Rail(name, str(address))
    for interface in interfaces:
        if str(address) in (found.text for found in interface.addresses):
            return Rail(name, str(address), interface.name)
    raise UsageError(
        f"rail {name}: no interface of this node has the address {target}; it has {_shown(interfaces)}; "
        "correct TASKD_RAILS, or give the address to an interface (`ip address add`)"
    )


def _of_interface(name: str, target: str, interfaces: Interfaces, variable: str) -> Rail:
    interface = next((found for found in interfaces if found.name == target), None)
    if interface is None:
        raise UsageError(
            f"rail {name}: this node has no interface {target}; it has {_shown(interfaces)}; correct {variable}"
        )
    address = _best(interface, loopback=True)
    if address is None:
        raise UsageError(
            f"rail {name}: the interface {target} has no address, so nothing can be sent over it; give it one "
            f"(`ip address add ADDRESS/PREFIX dev {target}`), or name another in {variable}"
        )
    return Rail(name, address, target)


def _shown(interfaces: Interfaces) -> str:
    shown = []
    for interface in interfaces:
        address = _best(interface, loopback=True)
        shown.append(f"{interface.name} ({address})" if address else interface.name)
    return ", ".join(shown) or "none"


# ---- found ----------------------------------------------------------------------------------------------------------


def _found(interfaces: Interfaces, way: str) -> tuple[Rail, ...]:
    """The found rails. `way`: the address at which other nodes reach this one, as far as this node can tell."""
    rails = []
    for interface in interfaces:
        is_way = not interface.loopback and way in (found.text for found in interface.addresses)
        is_cable = interface.carrier and not interface.master and leads_out(interface, interfaces)
        address = _best(interface)
        if is_way and (address is None or (":" in address) == (":" in way)):
            address = way
        if interface.up and (is_cable or is_way) and address is not None:
            rails.append(Rail(interface.name, address, interface.name, expected=False))
    # The rail that all nodes have is first: it is kept if there are too many, and pairs with its like.
    rails.sort(key=lambda rail: rail.address != way)
    return tuple(rails[:MAX_RAILS])


def _way_to_others(config: Config) -> str:
    """The address at which other nodes reach this one: the one that was set, else the local address on the way to the
    manager's host. Nothing is sent. Loopback if it is unknown."""
    if config.job.address:
        return config.job.address
    try:
        known = socket.getaddrinfo(config.manager.host, PORTS_LEAST, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return LOOPBACK
    for family, kind, _, _, place in known:
        with socket.socket(family, kind) as probe, contextlib.suppress(OSError):
            probe.connect(place)
            return str(probe.getsockname()[0])
    return LOOPBACK


def leads_out(interface: Interface, interfaces: Interfaces) -> bool:
    """Whether this interface leads to other hosts, and not only to containers of this host."""
    if interface.loopback:
        return False
    if interface.kind != "bridge":
        return interface.kind in CABLES
    # A veth connects each container to a docker bridge. A bridge that is the host's own way out contains a cable.
    parts = [part for part in interfaces if part.master == interface.number]
    return any(part.kind in CABLES - {"veth"} for part in parts)


def _best(interface: Interface, loopback: bool = False) -> str | None:
    """The address at which others reach this interface: IPv4 first, and no link-local or multicast address."""
    usable = []
    for found in interface.addresses:
        address = ipaddress.ip_address(found.text)
        if not (address.is_link_local or address.is_multicast or (address.is_loopback and not loopback)):
            usable.append(address)
    return str(min(usable, key=lambda address: address.version)) if usable else None
