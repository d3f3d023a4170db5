"""Hosts that are network namespaces of this machine, joined by rails and a control link, and the faults of a rail.

Two hosts are joined by cables, so that both lose the carrier when one end goes down. More than two hosts are joined by
one switch per rail, so that only the host whose cable is pulled knows it at once. Most faults are one system call on a
socket that was opened inside the namespace, so the moment of a fault is known to some microseconds. The faults are: an
interface switched off; a neighbour's address that leads nowhere (silence in one direction, which no side is told);
sockets destroyed (sockets.py); an interface removed (`ip`); a token bucket (`tc`).

It is a context manager, needs root and iproute2, and leaves nothing behind. It measures nothing and runs nothing
itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

CONTROL = "control"
RAILS = ("a", "b")
NEWNET = 0x40000000  # CLONE_NEWNET
GET_FLAGS, SET_FLAGS, DELETE_NEIGHBOUR, SET_NEIGHBOUR = 0x8913, 0x8914, 0x8953, 0x8955
UP = 0x1
ETHERNET, COMPLETE, PERMANENT = 1, 0x02, 0x04
NOWHERE = bytes([0x02, 0, 0, 0, 0, 0xEE])
"""A hardware address that no interface has."""
MTU = 1500
_libc = ctypes.CDLL(None, use_errno=True)


def why_not() -> str | None:
    """The sentence that says why hosts are not possible here, and what would help; None if they are."""
    if os.geteuid() != 0:
        return "needs root for network namespaces; run it as root to include it"
    missing = [tool for tool in ("ip", "tc") if not shutil.which(tool)]
    if missing:
        return f"needs {' and '.join(missing)} for network namespaces; install iproute2 to include it"
    name = f"taskd-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode != 0:
        return f"network namespaces are forbidden here ({made.stderr.strip()}); run where `ip netns add` works"
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return None


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Run the body of this thread in the namespace; the sockets that it opens stay there."""
    with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{namespace}") as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(home.fileno())


