"""Inner groups over gloo, and the sockets that certainly belong to gloo.

gloo has no abort. The only way to end its operations is to shut down its sockets. So each group gets a device of its
own, and the members learn its listening address through the store. A socket is gloo's if one of its ends has such an
address. Sockets that other threads open at the same time are never mistaken for gloo's.

This module does not decide when a group is made or ended (guard.py, and csrc/c10d for the end).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from taskd.comm import agreement, sockets
from taskd.comm.adapter import InnerGroup
from taskd.comm.sockets import Address, address_of, listeners, tcp_sockets
from taskd.errors import BackendError

DEVICE_TRIES = 5
"""How often a device is made anew because another thread opened a listening socket at the same moment."""

OVER = "gloo"
"""The name of this transport in what the members tell each other (agreement.py)."""
LOOPBACK = "127.0.0.1"
_WATCHED = re.compile(r"^tfd: *([0-9]+) .* ino:([0-9a-f]+) ", re.MULTILINE)
"""What proc(5) says of each descriptor that an event poll watches."""

_device_lock = threading.Lock()


def _after_fork() -> None:
    global _device_lock
    _device_lock = threading.Lock()  # a thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)


def make_inner(
    store: Any,
    rank: int,
    timeout: timedelta,
    *,
    members: Sequence[int],
    hostname: str | None = None,
    interface: str | None = None,
) -> InnerGroup:
    """Make a gloo group of these ranks, on this address or interface, else where torch would put it.

    The ranks meet in `store`. Blocks until all ranks are connected. Raises BackendError if gloo cannot be set up within
    `timeout`, or if not all ranks use gloo.
    """
    size = len(members)
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timeout
    try:
        with agreement.or_decline(store, rank, size), sockets.kept():
            options._devices, addresses = _make_devices(hostname, interface)
        options._threads = 2 * len(options._devices)
        own = "\n".join(f"{host} {port}" for host, port in addresses).encode()
        everywhere = _addresses(agreement.exchange(store, rank, members, OVER, own, timeout))
        backend = dist.ProcessGroupGloo(store, rank, size, options)
    except (RuntimeError, ValueError) as error:
        raise BackendError(
            f"gloo could not set up rank {members[rank]} of {size}: {error}; check that every rank is there and that "
            "GLOO_SOCKET_IFNAME names an interface which the others reach."
        ) from error
    return InnerGroup(backend, _connected_sockets(everywhere))


def _make_devices(hostname: str | None, interface: str | None) -> tuple[list[Any], list[Address]]:
    """Make devices and return their listening addresses too; none if another thread's socket could be one of them."""
    gloo = dist.ProcessGroupGloo
    names = os.environ.get("GLOO_SOCKET_IFNAME", "")
    for _ in range(DEVICE_TRIES):
        with _device_lock:
            before = set(_listening())
            if hostname is not None:
                devices = [gloo.create_device(hostname=hostname, lazy_init=False)]
            elif interface is not None or names:
                wanted = [interface] if interface is not None else names.split(",")
                devices = [gloo.create_device(interface=name, lazy_init=False) for name in wanted]
            else:
                devices = [gloo.create_default_device(lazy_init=False)]
            addresses = [address for address in _listening() if address not in before]
        if len(addresses) == len(devices):
            return devices, addresses
    return devices, []


def without_listener(make: Callable[[], Any]) -> Any:
    """What `make` makes over one device at 127.0.0.1, whose listening socket is closed then: nobody is meant to
    connect, and a stranger could make gloo end the process. The result lives as long as the process does: its device
    would miss the socket at its end. In a forked child it would wait for a thread that is not there.

    Other threads open and close sockets meanwhile. So the socket must be new by its inode, be at that address, and be
    watched by an event poll, as gloo does. If there are several, none is closed."""
    with _device_lock:
        before = {one.inode for one in listeners()}
        made = make()
        watched = set(_watched())
        found = [
            one
            for one in listeners()
            if one.inode not in before and one.address[0] == LOOPBACK and (one.fd, one.inode) in watched
        ]
        if len(found) == 1:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, found[0].fd, inheritable=False)
            os.close(nothing)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
    return made


def _watched() -> Iterator[tuple[int, int]]:
    """What the event polls of this process watch: each as its descriptor and its inode."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") != "anon_inode:[eventpoll]":
                continue
            told = Path(f"/proc/self/fdinfo/{name}").read_text(encoding="ascii")
        except OSError:  # closed since it was listed, or a host that shows less: then no listener is closed
            continue
        for found in _WATCHED.finditer(told):
            yield int(found[1]), int(found[2], 16)


def _addresses(told: Iterable[bytes]) -> set[Address]:
    """The addresses at which all ranks listen."""
    lines = b"\n".join(told).decode().split("\n")
    return {(host, int(port)) for host, port in (line.split(" ") for line in lines if line)}


def _connected_sockets(addresses: set[Address]) -> list[int]:
    found = []
    for fd, one in tcp_sockets():
        with contextlib.suppress(OSError):
            if not addresses.isdisjoint((address_of(one.getsockname()), address_of(one.getpeername()))):
                found.append(fd)
    return found


def _listening() -> list[Address]:
    return [one.address for one in listeners()]
