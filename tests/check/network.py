"""Hosts of a test: network namespaces on two switches, so that each has two rails. It needs root and `ip`."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

RAILS = ("blue", "red")
_numbers = itertools.count()


class Network:
    """Some hosts that reach each other over both rails."""

    def __init__(self, count: int) -> None:
        number = next(_numbers)
        self.switch = f"taskd-check-{os.getpid()}-{number}-switch"
        self.hosts = [f"taskd-check-{os.getpid()}-{number}-{at}" for at in range(count)]

    @staticmethod
    def address(host: int, rail: int = 0) -> str:
        """Return the address of a host on a rail."""
        return f"10.79.{rail}.{host + 1}"

    def within(self, host: int) -> list[str]:
        """Return the command that runs another command on a host."""
        return ["ip", "netns", "exec", self.hosts[host]]

    def ip(self, host: int, *words: str) -> None:
        """Run `ip` on a host."""
        _run("ip", "-n", self.hosts[host], *words)

    def slow(self, host: int, rail: int) -> None:
        """Let a host send slowly over a rail."""
        _run(
            *("tc", "-n", self.hosts[host], "qdisc", "add", "dev", RAILS[rail], "root", "tbf"),
            *("rate", "40mbit", "burst", "32k", "latency", "400ms"),
        )

    def begin(self) -> None:
        """Create all."""
        for name in (self.switch, *self.hosts):
            _run("ip", "netns", "add", name)
        for rail, interface in enumerate(RAILS):
            _run("ip", "-n", self.switch, "link", "add", interface, "type", "bridge")
            _run("ip", "-n", self.switch, "link", "set", interface, "up")
            for at, host in enumerate(self.hosts):
                port = f"{interface}{at}"
                _run("ip", "-n", host, "link", "add", interface, "type", "veth", "peer", port, "netns", self.switch)
                _run("ip", "-n", self.switch, "link", "set", port, "master", interface, "up")
                self.ip(at, "address", "add", f"{self.address(at, rail)}/24", "dev", interface)
                self.ip(at, "link", "set", interface, "up")
        for at in range(len(self.hosts)):
            self.ip(at, "link", "set", "lo", "up")

    def end(self) -> None:
        """Remove all."""
        for name in (*self.hosts, self.switch):
            subprocess.run(["ip", "netns", "delete", name], check=False)


@contextmanager
def network(count: int) -> Iterator[Network]:
    """Create hosts, and remove them at the end."""
    made = Network(count)
    try:
        made.begin()
        yield made
    finally:
        made.end()


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