def _enter(fd: int) -> None:
    if _libc.setns(fd, NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def interface(link: str) -> str:
    """The link's interface name on every host. gloo does not accept names of one letter."""
    return f"rail-{link}"


class Host:
    """One namespace."""

    def __init__(self, name: str, index: int, links: Sequence[str]) -> None:
        self.name, self.index, self.links = name, index, tuple(links)
        with inside(name):
            self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._traffic = os.open("/proc/thread-self/net/dev", os.O_RDONLY)

    def close(self) -> None:
        self.socket.close()
        os.close(self._traffic)

    def address(self, link: str) -> str:
        """The host's address on this link."""
        return f"10.{self.links.index(link) + 1}.0.{self.index + 1}"

    def inside(self, *command: str) -> list[str]:
        """The command line that runs this command on this host."""
        return ["ip", "netns", "exec", self.name, *command]

    def bytes(self, link: str) -> int:
        """The bytes that have passed this interface, in and out."""
        text, wanted = os.pread(self._traffic, 65536, 0).decode(), f"{interface(link)}:"
        words = next(line for line in text.splitlines() if line.strip().startswith(wanted)).split(":")[1].split()
        return int(words[0]) + int(words[8])


class Hosts:
    """Two or more hosts, with these rails and a control link."""

    def __init__(self, count: int = 2, rails: Sequence[str] = RAILS) -> None:
        self.rails = tuple(rails)
        self._links = (*rails, CONTROL)
        self._prefix = f"taskd-{os.getpid()}-{id(self):x}"
        self._names = [f"{self._prefix}-h{index}" for index in range(count)]
        self._spaces = [*self._names, *([f"{self._prefix}-switch"] if count > 2 else [])]
        self.hosts: list[Host] = []
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Hosts:
        with self._open:
            self._open.callback(self._remove)
            for space in self._spaces:
                _ip("netns", "add", space)
            self._name()
            if len(self._names) > 2:
                self._switches()
            else:
                self._cables()
            for index, name in enumerate(self._names):
                self.hosts.append(Host(name, index, self._links))
                self._open.callback(self.hosts[-1].close)
                self._address(self.hosts[-1], self._links)
            self._open = self._open.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _remove(self) -> None:
        for space in self._spaces:
            subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)
            shutil.rmtree(f"/etc/netns/{space}", ignore_errors=True)

    def _name(self) -> None:
        """Give the addresses names: else each look-up of a peer waits seconds for a name server that does not exist."""
        lines = [f"127.0.0.1 localhost {socket.gethostname()}"]
        for number in range(len(self._links)):
            lines += [f"10.{number + 1}.0.{index + 1} host{index}" for index in range(len(self._names))]
        for space in self._names:
            folder = Path("/etc/netns", space)
            folder.mkdir(parents=True)
            (folder / "hosts").write_text("\n".join(lines) + "\n")
            (folder / "resolv.conf").write_text("")

    def _cables(self) -> None:
        for link in self._links:
            self._cable(link)

    def _cable(self, link: str) -> None:
        (near, far), name = self._names, interface(link)
        _ip("link", "add", "name", name, "netns", near, "type", "veth", "peer", "name", name, "netns", far)

    def _switches(self) -> None:
        for link in self._links:
            _batch(self._spaces[-1], [f"link add name switch-{link} type bridge", f"link set dev switch-{link} up"])
            for index in range(len(self._names)):
                self._port(index, link)

    def _port(self, index: int, link: str) -> None:
        port = f"{link}{index}"
        lines = [f"link add name {port} type veth peer name {interface(link)} netns {self._names[index]}"]
        lines += [f"link set dev {port} master switch-{link}", f"link set dev {port} up"]
        _batch(self._spaces[-1], lines)

    def _address(self, host: Host, links: Sequence[str]) -> None:
        lines = ["link set dev lo up"]
        for link in links:
            lines += [
                f"address add {host.address(link)}/24 dev {interface(link)}",
                f"link set dev {interface(link)} up",
            ]
        _batch(host.name, lines)

    # ---- faults; each returns at once and can be taken back ------------------------------------------------------

    def down(self, host: int, rail: str) -> None:
        """Switch the interface off."""
        self._switch(host, rail, up=False)

    def up(self, host: int, rail: str) -> None:
        """Switch it on again."""
        self._switch(host, rail, up=True)

    def _switch(self, host: int, rail: str, *, up: bool) -> None:
        one = self.hosts[host].socket
        request = struct.pack("16sH22x", interface(rail).encode(), 0)
        (flags,) = struct.unpack("16xH22x", fcntl.ioctl(one, GET_FLAGS, request))
        flags = flags | UP if up else flags & ~UP
        fcntl.ioctl(one, SET_FLAGS, struct.pack("16sH22x", interface(rail).encode(), flags))

    def unplug(self, host: int, rail: str) -> None:
        """Remove the interface, like a removed card. Between two hosts, the other end of the cable is removed, too."""
        _ip("-n", self.hosts[host].name, "link", "delete", interface(rail))

    def plug(self, host: int, rail: str) -> None:
        """Add an interface of the same name and address in its place."""
        if len(self.hosts) > 2:
            self._port(host, rail)
        else:
            self._cable(rail)
        for one in [self.hosts[host]] if len(self.hosts) > 2 else self.hosts:
            self._address(one, [rail])

    def silence(self, host: int, rail: str, to: int | None = None) -> None:
        """Let nothing arrive that this host sends on the rail, to host `to` or else to all. No side is told."""
        for peer in self._peers(host) if to is None else [self.hosts[to]]:
            request = _neighbour(peer.address(rail), rail, COMPLETE | PERMANENT, NOWHERE)
            fcntl.ioctl(self.hosts[host].socket, SET_NEIGHBOUR, request)

    def speak(self, host: int, rail: str) -> None:
        """Let everything arrive again that this host sends on the rail."""
        for peer in self._peers(host):
            with contextlib.suppress(OSError):  # an interface that was switched off has forgotten it already
                fcntl.ioctl(self.hosts[host].socket, DELETE_NEIGHBOUR, _neighbour(peer.address(rail), rail, 0, b""))

    def _peers(self, host: int) -> list[Host]:
        return [one for one in self.hosts if one.index != host]

    def slow(self, host: int, rail: str, megabits: float) -> None:
        """Limit this host's speed of sending on the rail."""
        burst = max(int(megabits * 1e6 / 8 * 0.002), 10 * MTU)
        words = ["root", "tbf", "rate", f"{megabits}mbit", "burst", str(burst), "latency", "200ms"]
        self._queue(host, "replace", rail, words)

    def fast(self, host: int, rail: str) -> None:
        """Remove the limit of speed again."""
        self._queue(host, "delete", rail, ["root"])

    def _queue(self, host: int, verb: str, rail: str, words: list[str]) -> None:
        name = self.hosts[host].name
        subprocess.run(["tc", "-n", name, "qdisc", verb, "dev", interface(rail), *words], check=True)


def _neighbour(address: str, link: str, flags: int, hardware: bytes) -> bytes:
    place = struct.pack("H2x4s8x", socket.AF_INET, socket.inet_aton(address))
    return place + struct.pack("H14s", ETHERNET, hardware) + struct.pack("i16x16s", flags, interface(link).encode())


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _batch(space: str, lines: list[str]) -> None:
    subprocess.run(["ip", "-n", space, "-batch", "-"], input="\n".join(lines) + "\n", text=True, check=True)
