"""Watches the node's network interfaces: the kernel reports over netlink when a link goes down or comes back.

A lost link alone accuses no rank, but it supports other evidence: a silent node, a broken collective. Only interfaces
with an IPv4 address count, since container hosts make and remove interfaces without address all day.
It does NOT judge what a lost link means.
"""

from __future__ import annotations

import fcntl
import socket
import struct

RTMGRP_LINK = 1
RTM_NEWLINK, RTM_DELLINK = 16, 17
IFLA_IFNAME = 3
IFF_UP, IFF_RUNNING, IFF_LOOPBACK = 0x1, 0x40, 0x8
SIOCGIFADDR, SIOCGIFFLAGS = 0x8915, 0x8913
_HEADER = struct.Struct("=IHHII")
_LINK = struct.Struct("=BxHiII")
_ATTRIBUTE = struct.Struct("=HH")
RECEIVE_BYTES = 64 * 1024


class InterfaceWatch:
    """The interfaces' states. `fd` is readable when something may have changed; `changes()` returns the changes.

    fd -1: this kernel does not report changes."""

    def __init__(self) -> None:
        self._states: dict[str, bool] = {}
        self._socket: socket.socket | None = None
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
            self._socket.bind((0, RTMGRP_LINK))
            self._socket.setblocking(False)
        except OSError:  # a sandbox without netlink: links give no evidence
            self.close()
            return
        for _index, name in socket.if_nameindex():
            flags = _flags(name)
            if flags is not None and not flags & IFF_LOOPBACK and _has_address(name):
                self._states[name] = _is_up(flags)

    @property
    def fd(self) -> int:
        return self._socket.fileno() if self._socket is not None else -1

    def changes(self) -> list[tuple[str, bool]]:
        """(interface, is up) of each interface that has changed since the last call."""
        found: list[tuple[str, bool]] = []
        while self._socket is not None:
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except BlockingIOError:
                break
            except OSError:  # ENOBUFS: some messages were lost; the next ones tell the state again
                continue
            for name, flags, removed in parse(data):
                self._note(name, flags, removed, found)
        return found

    def _note(self, name: str, flags: int, removed: bool, found: list[tuple[str, bool]]) -> None:
        if flags & IFF_LOOPBACK or (name not in self._states and not _has_address(name)):
            return
        up = not removed and _is_up(flags)
        if self._states.get(name, up) != up:
            found.append((name, up))
        if removed:
            self._states.pop(name, None)
        else:
            self._states[name] = up

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def parse(data: bytes) -> list[tuple[str, int, bool]]:
    """(name, flags, removed) of every link message in one datagram of the kernel."""
    found = []
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size or offset + length > len(data):
            break
        if kind in (RTM_NEWLINK, RTM_DELLINK) and length >= _HEADER.size + _LINK.size:
            _, _, _, flags, _ = _LINK.unpack_from(data, offset + _HEADER.size)
            name = _name(data[offset + _HEADER.size + _LINK.size : offset + length])
            if name:
                found.append((name, flags, kind == RTM_DELLINK))
        offset += (length + 3) & ~3
    return found


def _name(attributes: bytes) -> str:
    offset = 0
    while offset + _ATTRIBUTE.size <= len(attributes):
        length, kind = _ATTRIBUTE.unpack_from(attributes, offset)
        if length < _ATTRIBUTE.size:
            break
        if kind == IFLA_IFNAME:
            return attributes[offset + _ATTRIBUTE.size : offset + length].rstrip(b"\0").decode("ascii", "replace")
        offset += (length + 3) & ~3
    return ""


def _is_up(flags: int) -> bool:
    return bool(flags & IFF_UP and flags & IFF_RUNNING)


def _ask(name: str, request: int) -> bytes | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            return fcntl.ioctl(sock, request, struct.pack("16s16x", name.encode()[:15]))
        except OSError:
            return None


def _has_address(name: str) -> bool:
    return _ask(name, SIOCGIFADDR) is not None


def _flags(name: str) -> int | None:
    answer = _ask(name, SIOCGIFFLAGS)
    return None if answer is None else struct.unpack_from("H", answer, 16)[0]
