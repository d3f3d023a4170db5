"""Strangers that knock at a port: `python knock.py COUNT HOST:PORT`, for `taskd bench strangers`.

COUNT connections are held open for as long as this process lives. A third says nothing, a third sends a byte now and
then, a third sends garbage. One that the other side closes is opened anew, a little later. Once all have been opened,
and again whenever a line comes on standard input, one JSON line says how many are open, how many are not yet (the other
side does not accept them), and how many the other side has closed. Standard input's end is this process' end.

Alone, since it needs a process of its own. It gives way to others: strangers use the processors of other machines. It
knows nothing of taskd's protocols.
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
from collections import deque

SLOW_S = 1.0
"""Between two bytes of a slow one."""
AGAIN_S = 0.5
"""A connection that was closed is opened anew after this."""
BATCH = 200
"""Connections that are opened in one turn."""
GARBAGE = 4096
KINDS = ("silent", "slow", "garbage")
NICE = 10


class Knocker:
    """All connections of this process."""

    def __init__(self, count: int, host: str, port: int) -> None:
        self.selector = selectors.DefaultSelector()
        self.open = self.closed = 0
        self._place = (host, port)
        self._family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._first = count  # those that have yet to be opened, or to fail, for the first time
        self._wanted = deque(KINDS[number % len(KINDS)] for number in range(count))
        self._waiting: deque[tuple[float, str]] = deque()
        self._connecting: set[socket.socket] = set()
        self._slow: dict[socket.socket, float] = {}

    def turn(self) -> bool:
        """Open some, hear which were closed, and send what is due. Returns whether something came on standard input."""
        now = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            self._wanted.append(self._waiting.popleft()[1])
        for _ in range(min(BATCH, len(self._wanted))):
            self._open(self._wanted.popleft())
        asked = False
        for key, _ in self.selector.select(0 if self._wanted else 0.05):
            if key.data is None:
                asked = True
            elif key.fileobj in self._connecting:
                self._connected(key.fileobj, key.data)  # type: ignore[arg-type]
            else:
                self._hear(key.fileobj, key.data)  # type: ignore[arg-type]
        for one, at in [*self._slow.items()]:
            if at <= now:
                self._slow[one] = now + SLOW_S
                with contextlib.suppress(OSError):
                    one.send(b"\x01")
        return asked

    @property
    def through(self) -> bool:
        """Whether all have been opened once."""
        return self._first <= 0

    def _open(self, kind: str) -> None:
        one = None
        try:
            one = socket.socket(self._family)
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect(self._place)
        except OSError:
            self._first -= 1
            self._lost(one, kind)
            return
        self._connecting.add(one)
        self.selector.register(one, selectors.EVENT_WRITE, kind)

    def _connected(self, one: socket.socket, kind: str) -> None:
        self._connecting.discard(one)
        self._first -= 1
        if one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.selector.unregister(one)
            self._lost(one, kind)
            return
        self.open += 1
        self.selector.modify(one, selectors.EVENT_READ, kind)
        if kind == "slow":
            self._slow[one] = time.monotonic()
        elif kind == "garbage":
            with contextlib.suppress(OSError):
                one.send(os.urandom(GARBAGE))

    def _hear(self, one: socket.socket, kind: str) -> None:
        try:
            if one.recv(65536):
                return
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            pass
        self.selector.unregister(one)
        self._slow.pop(one, None)
        self.open -= 1
        self._lost(one, kind)

    def _lost(self, one: socket.socket | None, kind: str) -> None:
        if one is not None:
            one.close()
        self.closed += 1
        self._waiting.append((time.monotonic() + AGAIN_S, kind))

    def tell(self) -> None:
        """Say what has become of them."""
        found = {"open": self.open, "waiting": len(self._connecting), "closed": self.closed}
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


def main(count: int, host: str, port: int) -> None:
    """Knock until standard input ends."""
    os.nice(NICE)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    knocker, told = Knocker(count, host, port), False
    knocker.selector.register(0, selectors.EVENT_READ, None)
    while True:
        asked = knocker.turn()
        if asked and not os.read(0, 4096):
            return
        if asked or (knocker.through and not told):
            told = told or not asked
            knocker.tell()


if __name__ == "__main__":
    where, _, number = sys.argv[2].rpartition(":")
    main(int(sys.argv[1]), where, int(number))
