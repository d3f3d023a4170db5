"""Ranks find each other over any network that works, or get one sentence that says why not. They never wait in vain.

The ranks are real processes. They run on this host, or each in its own network namespace. A namespace stands for a
host, and some of its interfaces lead elsewhere. The choice of interfaces is tested in tests/rail/test_discovery.py.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.patience import PATIENCE_S

NURSERY = Path(__file__).parent / "workers" / "nursery.py"
numbers = itertools.count()


class Host:
    """A network namespace. It exists until it is closed."""

    def __init__(self) -> None:
        self.name = f"taskd-reach-{os.getpid()}-{next(numbers)}"
        subprocess.run(["ip", "netns", "add", self.name], check=True)

    def close(self) -> None:
        subprocess.run(["ip", "netns", "delete", self.name], check=True)

    def ip(self, *words: str) -> None:
        subprocess.run(["ip", "-n", self.name, *words], check=True)

    def up(self, interface: str, address: str = "") -> None:
        if address:
            self.ip("address", "add", address, "dev", interface)
        self.ip("link", "set", interface, "up")

    def dead_end(self, interface: str, address: str) -> None:
        """Add an interface that has a cable and an address but leads to no other host."""
        self.ip("link", "add", interface, "type", "veth", "peer", "name", f"{interface}far")
        self.up(f"{interface}far")
        self.up(interface, address)

    def containers(self) -> None:
        """Add what a container engine creates on every host: a bridge with one fixed address, and a container."""
        self.ip("link", "add", "docker0", "type", "bridge")
        self.ip("link", "add", "box0", "type", "veth", "peer", "name", "box1")
        self.ip("link", "set", "box0", "master", "docker0")
        self.up("box0")
        self.up("box1")
        self.up("docker0", "172.17.0.1/16")


def cable(one: tuple[Host, str], other: tuple[Host, str]) -> None:
    """Connect two hosts by a cable, with an interface at each end."""
    (host, interface), (far, far_interface) = one, other
    host.ip("link", "add", interface, "type", "veth", "peer", "name", far_interface, "netns", far.name)


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    made = Host(), Host()
    for host in made:
        host.up("lo")
    yield made
    for host in made:
        host.close()


Run = Callable[..., list[tuple[int, str]]]


@pytest.fixture(scope="module")
def nursery() -> Iterator[subprocess.Popen[str]]:
    """Start a process that loads torch once and forks the ranks of all tests in this file."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, str(NURSERY)], env=environment, stdin=pipe, stdout=pipe, text=True)
    yield process
    process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def run(nursery: subprocess.Popen[str], tmp_path: Path) -> Run:
    """Run one rank per environment, on these hosts or here; None: it never comes. Returns exit codes and output."""

    def ranks(
        *environments: dict[str, str] | None, hosts: Sequence[Host] = (), limit_s: float = PATIENCE_S
    ) -> list[tuple[int, str]]:
        folder = tmp_path / f"ranks-{next(numbers)}"
        folder.mkdir()
        order = {
            "folder": str(folder),
            "limit_s": limit_s,
            "environments": environments,
            "spaces": [host.name for host in hosts] or [""] * len(environments),
        }
        assert nursery.stdin is not None and nursery.stdout is not None
        nursery.stdin.write(json.dumps(order) + "\n")
        nursery.stdin.flush()
        codes: list[int] = json.loads(nursery.stdout.readline())
        return [(code, (folder / f"said{rank}").read_text()) for rank, code in enumerate(codes)]

    return ranks


def reports(found: list[tuple[int, str]]) -> list[dict[str, Any]]:
    assert [code for code, _ in found] == [0] * len(found), found
    return [json.loads(next(line for line in words.splitlines() if line.startswith("{"))) for _, words in found]


# ---- on this host


def test_rails_carry_what_the_script_calls_gloo(run: Run) -> None:
    one_node = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    for said in reports(run(one_node, one_node)):
        assert said == {"rails": ["lo"], "sum": 2.0, "name": "gloo"}


def test_gloo_carries_where_it_is_asked_for(run: Run) -> None:
    asked = {"TASKD_INNER": "gloo"}
    for said in reports(run(asked, asked)):
        assert said == {"rails": [], "sum": 2.0, "name": "gloo"}


