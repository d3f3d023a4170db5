"""Where a probe is reached: a socket for each of its rails, and the connections that have come there.

A caller says for which test it comes (`hello`, and the test's token). It may be there before this node has its own
order for that test, so the connection is kept until then. Failure modes: a stranger connects and says nothing, or the
wrong thing, again and again. Invariants: a connection has HELLO_SECONDS for its first words. GUESTS_MOST are kept, of
which the oldest one makes room.
"""

from __future__ import annotations

import collections
import socket
import threading
import time
from collections.abc import Mapping

from taskd.check.talk import Broken, Talk
from taskd.core.check.facts import Way

HELLO_SECONDS = 1.0
AGAIN_SECONDS = 0.05
GUESTS_MOST = 64
_TOKEN_MOST = 64


class Door:
    """The sockets of one probe."""

    def __init__(self, addresses: Mapping[str, str], ports: tuple[int, int]) -> None:
        """`addresses`: of each rail. `ports`: the first and the last one that may be used; 0: any. Raises OSError if an
        address cannot be listened on."""
        self._addresses = addresses
        self._listeners = {name: _listen(address, ports) for name, address in addresses.items()}
        self._came = threading.Condition()
        self._guests: collections.deque[tuple[str, str, Talk]] = collections.deque(maxlen=GUESTS_MOST)
        self._reading = threading.Semaphore(GUESTS_MOST)
        for name, listener in self._listeners.items():
            threading.Thread(target=self._accept, args=(name, listener), daemon=True).start()

    @property
    def ports(self) -> dict[str, int]:
        """The port of each rail."""
        return {name: listener.getsockname()[1] for name, listener in self._listeners.items()}

    def guests(self, token: str, seconds: float) -> list[tuple[str, Talk]]:
        """Return the connections that have come for this test, each with its rail. Wait for one for some time."""
        with self._came:
            self._came.wait_for(lambda: any(guest[0] == token for guest in self._guests), seconds)
            found = [guest for guest in self._guests if guest[0] == token]
            for guest in found:
                self._guests.remove(guest)
        return [(name, talk) for _, name, talk in found]

    def connect(self, name: str, place: tuple[str, int], until: float) -> Talk:
        """Connect to a partner, out of this node's rail of this name. Raises Broken."""
        address = self._addresses[name]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.settimeout(max(until - time.monotonic(), 0.001))
            connection.bind((address, 0))
            connection.connect(place)
        except OSError as error:
            connection.close()
            raise Broken(Way.LATE if isinstance(error, TimeoutError) else Way.FAILED) from None
        return Talk(connection, until)

    def _accept(self, name: str, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # who has connected has gone already, or too many files are open
                time.sleep(AGAIN_SECONDS)  # so that the second reason does not make a busy loop
                continue
            if self._reading.acquire(blocking=False):
                threading.Thread(target=self._greet, args=(name, connection), daemon=True).start()
            else:
                connection.close()

    def _greet(self, name: str, connection: socket.socket) -> None:
        try:
            talk = Talk(connection, time.monotonic() + HELLO_SECONDS)
            token = talk.hear_only("hello")
        except (Broken, OSError):
            connection.close()
            return
        finally:
            self._reading.release()
        if not isinstance(token, str):
            connection.close()
            return
        with self._came:
            if len(self._guests) == GUESTS_MOST:
                self._guests.popleft()[2].close()
            self._guests.append((token[:_TOKEN_MOST], name, talk))
            self._came.notify_all()


def _listen(address: str, ports: tuple[int, int]) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    for port in range(ports[0], ports[1] + 1):
        try:
            listener.bind((address, port))
        except OSError:
            if port == ports[1]:
                raise
        else:
            break
    listener.listen(GUESTS_MOST)
    return listener
