"""Where the rails of each node are, and which rails of different nodes belong together.

Nodes may give one network's interfaces different names, and routed networks are different ones with the same name. A
rail is paired by its network first, as the rails of a job are, and then by its name. In verdicts, all rails of a
network have the name that most nodes give it. What another node says of its rails is read strictly.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from taskd import _native
from taskd.core.limits import MAX_RAILS

_NAME_MOST = 64


class Place(NamedTuple):
    """Where a node listens on one rail."""

    address: str
    port: int
    network: str
    """Such as 10.0.0.0/24."""


Rails = dict[str, Place]
"""The rails of one node, by their names there."""


def networks(addresses: Mapping[str, str]) -> dict[str, str]:
    """Return the network of each of this node's rails, given by their addresses."""
    try:
        lengths = {one.text: one.prefix for interface in _native.list_interfaces() for one in interface.addresses}
    except OSError:  # the kernel does not list interfaces
        lengths = {}
    return {name: _network(text, lengths[text]) for name, text in addresses.items() if text in lengths}


def read(said: Any) -> Rails:
    """Read what another node says of its rails. What cannot be read is no rail."""
    found = Rails()
    for name, place in list(said.items())[:MAX_RAILS] if isinstance(said, dict) else ():
        match place:
            case [str(address), int(port), str(network)] if _is_fine(name, address, port, network):
                found[name] = Place(address, port, network)
    return found


def pairs(own: Rails, other: Rails) -> dict[str, Place]:
    """Return where the other node is on each of this node's rails that both have."""
    found, left = Rails(), dict(other)
    for of_network in (True, False):
        for name, place in own.items():
            if name in found:
                continue
            same = [key for key, one in left.items() if one.network and one.network == place.network]
            if not of_network:
                same = [name] if name in left else []
            if same:
                found[name] = left.pop(name if name in same else min(same))
    return found


def titles(nodes: Mapping[int, Rails]) -> dict[int, dict[str, str]]:
    """Return the name in verdicts of each rail of each node, by its name there."""
    by_network: dict[str, Counter[str]] = {}
    for rails in nodes.values():
        for name, place in rails.items():
            by_network.setdefault(place.network or name, Counter())[name] += 1
    usual = {network: min(names, key=lambda name: (-names[name], name)) for network, names in by_network.items()}
    found = {}
    for node, rails in nodes.items():
        named = {name: usual[place.network or name] for name, place in rails.items()}
        twice = len({*named.values()}) < len(named)
        found[node] = {name: name for name in named} if twice else named
    return found


def _is_fine(name: Any, address: str, port: int, network: str) -> bool:
    if not isinstance(name, str) or not 0 < len(name) <= _NAME_MOST or not name.isprintable():
        return False
    if type(port) is not int or not 0 < port < 1 << 16:
        return False
    try:
        ipaddress.ip_address(address)
        if network:
            ipaddress.ip_network(network)
    except ValueError:
        return False
    return True


def _network(address: str, prefix: int) -> str:
    return str(ipaddress.ip_network(f"{address.partition('%')[0]}/{prefix}", strict=False))
