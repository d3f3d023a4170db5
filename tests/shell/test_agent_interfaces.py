"""Network interfaces that go down and come back, as the kernel reports it over netlink."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from taskd.agent import interfaces

ROOT = Path(__file__).resolve().parents[2]

WATCH = """
import select, sys
from taskd.agent.interfaces import InterfaceWatch
watch = InterfaceWatch()
print("ready", flush=True)
while True:
    select.select([watch.fd], [], [])
    for name, up in watch.changes():
        print(name, "up" if up else "down", flush=True)
"""


def message(name: bytes, flags: int, kind: int = interfaces.RTM_NEWLINK) -> bytes:
    attribute = struct.pack("=HH", 4 + len(name) + 1, interfaces.IFLA_IFNAME) + name + b"\0"
    attribute += b"\0" * (-len(attribute) % 4)
    body = struct.pack("=BxHiII", 0, 1, 7, flags, 0) + attribute
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body


def test_datagrams_with_several_messages_are_read_whole():
    data = message(b"eth0", 0x41) + message(b"bond0.7", 0, interfaces.RTM_DELLINK) + message(b"x", 1, 99)
    assert interfaces.parse(data) == [("eth0", 0x41, False), ("bond0.7", 0, True)]


def test_cut_and_senseless_datagrams_are_survived():
    whole = message(b"eth0", 0x41)
    for length in range(len(whole)):
        assert interfaces.parse(whole[:length]) == []
    for seed in range(200):
        interfaces.parse(bytes((seed * number * 31 + number) % 256 for number in range(200)))
    assert interfaces.parse(struct.pack("=IHHII", 0, 16, 0, 0, 0) * 3) == []


@pytest.mark.root
def test_a_link_that_goes_down_and_comes_back_is_told():
    space = f"taskd-links-{os.getpid()}"

    def ip(*words: str) -> None:
        subprocess.run(["ip", "netns", "exec", space, "ip", *words], check=True)

    subprocess.run(["ip", "netns", "add", space], check=True)
    try:
        ip("link", "add", "rail0", "type", "veth", "peer", "name", "far0")
        ip("address", "add", "10.77.0.1/24", "dev", "rail0")
        ip("link", "set", "far0", "up")
        ip("link", "set", "rail0", "up")
        watcher = subprocess.Popen(
            ["ip", "netns", "exec", space, sys.executable, "-c", WATCH],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert watcher.stdout is not None
        try:
            assert watcher.stdout.readline() == "ready\n"
            ip("link", "add", "bare0", "type", "veth", "peer", "name", "bare1")  # no address, so it is no rail
            ip("link", "delete", "bare0")
            ip("link", "set", "far0", "down")  # the cable is pulled
            assert watcher.stdout.readline() == "rail0 down\n"
            ip("link", "set", "far0", "up")
            assert watcher.stdout.readline() == "rail0 up\n"
            ip("link", "delete", "rail0")
            assert watcher.stdout.readline() == "rail0 down\n"
        finally:
            watcher.kill()
            watcher.wait()
            watcher.stdout.close()
    finally:
        subprocess.run(["ip", "netns", "delete", space], check=True)
