"""The TCP sockets of this process, found among its descriptors: libraries show none of theirs.

This module does not know whose a socket is (gloo.py and nccl.py decide).
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

Address = tuple[str, int]
_kept: set[int] = set()  # inodes


class Listener(NamedTuple):
    """A listening socket. The inode is its own as long as it is open; another one may get its descriptor."""

    fd: int
    inode: int
    address: Address


def tcp_sockets() -> Iterator[tuple[int, socket.socket]]:
    """Every TCP socket of this process, each as its descriptor and a duplicate that lives for one turn of the loop."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            twin = os.dup(int(name))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EBADF):  # closed since it was listed
                continue
            raise
        with socket.socket(fileno=twin) as one:
            if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                yield int(name), one


def listeners() -> list[Listener]:
    """The listening ones."""
    return [
        Listener(fd, os.fstat(one.fileno()).st_ino, address_of(one.getsockname()))
        for fd, one in tcp_sockets()
        if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    ]


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Let `shut_listeners` spare what begins to listen in the body."""
    before = {one.inode for one in listeners()}
    try:
        yield
    finally:
        _kept.update(one.inode for one in listeners() if one.inode not in before)


def shut_listeners(but: Collection[int]) -> None:
    """Shut down every listening socket that is not kept, except those with these inodes. Who waits for a connection
    there gets an error."""
    for _, one in tcp_sockets():
        with contextlib.suppress(OSError):  # closed meanwhile
            inode = os.fstat(one.fileno()).st_ino
            if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and inode not in _kept and inode not in but:
                one.shutdown(socket.SHUT_RDWR)


def address_of(name: tuple[Any, ...]) -> Address:
    """An address without the prefix that an IPv6 socket gives to an IPv4 address."""
    host = name[0]
    return (host[len("::ffff:") :] if host.startswith("::ffff:") else host), name[1]
