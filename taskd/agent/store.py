"""The node's relay to the job's store: takes operations from workers on a socket and has the manager carry them out.

It has its own thread and its own connection to the manager, so that a slow store never delays supervision, nor the
other way round. It joins the connections of workers (store_clients.py) to the requests to the manager
(store_requests.py), and waits for both. A bug of taskd costs the connection that it happened on (mistakes.py).

It does NOT keep values or know what operations do: taskd.manager.store does.
"""

from __future__ import annotations

import os
import threading
import time

import zmq

from taskd import _native, log
from taskd.agent.store_clients import Clients
from taskd.agent.store_requests import Requests
from taskd.core import limits
from taskd.core.messages import StoreAnswer
from taskd.mistakes import Mistakes
from taskd.wire import keys, local
from taskd.wire.uplink import Uplink

_logger = log.get(__name__)


class StoreRelay:
    """Serves from `start` to `stop`; before that, clients wait in the socket's backlog. Call `use` from any thread."""

    def __init__(self, job: str, node: str, host: str, port: int) -> None:
        self._line = Uplink(host, port, job, node)
        self._mistakes = Mistakes(_logger, "the store of this node goes on without it")
        self._requests = Requests(
            self._line, lambda *answer: self._clients.reply(*answer), lambda client: self._clients.about(client)
        )
        begin, withdraw = self._requests.begin, self._requests.withdraw
        self._clients = Clients(local.store_address(job, node), begin, withdraw, self._mistakes)
        self._key: keys.Key | None = None
        self._stopping = False
        self._poller = zmq.Poller()
        self._sources: list[object] = []
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        _native.close_on_fork(self._wake)
        self._thread = threading.Thread(target=self._run, name="taskd-store", daemon=True)
        self._clients.listen()

    def start(self) -> None:
        """Serve in a thread of its own."""
        self._thread.start()

    def use(self, key: keys.Key) -> None:
        """Speak to the manager with this key from now on."""
        if key is not self._key:
            self._key = key
            os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """Close every connection and the name; returns when that is done."""
        if self._thread.ident is None:
            self._close()
        else:
            self._stopping = True
            os.eventfd_write(self._wake, 1)
            self._thread.join()
        _native.keep_on_fork(self._wake)
        os.close(self._wake)

    def _run(self) -> None:
        try:
            while not self._stopping:
                with self._mistakes.about("a turn of the store of this node"):
                    self._turn()
        except Exception:
            _logger.exception("the store of this node ends by a mistake of its own; its workers can make no new groups")
        finally:
            self._close()

    def _turn(self) -> None:
        about = self._mistakes.about
        if self._wake in self._poll():
            os.eventfd_read(self._wake)
        self._clients.serve()
        if self._key is not None and self._line.key is not self._key:
            with about("speaking to the manager with another key"):
                self._line.use(self._key)
        for came in self._line.changes():
            if came:
                self._requests.ask_all()
        for message in self._line.received():
            if isinstance(message, StoreAnswer):
                self._requests.answered(message)
        now = time.monotonic_ns()
        due = self._requests.next_deadline()
        if due is not None and now >= due:
            self._requests.look(now)
        due = self._clients.next_deadline()
        if due is not None and now >= due:
            with about("listening for workers"):
                self._clients.listen()

    def _poll(self) -> set[object]:
        """Wait until there is something to do; returns the sources that are ready."""
        sources = [self._wake, self._clients.fd, *self._line.sources()]
        if sources != self._sources:
            self._poller, self._sources = zmq.Poller(), sources
            for source in sources:
                self._poller.register(source, zmq.POLLIN)
        due = [at for at in (self._requests.next_deadline(), self._clients.next_deadline()) if at is not None]
        wait_ms = max(0, -(-(min(due) - time.monotonic_ns()) // limits.MS)) if due else None
        return {source for source, _ in self._poller.poll(wait_ms)}

    def _close(self) -> None:
        self._clients.close()
        self._line.close()
