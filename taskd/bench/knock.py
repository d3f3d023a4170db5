"""Strangers that knock at ports: `python knock.py COUNT HOST:PORT...`, for `taskd bench strangers`.

COUNT connections to each port are held open for as long as this process lives. A third says nothing, a third sends a
byte now and then, a third sends garbage. One that the other side closes is opened anew, a little later. Once all have
been opened, and again whenever a line comes on standard input, one JSON line says how many are open and how many were
closed by the other side. Alone, since it needs a process of its own. It knows nothing of taskd's protocols.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import selectors
import socket
import sys
import time
from collections import Counter

SLOW_S = 1.0
"""Between two bytes of a slow one."""
AGAIN_S = 0.5
"""A connection that was closed is opened anew after this."""
BATCH = 200
"""Connections that are opened in one turn."""
GARBAGE = 4096
KINDS = ("silent", "slow", "garbage")


class Knocker:
    """All connections of this process."""

    def __init__(self, count: int, ports: list[tuple[str, int]]) -> None:
        self.selector = selectors.DefaultSelector()
        self.opened: Counter[int] = Counter()
        self.closed: Counter[int] = Counter()
        self._first = count * len(ports)  # those that have yet to be opened for the first time
        self._wanted = [(port, KINDS[number % 3]) for number in range(count) for port in ports]
        self._waiting: list[tuple[float, tuple[str, int], str]] = []
        self._slow: dict[socket.socket, float] = {}

    def turn(self) -> None:
        """Open some, hear which were closed, and send what is due."""
        now = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            _, port, kind = self._waiting.pop(0)
            self._wanted.append((port, kind))
        batch = self._wanted[:BATCH]
        del self._wanted[:BATCH]
        for port, kind in batch:
            self._open(port, kind)
        for key, _ in self.selector.select(0 if self._wanted else 0.05):
            if key.data is None:
                self.say()
            else:
                self._hear(key.fileobj, *key.data)  # type: ignore[arg-type]
        for one, at in [*self._slow.items()]:
            if at <= now:
                self._slow[one] = now + SLOW_S
                with contextlib.suppress(OSError):
                    one.send(b"\x01")

    @property
    def through(self) -> bool:
        """Whether all have been opened once."""
        return self._first <= 0

    def _open(self, port: tuple[str, int], kind: str) -> None:
        self._first -= 1
        one = socket.socket(socket.AF_INET6 if ":" in port[0] else socket.AF_INET)
        one.setblocking(False)
        try:
            with contextlib.suppress(BlockingIOError):
                one.connect(port)
        except OSError:
            one.close()
            self._lost(port, kind)
            return
        self.opened[port[1]] += 1
        self.selector.register(one, selectors.EVENT_READ, (port, kind))
        if kind == "slow":
            self._slow[one] = time.monotonic()
        elif kind == "garbage":
            with contextlib.suppress(OSError):
                one.send(os.urandom(GARBAGE))

    def _hear(self, one: socket.socket, port: tuple[str, int], kind: str) -> None:
        with contextlib.suppress(BlockingIOError, InterruptedError):
            try:
                if one.recv(65536):
                    return
            except (ConnectionError, TimeoutError):
                pass
            self.selector.unregister(one)
            self._slow.pop(one, None)
            one.close()
            self.opened[port[1]] -= 1
            self._lost(port, kind)

    def _lost(self, port: tuple[str, int], kind: str) -> None:
        self.closed[port[1]] += 1
        self._waiting.append((time.monotonic() + AGAIN_S, port, kind))

    def say(self) -> None:
        """What has become of them."""
        asked = os.read(0, 4096)
        if not asked:
            raise SystemExit(0)
        self.tell()

    def tell(self) -> None:
        """The same, unasked."""
        found = {"open": dict(self.opened), "closed": dict(self.closed)}
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


def main(count: int, ports: list[tuple[str, int]]) -> None:
    """Knock until standard input ends."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    knocker, told = Knocker(count, ports), False
    knocker.selector.register(0, selectors.EVENT_READ, None)
    while True:
        knocker.turn()
        if knocker.through and not told:
            told = True
            knocker.tell()


if __name__ == "__main__":
    main(int(sys.argv[1]), [(host, int(port)) for host, _, port in (word.rpartition(":") for word in sys.argv[2:])])
