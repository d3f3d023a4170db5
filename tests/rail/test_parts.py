"""The parts of csrc/rail that stand alone: the key, the counters, the interfaces; under sanitizers.

Tests in C++ (parts/) cover what they do inside one process. This file tests them against the outside: another
implementation of the digests, and interfaces of a network namespace that really go down.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests import sanitized
from tests.patience import BUILD_S


def parts(kind: str) -> list[str]:
    return sanitized.command(sanitized.build("rail-parts", kind), kind)


@pytest.mark.limit(BUILD_S)
@pytest.mark.parametrize("kind", sanitized.SANITIZERS)
def test_every_part(kind: str) -> None:
    assert " passed\n" in sanitized.said(sanitized.build("rail-parts", kind), kind)


@pytest.mark.limit(BUILD_S)
def test_digests_are_those_of_another_implementation() -> None:
    lines = subprocess.run([*parts("memory"), "digests", "300"], capture_output=True, text=True, check=True).stdout
    found = [line.split() for line in lines.splitlines()]
    assert len(found) == 301
    for length, pair in enumerate(found):
        text = bytes((7 * index + length) % 256 for index in range(length))
        assert pair == [hashlib.sha256(text).hexdigest(), hmac.new(text, b"job", "sha256").hexdigest()], length


# ---- interfaces that change


class Space:
    """A network namespace of its own with a cable: near0 (10.77.0.1) here, far0 at the other end."""

    def __init__(self) -> None:
        self.name = f"taskd-parts-{os.getpid()}"
        subprocess.run(["ip", "netns", "add", self.name], check=True)
        self.ip("link", "set", "lo", "up")
        self.plug()

    def ip(self, *words: str) -> None:
        subprocess.run(["ip", "-n", self.name, *words], check=True)

    def plug(self) -> None:
        self.ip("link", "add", "near0", "type", "veth", "peer", "name", "far0")
        self.ip("address", "add", "10.77.0.1/24", "dev", "near0")
        self.ip("link", "set", "far0", "up")
        self.ip("link", "set", "near0", "up")

    def close(self) -> None:
        subprocess.run(["ip", "netns", "delete", self.name], check=True)


@pytest.fixture
def space() -> Iterator[Space]:
    space = Space()
    yield space
    space.close()


class Watch:
    """A process that watches interfaces, and the lines that it prints."""

    def __init__(self, space: Space, *watched: str) -> None:
        command = ["ip", "netns", "exec", space.name, *parts("memory"), "watch", *watched]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        """Close the process's input. The process ends then."""
        rest, _ = self.process.communicate()
        assert self.process.returncode == 0 and not rest


@pytest.mark.root
@pytest.mark.limit(BUILD_S)
def test_whatever_takes_a_rail_away_is_told_and_so_is_its_return(space: Space) -> None:
    watch = Watch(space, "near0=10.77.0.1", "near0=", "lo=127.0.0.1", "=10.9.9.9")
    assert watch.line() == "0 usable: interface near0 is up"
    assert watch.line() == "1 usable: interface near0 is up"
    assert watch.line() == "2 usable: interface lo is up"
    assert watch.line() == "3 usable:"
    assert watch.line() == "watching all"
    for change, back, why in (
        (["link", "set", "far0", "down"], ["link", "set", "far0", "up"], "has no carrier"),
        (["link", "set", "near0", "down"], ["link", "set", "near0", "up"], "is switched off"),
    ):
        space.ip(*change)
        assert [watch.line(), watch.line()] == [f"{index} lost: interface near0 {why}" for index in (0, 1)]
        space.ip(*back)
        assert [watch.line(), watch.line()] == [f"{index} usable: interface near0 is up" for index in (0, 1)]
    space.ip("address", "del", "10.77.0.1/24", "dev", "near0")
    assert watch.line() == "0 lost: interface near0 does not have the address 10.77.0.1"
    space.ip("address", "add", "10.77.0.1/24", "dev", "near0")
    assert watch.line() == "0 usable: interface near0 is up"
    watch.close()


@pytest.mark.root
@pytest.mark.limit(BUILD_S)
def test_an_interface_that_vanishes_comes_back_under_another_number(space: Space) -> None:
    watch = Watch(space, "near0=10.77.0.1", "eth9=10.0.0.1")
    assert watch.line() == "0 usable: interface near0 is up"
    assert watch.line() == "1 lost: there is no interface eth9"
    assert watch.line() == "watching all"
    space.ip("link", "delete", "near0")
    lost = watch.line()  # the kernel removes the address first, then the carrier, then the interface
    assert lost.startswith("0 lost: ")
    space.plug()
    assert watch.line() == "0 usable: interface near0 is up"
    watch.close()


@pytest.mark.root
@pytest.mark.limit(BUILD_S)
def test_a_storm_of_news_loses_nothing(space: Space) -> None:
    """More events come than the socket holds while the watch is stopped. Then it looks at the interfaces itself."""
    watch = Watch(space, "near0=10.77.0.1")
    assert [watch.line(), watch.line()] == ["0 usable: interface near0 is up", "watching all"]
    os.kill(watch.process.pid, signal.SIGSTOP)
    batch = "".join(f"address add 10.78.{high}.{low}/32 dev lo\n" for high in range(60) for low in range(1, 251))
    subprocess.run(["ip", "-n", space.name, "-batch", "-"], input=batch, text=True, check=True)
    space.ip("link", "set", "near0", "down")
    os.kill(watch.process.pid, signal.SIGCONT)
    assert watch.line() == "0 lost: interface near0 is switched off"
    space.ip("link", "set", "near0", "up")
    assert watch.line() == "0 usable: interface near0 is up"
    watch.close()
