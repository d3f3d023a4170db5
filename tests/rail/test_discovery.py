"""Which rails a node has. Named rails are used or refused with the cure; found rails are chosen with care."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskd import _native, config
from taskd.errors import UsageError
from taskd.nics import choice, discovery
from taskd.nics.choice import Rail
from tests.conftest import ROOT


def interface(name: str, *addresses: str, number: int = 0, **fields: Any) -> _native.Interface:
    """Return an interface that is up and has a cable, unless `fields` say otherwise."""
    found = []
    for address in addresses:
        text, _, prefix = address.partition("/")
        found.append(_native.Address((text, 6 if ":" in text else 4, int(prefix or 24))))
    given = {"up": True, "carrier": True, "loopback": False, "master": 0, "kind": "", **fields}
    row = (name, number, given["up"], given["carrier"], given["loopback"], given["master"], given["kind"])
    return _native.Interface((*row, tuple(found)))


LO = interface("lo", "127.0.0.1/8", "::1/128", number=1, loopback=True)
ETH0 = interface("eth0", "10.0.0.5", "fe80::1/64", number=2)
ETH1 = interface("eth1", "10.1.0.5", number=3)


def found(*interfaces: _native.Interface, rails: str = "", one_host: bool | None = False, **more: Any) -> list[Rail]:
    loaded = config.load(environ={}, rail={"rails": rails}, **more)
    return list(choice.choose(loaded, interfaces, one_host))


# ---- found


def test_every_cable_is_a_rail_of_its_own_name() -> None:
    assert found(LO, ETH0, ETH1) == [
        Rail("eth0", "10.0.0.5", "eth0", expected=False),
        Rail("eth1", "10.1.0.5", "eth1", expected=False),
    ]


@pytest.mark.parametrize(
    "other",
    [
        interface("eth9", "10.9.0.1", up=False),
        interface("eth9", "10.9.0.1", carrier=False),
        interface("eth9"),
        interface("eth9", "169.254.3.3/16", "fe80::2/64"),
        interface("eth9", "10.9.0.1", master=17),
        interface("docker0", "172.17.0.1/16", kind="bridge", number=9),
        interface("kube-ipvs0", "10.96.0.1/32", kind="dummy"),
        interface("flannel.1", "10.244.0.0/32", kind="vxlan"),
        interface("tunl0", "10.244.0.1/32", kind="ipip"),
        interface("tailscale0", "100.64.0.9/32", kind="tun"),
        interface("wg0", "10.8.0.2", kind="wireguard"),
    ],
    ids=lambda one: f"{one.name} {one.kind} {one.up}",
)
def test_what_leads_nowhere_is_left_out(other: _native.Interface) -> None:
    assert [rail.name for rail in found(LO, ETH0, other)] == ["eth0"]


def test_a_bridge_is_a_rail_if_it_holds_a_cable() -> None:
    docker = interface("docker0", "172.17.0.1/16", kind="bridge", number=9)
    container = interface("veth1a", number=10, kind="veth", master=9)
    br0 = interface("br0", "10.0.0.5", kind="bridge", number=11)
    port = interface("eth0", number=12, master=11)
    assert [rail.name for rail in found(LO, docker, container, br0, port)] == ["br0"]


@pytest.mark.parametrize("kind", ["veth", "bond", "vlan", "macvlan", "ipvlan", "ipoib"])
def test_the_way_out_of_a_container_and_cables_in_disguise_are_rails(kind: str) -> None:
    assert [rail.name for rail in found(LO, interface("eth0", "10.0.0.5", kind=kind))] == ["eth0"]


def test_ipv4_comes_before_ipv6_and_ipv6_alone_will_do() -> None:
    both = interface("eth0", "fd00::5/64", "10.0.0.5")
    only = interface("eth1", "fe80::5/64", "fd00::5/64")
    assert [rail.address for rail in found(both, only)] == ["10.0.0.5", "fd00::5"]


def test_loopback_is_the_rail_of_a_job_on_one_host_or_without_a_network() -> None:
    assert found(LO, ETH0, one_host=True) == found(LO, one_host=False) == [Rail("lo", "127.0.0.1")]


def test_one_host_is_believed_only_if_somebody_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [rail.name for rail in found(LO, ETH0, one_host=None)] == ["eth0"]
    assert [rail.name for rail in found(LO, ETH0, one_host=None, job_node_nums=1)] == ["lo"]
    assert [rail.name for rail in found(LO, ETH0, one_host=None, job_node_nums=2)] == ["eth0"]
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert [rail.name for rail in found(LO, ETH0, one_host=None)] == ["lo"]
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert [rail.name for rail in found(LO, ETH0, one_host=None)] == ["eth0"]


def test_more_cables_than_rails_can_be_are_cut() -> None:
    cables = [interface(f"eth{number}", f"10.{number}.0.1") for number in range(40)]
    assert len(found(*cables)) == 16
    kept = found(*cables, job_address="10.39.0.1")
    assert len(kept) == 16 and kept[0].name == "eth39", "the way to this node is none of those"


def test_the_way_to_this_node_is_a_rail_whatever_it_is_made_of() -> None:
    tunnel = interface("wg0", "10.8.0.2", kind="wireguard")
    assert found(LO, tunnel) == [Rail("lo", "127.0.0.1")]
    assert [rail.name for rail in found(LO, ETH0, tunnel, job_address="10.8.0.2")] == ["wg0", "eth0"]
    two = interface("eth0", "10.0.0.5", "10.7.0.5")
    assert found(LO, two, job_address="10.7.0.5") == [Rail("eth0", "10.7.0.5", "eth0", expected=False)]
    down = interface("wg0", "10.8.0.2", kind="wireguard", up=False)
    for nowhere in ("10.99.0.1", "127.0.0.1"):
        assert [rail.name for rail in found(LO, ETH0, down, job_address=nowhere)] == ["eth0"]


# ---- named


def test_interfaces_and_addresses_are_named_alike() -> None:
    assert found(LO, ETH0, ETH1, rails="a=eth1, b=10.0.0.5") == [
        Rail("a", "10.1.0.5", "eth1"),
        Rail("b", "10.0.0.5", "eth0"),
    ]
    assert found(LO, ETH0, ETH1, rails="eth1") == [Rail("eth1", "10.1.0.5", "eth1")]
    assert found(LO, rails="a=127.0.0.2,b=127.0.0.3") == [Rail("a", "127.0.0.2"), Rail("b", "127.0.0.3")]
    assert found(LO, rails="a=lo") == [Rail("a", "127.0.0.1", "lo")]
    assert found(interface("x", "fd00::5/64"), rails="a=fd00:0::5") == [Rail("a", "fd00::5", "x")]


def test_what_gloo_was_told_to_use_is_used() -> None:
    told = {"GLOO_SOCKET_IFNAME": "eth1"}
    assert choice.choose(config.load(environ=told), [LO, ETH0, ETH1]) == (Rail("eth1", "10.1.0.5", "eth1"),)
    both = told | {"TASKD_RAILS": "a=eth0"}
    assert choice.choose(config.load(environ=both), [LO, ETH0, ETH1]) == (Rail("a", "10.0.0.5", "eth0"),)
    with pytest.raises(UsageError, match=r"no interface eth1.*correct GLOO_SOCKET_IFNAME"):
        choice.choose(config.load(environ=told), [LO, ETH0])


def test_a_rank_that_ran_before_goes_on_over_what_is_left() -> None:
    """An interface that was removed is not the user's mistake. It is an error when no rail is left."""
    lost: list[str] = []
    named = config.load(environ={}, rail={"rails": "a=eth0,b=eth1,c=10.9.0.1"})
    assert choice.choose(named, [LO, ETH1], lost=lost) == (Rail("b", "10.1.0.5", "eth1"),)
    assert len(lost) == 2 and "no interface eth0" in lost[0] and "the address 10.9.0.1" in lost[1]
    with pytest.raises(UsageError, match="no interface eth0"):
        choice.choose(named, [LO], lost=lost)
    with pytest.raises(UsageError, match="no interface eth0"):
        choice.choose(named, [LO, ETH1])


