"""Destroys the TCP connections of a host on one rail: both ends learn at once that their connection is gone.

The kernel does this on request (sock_diag, which `ss --kill` uses, too). The connections are listed first, so that all
of them end within microseconds of one known moment. It does not touch listening sockets, and does not decide when.
"""

from __future__ import annotations

import socket
import struct

from taskd.bench.hosts import Host, inside

SOCK_DIAG = 4  # NETLINK_SOCK_DIAG
BY_FAMILY, DESTROY = 20, 21
REQUEST, ACKNOWLEDGE, DUMP = 0x1, 0x4, 0x300
ERROR, DONE = 2, 3
CONNECTED = 1 << 1  # TCP_ESTABLISHED
HEADER = struct.Struct("=IHHII")
IDENTITY_BYTES = 48
GONE = 2  # ENOENT: the connection has ended by itself meanwhile


def connections(host: Host, rail: str) -> list[bytes]:
    """The identities of the connections that this host has on the rail now."""
    wanted = socket.inet_aton(host.address(rail))
    with _open(host) as line:
        line.send(_message(BY_FAMILY, REQUEST | DUMP, b"\0" * IDENTITY_BYTES))
        found: list[bytes] = []
        while True:
            data = line.recv(1 << 18)
            while data:
                length, kind, *_ = HEADER.unpack_from(data)
                if kind == DONE:
                    return found
                if kind == ERROR:
                    raise OSError(-struct.unpack_from("=i", data, HEADER.size)[0], "listing connections")
                identity = data[HEADER.size + 4 : HEADER.size + 4 + IDENTITY_BYTES]
                if wanted in (identity[4:8], identity[20:24]):
                    found.append(identity)
                data = data[(length + 3) & ~3 :]


def reset(host: Host, identities: list[bytes]) -> int:
    """Destroy these connections; return how many still existed."""
    ended = 0
    with _open(host) as line:
        for identity in identities:
            line.send(_message(DESTROY, REQUEST | ACKNOWLEDGE, identity))
            (number,) = struct.unpack_from("=i", line.recv(4096), HEADER.size)
            if number not in (0, -GONE):
                raise OSError(-number, "destroying a connection; the kernel needs INET_DIAG_DESTROY")
            ended += number == 0
    return ended


def _open(host: Host) -> socket.socket:
    with inside(host.name):
        line = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG)
    line.bind((0, 0))
    return line


def _message(kind: int, flags: int, identity: bytes) -> bytes:
    body = struct.pack("=BBBxI", socket.AF_INET, socket.IPPROTO_TCP, 0, CONNECTED) + identity
    return HEADER.pack(HEADER.size + len(body), kind, flags, 1, 0) + body
