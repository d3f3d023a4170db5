"""A worker process for the native tests. It makes its beat page, sends it on, and then obeys commands.

Its arguments are the number of a SOCK_SEQPACKET socket and its rank. It sends one message "page" with the page's
descriptor. Then it answers each command with one message. It is a program of its own, so that the tests can kill, stop
and replace a real process.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import time

from taskd import _native

BEAT_PERIOD_NS = 10_000_000
MEGABYTE = 1 << 20

kept: list[bytearray] = []


def forked_child_report(page: _native.Page, guarded: socket.socket) -> str:
    """Return what a plainly forked child sees. A data loader forks its workers in the same way."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            stored = page.store(epoch=99, step=99, phase=99)
            page.order(kind=99, epoch=99)
            links = [os.readlink(path) for path in (f"/proc/self/fd/{fd}" for fd in range(256)) if os.path.islink(path)]
            fresh = _native.Page.create(rank=5, incarnation=5)
            fresh.start_beat(BEAT_PERIOD_NS)
            report = {
                "stored": stored,
                "beating": page.beating,
                "pages": [link for link in links if "taskd-page" in link],
                "sockets": [link for link in links if link.startswith("socket:")],
                "guarded": os.readlink(f"/proc/self/fd/{guarded.fileno()}"),
                "fresh": fresh.life,
            }
            guarded.close()
            os.write(writer, repr(report).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        report = pipe.read()
    os.wait()
    return report


def obey(command: str, value: str, page: _native.Page, channel: socket.socket) -> str:
    if command == "beat":
        page.start_beat(int(value))
    elif command == "leave":
        page.stop_beat()
    elif command == "grow":
        kept.append(bytearray(int(value) * MEGABYTE))
        kept[-1][::4096] = b"x" * len(kept[-1][::4096])
    elif command == "hold":
        _native.hold_gil(float(value))
    elif command == "store":
        page.store(*map(int, value.split()))
    elif command == "exit":
        channel.close()
        sys.exit(int(value))
    elif command == "exec":
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)"])
    elif command == "abort":
        os.chdir(value)
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        os.abort()
    elif command == "fork":
        # A child must inherit neither: a connection, nor the channel on which this process gets its commands.
        guarded, other = socket.socketpair()
        for each in (guarded, other, channel):
            _native.close_on_fork(each.fileno())
        report = forked_child_report(page, guarded)
        for each in (guarded, other, channel):
            _native.keep_on_fork(each.fileno())
        guarded.close()
        other.close()
        return report
    elif command == "order":
        order = page.wait_order(int(value), 20_000_000_000)
        return f"{tuple(order) if order else None} {time.monotonic_ns()}"
    else:
        raise AssertionError(f"unknown command {command}")
    return "done"


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _native.set_parent_death_signal(signal.SIGKILL)
    channel = socket.socket(fileno=int(sys.argv[1]))
    page = _native.Page.create(rank=int(sys.argv[2]), incarnation=3)
    socket.send_fds(channel, [b"page"], [page.fd])
    while message := channel.recv(4096):
        command, _, value = message.decode().partition(" ")
        if command == "drop":
            del page
            channel.send(b"done")
            continue
        channel.send(obey(command, value, page, channel).encode())


main()