def test_different_inner_groups_are_named_on_every_rank(run: Run) -> None:
    for code, words in run({}, {"TASKD_INNER": "gloo"}, {}):
        assert code == 1 and "rank 1 over gloo and rank 0, 2 over rail; set the same TASKD_INNER" in words, words


@pytest.mark.parametrize("inner", ["rail", "gloo"])
def test_a_rank_that_cannot_come_says_why_to_all(run: Run, inner: str) -> None:
    well = {"TASKD_INNER": inner}
    (code, words), *others = run({**well, "GLOO_SOCKET_IFNAME": "nowhere0"}, well, well)
    assert code == 1 and "nowhere0" in words and (inner == "gloo" or "correct GLOO_SOCKET_IFNAME" in words), words
    for code, words in others:
        assert code == 1 and "rank 0 cannot come: " in words and "nowhere0" in words, words


def test_a_rank_that_does_not_come_is_named(run: Run) -> None:
    _, (code, words) = run(None, {}, limit_s=3.0)
    assert code == 1 and "rank 0 did not come within 3 s" in words, words


# ---- each rank on its own host


@pytest.mark.root
def test_names_that_lead_elsewhere_are_no_obstacle(hosts: tuple[Host, Host], run: Run) -> None:
    """eth0 here is cabled to eth1 there. The other eth1 and eth0 are dead ends. Both docker0 have the same address."""
    one, other = hosts
    one.containers()
    other.containers()
    one.dead_end("eth1", "10.92.0.1/24")
    other.dead_end("eth0", "10.93.0.2/24")
    cable((one, "eth0"), (other, "eth1"))
    one.up("eth0", "10.91.0.1/24")
    other.up("eth1", "10.91.0.2/24")
    for said in reports(run({}, {}, hosts=hosts)):
        assert sorted(said["rails"]) == ["eth0", "eth1"] and said["sum"] == 2.0


@pytest.mark.root
def test_the_way_to_the_manager_is_a_rail_whatever_it_is_made_of(hosts: tuple[Host, Host], run: Run) -> None:
    """The hosts reach each other over bridges alone. These look the same as the bridges of a container engine."""
    one, other = hosts
    cable((one, "port0"), (other, "port0"))
    for number, host in enumerate(hosts, 1):
        host.dead_end("eth0", f"10.9{number}.0.1/24")
        host.ip("link", "add", "br0", "type", "bridge")
        host.ip("link", "set", "port0", "master", "br0")
        host.up("port0")
        host.up("br0", f"10.94.0.{number}/24")
    told = {"TASKD_MANAGER_HOST": "10.94.0.1"}
    for said in reports(run(told, told, hosts=hosts)):
        assert said["rails"] == ["br0", "eth0"] and said["sum"] == 2.0


@pytest.mark.root
def test_hosts_that_do_not_reach_each_other_are_told_so(hosts: tuple[Host, Host], run: Run) -> None:
    for number, host in enumerate(hosts, 1):
        host.dead_end("eth0", f"10.9{number}.0.1/24")
    for rank, (code, words) in enumerate(run({}, {}, hosts=hosts, limit_s=4.0)):
        assert code == 1 and f"rank {rank}, whose rails are eth0 (10.9{rank + 1}.0.1), could not join" in words, words
        assert f"Missing: rank {1 - rank} (" in words and f"eth0 (10.9{2 - rank}.0.1: " in words, words
        assert "TASKD_RAILS names the rails of each node" in words


@pytest.mark.root
def test_a_host_without_a_network(hosts: tuple[Host, Host], run: Run) -> None:
    """Loopback is enough for the ranks of one host. Without loopback, the error says what was tried."""
    alone = hosts[0]
    for said in reports(run({}, {}, hosts=[alone, alone])):
        assert said["rails"] == ["lo"] and said["sum"] == 2.0
    alone.ip("link", "set", "lo", "down")
    found = run({}, {}, hosts=[alone, alone], limit_s=3.0)
    assert all(code == 1 and "whose rails are lo (127.0.0.1)" in words for code, words in found), found
    assert sum("lo (127.0.0.1: it has not dialled)" in words for _, words in found) == 1, "one of the two dials"