def test_a_named_rail_that_is_down_now_may_come_back() -> None:
    down = interface("eth1", "10.1.0.5", up=False, carrier=False)
    assert found(LO, down, rails="a=eth1", one_host=True) == [Rail("a", "10.1.0.5", "eth1")]


@pytest.mark.parametrize(
    ("rails", "words"),
    [
        ("a=eth7", ["rail a", "no interface eth7", "lo (127.0.0.1), eth0 (10.0.0.5)", "correct TASKD_RAILS"]),
        ("a=bare0", ["rail a", "bare0 has no address", "ip address add"]),
        ("a=10.9.9.9", ["rail a", "no interface of this node has the address 10.9.9.9", "eth0 (10.0.0.5)"]),
        ("a=eth0,a=lo", ["rail a", "names it twice"]),
        ("a=eth0,b=10.0.0.5", ["rails a and b", "both have the address 10.0.0.5"]),
        (",".join(f"r{number}=127.0.1.{number}" for number in range(17)), ["names 17 rails", "16 at most"]),
    ],
)
def test_what_cannot_be_is_refused_with_the_cure(rails: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        found(LO, ETH0, interface("bare0", number=5), rails=rails)
    for word in words:
        assert word in str(refused.value)


def test_without_netlink_addresses_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> list[_native.Interface]:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(_native, "list_interfaces", refuse)
    named = config.load(environ={}, rail={"rails": "a=10.0.0.5"})
    assert discovery.find(named) == (Rail("a", "10.0.0.5"),)
    with pytest.raises(UsageError, match=r"rail a: the kernel does not list interfaces.*name addresses"):
        discovery.find(config.load(environ={}, rail={"rails": "a=eth0"}))
    placed = config.load(environ={}, job={"address": "10.0.0.5"})
    assert [rail.address for rail in discovery.find(placed)] == ["10.0.0.5"]


@pytest.mark.parametrize("text", ["0-0", "80-90", "20999-20000", "60000-70000"])
def test_impossible_ports_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no range of ports"):
        choice.ports(config.load(environ={}, rail={"ports": text}))


def test_ports_are_a_range_or_whatever_is_free() -> None:
    assert choice.ports(config.load(environ={})) == (0, 0)
    assert choice.ports(config.load(environ={"TASKD_RAIL_PORTS": "20000 - 20999"})) == (20000, 20999)


# ---- the real thing

LIST = """
import json
from taskd import config
from taskd.nics import discovery
print(json.dumps([[rail.name, rail.address, rail.interface] for rail in discovery.find(config.load(), False)]))
"""


@pytest.fixture
def space() -> Iterator[str]:
    name = f"taskd-found-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    yield name
    subprocess.run(["ip", "netns", "delete", name], check=True)


@pytest.mark.root
def test_the_rails_of_a_node_with_cables_and_containers(space: str, tmp_path: Path) -> None:
    def ip(*words: str) -> None:
        subprocess.run(["ip", "-n", space, *words], check=True)

    def listed(**variables: str) -> list[list[str]]:
        done = subprocess.run(
            ["ip", "netns", "exec", space, sys.executable, "-c", LIST],
            env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=True,
        )
        return list(json.loads(done.stdout))

    ip("link", "set", "lo", "up")
    assert listed() == [["lo", "127.0.0.1", ""]]
    for rail in (0, 1):
        ip("link", "add", f"eth{rail}", "type", "veth", "peer", "name", f"far{rail}")
        ip("address", "add", f"10.77.{rail}.1/24", "dev", f"eth{rail}")
        ip("link", "set", f"far{rail}", "up")
        ip("link", "set", f"eth{rail}", "up")
    ip("link", "add", "docker0", "type", "bridge")
    ip("address", "add", "172.17.0.1/16", "dev", "docker0")
    ip("link", "add", "box0", "type", "veth", "peer", "name", "box1")
    ip("link", "set", "box0", "master", "docker0")
    for name in ("docker0", "box0", "box1"):
        ip("link", "set", name, "up")
    both = [["eth0", "10.77.0.1", "eth0"], ["eth1", "10.77.1.1", "eth1"]]
    assert sorted(listed()) == both
    assert listed(TASKD_RAILS="b=eth1,a=10.77.0.1") == [["b", "10.77.1.1", "eth1"], ["a", "10.77.0.1", "eth0"]]
    ip("link", "set", "far1", "down")
    assert listed() == both[:1]
