"""The channel between a training process and its node's agent: messages with descriptors over one UNIX socket.

SOCK_SEQPACKET keeps message boundaries and reports when the other end is gone. The abstract name space leaves no file
behind and belongs to one network namespace, as a node does. A worker that finds no listener binds the name itself. It
passes the listening descriptor to the agent that it starts, so two workers can never start two agents. A message that
is too large for a datagram travels in a sealed memfd.
Both ends check that the other end belongs to the same user. This module does NOT know what the bytes mean.
"""

from __future__ import annotations

import array
import errno
import fcntl
import hashlib
import os
import socket
import struct
import termios

from taskd.core.limits import MAX_MESSAGE_BYTES

INLINE_BYTES_MAX = 64 * 1024
"""A datagram of this size fits the default send buffer of every kernel."""
DESCRIPTORS_MAX = 5
BACKLOG = 256
NAME_BYTES_MAX = 107
"""The size of Linux' sun_path without its last byte."""
STOP_WORD = 255
"""Means Stop, in the place where a beat page's order has the number of a stage."""
_INLINE = b"\0"
_IN_MEMORY_FILE = b"\1"
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class Malformed(Exception):
    """A peer sent something that is no message of this channel. Close its connection."""


def address(job: str, node: str) -> str:
    """The abstract name on which the agent of this user, job and node listens."""
    name = f"\0taskd/{os.geteuid()}/{job}/{node}"
    if len(name.encode()) <= NAME_BYTES_MAX:
        return name
    digest = hashlib.sha256(f"{job}/{node}".encode()).hexdigest()
    return f"\0taskd/{os.geteuid()}/{digest}"


def store_address(job: str, node: str) -> str:
    """The abstract name on which the same agent serves the job's store, as a stream."""
    name = f"{address(job, node)}/store"
    if len(name.encode()) <= NAME_BYTES_MAX:
        return name
    return address(hashlib.sha256(f"{job}/{node}".encode()).hexdigest()[:32], "store")


def listen(name: str) -> socket.socket | None:
    """A listening socket on this name, or None if another process has the name. Raises OSError for anything else."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.bind(name)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return sock


def connect(name: str) -> socket.socket | None:
    """A connection to the listener on this name, or None if there is none or it belongs to another user."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.setblocking(False)  # a full backlog must not block the caller, who tries again
        sock.connect(name)
        if not same_user(sock):
            raise PermissionError("another user listens on this name")
    except OSError:
        sock.close()
        return None
    return sock


def nobody_listens(name: str) -> bool:
    """Whether this name has no listener at all. A listener with a full backlog counts as one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.setblocking(False)
        return sock.connect_ex(name) == errno.ECONNREFUSED


def peer(sock: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process that made the other end."""
    pid, uid, _gid = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def same_user(sock: socket.socket) -> bool:
    """Whether the other end belongs to this process' user."""
    return peer(sock)[1] == os.geteuid()


def send(sock: socket.socket, payload: bytes, descriptors: tuple[int, ...] = ()) -> bool:
    """Send one message; False if the other end does not read (try again, or wait for the next repetition).

    Raises OSError when the connection is gone.
    """
    if len(payload) <= INLINE_BYTES_MAX:
        return _send(sock, _INLINE + payload, descriptors)
    assert len(payload) <= MAX_MESSAGE_BYTES
    fd = os.memfd_create("taskd-message", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(payload)
        while view:
            view = view[os.write(fd, view) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        return _send(sock, _IN_MEMORY_FILE, (fd, *descriptors))
    finally:
        os.close(fd)


def _send(sock: socket.socket, data: bytes, descriptors: tuple[int, ...]) -> bool:
    ancillary = []
    if descriptors:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    try:
        sock.sendmsg([data], ancillary, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except BlockingIOError:
        return False
    return True


def unread(sock: socket.socket) -> int:
    """Bytes that the other end has not read yet, as the kernel counts them; 0 if the kernel does not tell."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))[0])
    except OSError:
        return 0


def receive(sock: socket.socket) -> tuple[bytes, list[int]] | None:
    """(payload, descriptors), or None if nothing has arrived yet. The caller owns the descriptors.

    Raises EOFError if the other end is gone, Malformed if it breaks the rules.
    """
    space = socket.CMSG_SPACE(DESCRIPTORS_MAX * struct.calcsize("i"))
    try:
        data, ancillary, flags, _ = sock.recvmsg(
            INLINE_BYTES_MAX + 1, space, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        )
    except BlockingIOError:
        return None
    except OSError as error:
        raise EOFError(str(error)) from None
    descriptors = _descriptors(ancillary)
    try:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise Malformed("a message or its descriptors exceed the channel's bounds")
        if not data:
            raise EOFError("the other end closed")
        if data[:1] == _INLINE:
            return data[1:], descriptors
        if data != _IN_MEMORY_FILE or not descriptors:
            raise Malformed("a message has no known form")
        payload = _from_memory_file(descriptors[0])
    except BaseException:
        close_all(descriptors)
        raise
    os.close(descriptors.pop(0))
    return payload, descriptors


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)


def _from_memory_file(fd: int) -> bytes:
    try:
        # Without the seals the sender could shorten the file during the read, or change it after the checks.
        sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS == _SEALS
        size = os.fstat(fd).st_size
        payload = os.pread(fd, size, 0) if sealed and size <= MAX_MESSAGE_BYTES else b""
    except OSError as error:
        raise Malformed(f"a message in memory cannot be read ({error.strerror})") from None
    if not payload or len(payload) != size:
        raise Malformed("a message in memory is not sealed, empty or too large")
    return payload


def close_all(descriptors: list[int]) -> None:
    """Close descriptors that are not needed."""
    for fd in descriptors:
        os.close(fd)
