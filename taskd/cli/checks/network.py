"""The doctor's field "network": the interfaces of this node, and who has the manager's port.

It binds and connects for a moment and listens for the first bytes that whoever answers sends by itself; it says nothing
to anybody. It does NOT measure a link.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
import threading
from pathlib import Path

from taskd.cli.checks import Finding, fault, ok, warning
from taskd.config import Config
from taskd.manager import residence

TOPIC = "network"
LIMIT_S = 3.0
SIOCGIFADDR = 0x8915
SIOCGIFFLAGS = 0x8913
IFF_UP = 0x1
IFF_LOOPBACK = 0x8
IFF_RUNNING = 0x40
# How ZeroMQ greets whoever connects: ff, eight bytes, 7f.
GREETING_BYTES = 10


def check(config: Config) -> list[Finding]:
    """Every finding of this field."""
    return [_interfaces(), _manager_port(config)]


def _interfaces() -> Finding:
    shown, without, down = [], [], []
    for _, name in sorted(socket.if_nameindex(), key=lambda pair: pair[1]):
        flags = _flags(name)
        if flags & IFF_LOOPBACK:
            continue
        addresses = _addresses(name)
        if not flags & IFF_UP or not flags & IFF_RUNNING:
            down.append(name)
        elif addresses:
            shown.append(f"{name} {', '.join(addresses)}")
        else:
            without.append(name)
    rest = f"; without an address: {', '.join(without)}" if without else ""
    rest += f"; down: {', '.join(down)}" if down else ""
    if not shown:
        return warning(
            TOPIC,
            "interfaces",
            f"no interface but loopback is up with an address{rest}: jobs of one node run, jobs of several cannot",
            "bring an interface up (`ip link set NAME up`), or give the container a network",
        )
    return ok(TOPIC, "interfaces", "; ".join(shown) + rest)


def _flags(name: str) -> int:
    # Not from /sys: a container may see another network namespace's there.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), SIOCGIFFLAGS, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return 0  # gone since it was listed
    return int(struct.unpack_from("H", answer, 16)[0])


def _addresses(name: str) -> list[str]:
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", name.encode()[:15])
        try:
            found.append(socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)[20:24]))
        except OSError:
            pass  # an interface without an IPv4 address
    for line in _read("/proc/net/if_inet6").splitlines():
        fields = line.split()
        if len(fields) == 6 and fields[5] == name:
            found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[0])))
    return found


def _manager_port(config: Config) -> Finding:
    host, port = config.manager.host, config.manager.port
    where = f"{host}:{port}"
    address = _resolve(host)
    if address is None:
        return fault(
            TOPIC,
            "manager port",
            f"the name {host!r} of the manager's host is not known here",
            "correct TASKD_MANAGER_HOST",
        )
    if not _is_here(address):
        return _remote(where, address, port)
    trouble = _bind(config.manager.bind, port)
    if trouble == 0:
        return ok(TOPIC, "manager port", f"{port} is free for a manager on this host")
    if trouble != errno.EADDRINUSE:
        return fault(
            TOPIC,
            "manager port",
            f"a manager cannot listen on {config.manager.bind}:{port} ({os.strerror(trouble)})",
            "correct TASKD_MANAGER_BIND or take a TASKD_MANAGER_PORT from 1024 on",
        )
    owner = residence.holder_of(port, config.job.run_dir) or "a process of another user"
    if _speaks_zeromq(address, port):
        return ok(TOPIC, "manager port", f"{port} is held by {owner}, which answers as a manager does")
    return fault(
        TOPIC,
        "manager port",
        f"{port} is taken by {owner}, which is no manager",
        f"end it, or set TASKD_MANAGER_PORT to another port on every node (not {port})",
    )


def _remote(where: str, address: str, port: int) -> Finding:
    if _speaks_zeromq(address, port):
        return ok(TOPIC, "manager port", f"a manager answers at {where}")
    return warning(
        TOPIC,
        "manager port",
        f"no manager answers at {where} within {LIMIT_S:g} s",
        "start the job's manager there, or open the port in the firewall between these hosts",
    )


def _resolve(host: str) -> str | None:
    """An address of a host; None when the name is unknown or its servers do not answer in time."""
    found: list[str] = []

    def ask() -> None:
        try:
            found.append(str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]))
        except (OSError, UnicodeError):
            pass  # an unknown name is the answer

    # getaddrinfo has no time limit of its own, and name servers that are gone take half a minute.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(LIMIT_S)
    return found[0] if found else None


def _is_here(address: str) -> bool:
    return _bind(address, 0) != errno.EADDRNOTAVAIL


def _bind(address: str, port: int) -> int:
    """0 when an address and port can be listened on, or the errno. The socket is closed at once."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0" if address in ("", "*") else address, port))
            if port:
                probe.listen(1)  # with SO_REUSEADDR only listening shows that another one listens
        except socket.gaierror:
            return errno.EADDRNOTAVAIL
        except OSError as error:
            return error.errno or errno.EINVAL
    return 0


def _speaks_zeromq(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=LIMIT_S) as probe:
            greeting = b""
            while len(greeting) < GREETING_BYTES:
                part = probe.recv(GREETING_BYTES - len(greeting))
                if not part:
                    return False
                greeting += part
    except OSError:
        return False
    return greeting[0] == 0xFF and greeting[9] == 0x7F


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""
