"""Keeps copies of other nodes' records, so that the loss of a node does not lose its ranks' records.

Each node that trains keeps copies for a neighbour. Workers write their local records to one socket (keeper_door.py).
Agents use another socket, under CURVE with the job's key. There they offer set-up records, and ask for the records of
a rank that is to start on their node. Each socket has a thread of its own, in the launcher. So the manager may die and
come back meanwhile, and other nodes' transfers do not delay the agent. Connections that have not proved the key are
limited (wire/strangers.py, keeper_door.py).
It does NOT know what the records mean (keeper_records.py keeps them) or which node keeps what (launch/keepers.py).
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading

import zmq

from taskd import log
from taskd.backup.keeper_door import CopyDoor
from taskd.backup.keeper_records import Records
from taskd.core import limits
from taskd.core.messages import AboutRecords, RecordsAsk
from taskd.errors import BackendError
from taskd.mistakes import Mistakes
from taskd.wire import keys
from taskd.wire.codec import Envelope, WireError, decode, encode
from taskd.wire.strangers import Connections, End

BACKLOG = 4096
HANDSHAKE_MS = 10_000
_logger = log.get(__name__)


class Keeper:
    """The keeper of one node. It listens as soon as it is made; call `start`, then `stop`.

    `records_port` is for workers, `port` for agents."""

    def __init__(self, job: str, node: str, address: str, key: keys.Key) -> None:
        """Raises BackendError when no port is available at this address ("*": any)."""
        self._job, self._node, self._key = job, node, key
        self._life, self._sequence = secrets.randbits(62), 0
        self._records = Records()
        host = "0.0.0.0" if address == "*" else address
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        context = zmq.Context(1)
        self._zap = context.socket(zmq.ROUTER)
        self._router = context.socket(zmq.ROUTER)
        self._connections: Connections | None = None
        try:
            listener.bind((host, 0))
            listener.listen(BACKLOG)
            self._listen(host)
        except (OSError, zmq.ZMQError) as error:
            listener.close()
            self._close_sockets()
            raise BackendError(f"no port of {host} can be had for copies of records: {error.strerror}") from None
        self.records_port = int(listener.getsockname()[1])
        self._door = CopyDoor(listener, key.copies, self._records)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="taskd-keeper", daemon=True)

    def _listen(self, host: str) -> None:
        router = self._router
        self._zap.bind(keys.ZAP_ENDPOINT)
        self._key.protect_server(router)
        router.linger = 0
        router.ipv6 = ":" in host
        router.backlog = BACKLOG
        router.maxmsgsize = limits.MAX_MESSAGE_BYTES
        router.handshake_ivl = HANDSHAKE_MS
        self._connections = Connections(router)
        self.port = router.bind_to_random_port(f"tcp://[{host}]" if ":" in host else f"tcp://{host}")

    def start(self) -> None:
        """Begin to receive copies."""
        self._door.start()
        self._thread.start()

    def stop(self) -> None:
        """Close everything; returns when that is done."""
        self._stopping = True
        if self._thread.ident is not None:
            os.eventfd_write(self._wake, 1)
            self._thread.join()
        self._door.stop()
        self._close_sockets()
        os.close(self._wake)

    def _close_sockets(self) -> None:
        if self._connections is not None:
            self._connections.close()
        context = self._router.context
        self._router.close(0)
        self._zap.close(0)
        context.term()

    # ---- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        connections = self._connections
        assert connections is not None
        poller = zmq.Poller()
        for source in (self._zap, self._router, connections.monitor, self._wake):
            poller.register(source, zmq.POLLIN)
        mistakes = Mistakes(_logger, "this node goes on keeping records")
        try:
            while not self._stopping:
                ready = dict(poller.poll(connections.wait_ms(-1)))
                with mistakes.about("a question about records"):
                    if self._zap in ready:
                        self._let_in()
                    self._watch(connections)
                    if self._router in ready:
                        self._serve(connections)
                    else:
                        connections.bound()
        except Exception:
            _logger.exception("this node keeps no copies of records any longer, by a mistake of its own")

    def _watch(self, connections: Connections) -> None:
        for connection, how in connections.ended():
            if not connection.proved and how in (End.CROWD, End.LARGE):
                text = "a connection of %s for questions about records was closed: %s"
                args = (connection.address, how.value)
                log.once(_logger, logging.WARNING, f"keeper {how} {connection.address}", text, *args)

    def _let_in(self) -> None:
        frames = self._zap.recv_multipart()
        # libzmq asks like a REQ socket: its routing id, an empty frame, then the request.
        reply, refused = keys.zap_answer(frames[2:], self._key.client.public)
        if refused:
            log.once(_logger, logging.WARNING, f"keeper {refused}", "%s does not hold this job's key", refused)
        if reply:
            self._zap.send_multipart([*frames[:2], *reply])

    def _serve(self, connections: Connections) -> None:
        routing, *frames = self._router.recv_multipart(copy=False)
        if not frames:
            return
        _connection, is_first = connections.of(frames[-1])
        if is_first and not len(frames[-1]):  # it only proves the key
            return
        found = decode(frames[-1].buffer)
        if isinstance(found, WireError):
            log.once(_logger, logging.WARNING, f"keeper {found.kind}", "what is no message came: %s", found.reason)
            return
        envelope, message = found
        if envelope.job != self._job or not isinstance(message, AboutRecords):
            return
        with self._door.lock:
            if isinstance(message, RecordsAsk):
                self._door.drain()  # first receive the last records of a node that was lost
            replies = self._records.hear(message)
        for reply in replies:
            self._sequence += 1
            # An agent that does not read loses the reply, and repeats its question.
            self._router.send_multipart(
                [routing.bytes, encode(reply, Envelope(self._job, self._node, self._life, self._sequence))], zmq.NOBLOCK
            )
