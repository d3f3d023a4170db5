"""The agent's desk: exchanges messages with this node's processes, from their hello on.

Messages are checked here as far as the system allows (whose process, whose page, whose rank) and handed to the core.
The core's orders are written into the rank's page, and its messages are sent to the rank's process. The desk never
waits for a process that does not read. A process that breaks the rules is counted, and logged once.
It does NOT decide which process is accepted: the core does.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace

from taskd import _native, log
from taskd.agent.deaths import Deaths
from taskd.agent.workers import Reception, Worker, Workers
from taskd.core import effects, events
from taskd.core.limits import KEY_BYTES, MS
from taskd.core.messages import (
    CountersShown,
    Evidence,
    FromWorker,
    Order,
    StackAsked,
    StackTold,
    Stop,
    ToWorker,
    WorkerHello,
    WorkerLeaving,
    WorkerWelcome,
)
from taskd.core.words import cut
from taskd.wire import keys, local
from taskd.wire.codec import Envelope, WireError, decode, encode
from taskd.wire.uplink import Uplink

MESSAGES_PER_TURN = 64
"""How many messages of one worker are read per turn: a worker that sends without end must not block the others."""
REASON_NS = 500 * MS
_logger = log.get(__name__)


class Desk:
    """The desk of one agent. `step` hands a worker's message to the core and carries out the effects.

    For a hello, `step` also gets the worker that sent it."""

    def __init__(
        self,
        job: str,
        node: str,
        listener: socket.socket,
        workers: Workers,
        deaths: Deaths,
        uplink: Uplink,
        step: Callable[[events.WorkerSaid, Worker | None], None],
    ) -> None:
        self.stack_told: Callable[[Worker, str], None] = lambda _worker, _words: None
        """Called with the stack that a process reports."""
        self.refused: dict[str, int] = {}  # how often each rule was broken
        self.refusal = ""  # why the manager does not accept this agent at all
        self._job, self._node = job, node
        self._reception = Reception(listener)
        self._workers, self._deaths, self._uplink, self._step = workers, deaths, uplink, step
        self._sequence = 0
        self._reason_at_ns = 0
        self._told_reason = ""

    @property
    def fd(self) -> int:
        """Readable when a process wants to connect."""
        return self._reception.listener.fileno()

    def close(self) -> None:
        """Release the socket's name: a process that comes now starts another agent."""
        self._reception.close()

    @property
    def _reason(self) -> str:
        """Why no worker of this node can be acknowledged; reasons of a single worker are not here."""
        return self._uplink.reason or self.refusal

    def tell_reason(self, now: int) -> None:
        """Tell the workers that wait for the manager's acknowledgement why there is none."""
        reason = self._reason
        if now < self._reason_at_ns or reason == self._told_reason:
            return
        self._reason_at_ns, self._told_reason = now + REASON_NS, reason
        for worker in self._workers.by_rank.values():
            if reason and worker.welcome is not None and not worker.welcome.acknowledged:
                self.tell(worker, replace(worker.welcome, reason=cut(reason)))

    def accept(self) -> None:
        """Accept all waiting connections, and read their messages."""
        while (met := self._reception.accept(len(self._workers.by_pid))) is not None:
            connection, pid = met
            worker = self._workers.meet(pid)
            if worker is None:
                _native.keep_on_fork(connection.fileno())
                connection.close()
                continue
            self._workers.hang_up(worker)
            worker.connection = connection
            self.receive(worker)

    def receive(self, worker: Worker) -> None:
        """Read the messages of this process."""
        for _ in range(MESSAGES_PER_TURN):
            if worker.connection is None:
                return
            try:
                got = local.receive(worker.connection)
            except EOFError:
                self._hung_up(worker)
                return
            except local.Malformed as error:
                self._refuse("malformed", f"process {worker.pid} broke the rules of its connection: {error}")
                self._hung_up(worker)
                return
            if got is None:
                return
            data, descriptors = got
            found = decode(data)
            if isinstance(found, WireError):
                local.close_all(descriptors)
                self._refuse(found.kind, f"process {worker.pid} sent something that is no message: {found.reason}")
            elif isinstance(found[1], WorkerHello):
                self._hello(worker, found[1], descriptors)
            elif isinstance(found[1], CountersShown):
                self._counters(worker, found[1], descriptors)
            else:
                local.close_all(descriptors)
                self._hear(worker, found[1])

    def _hung_up(self, worker: Worker) -> None:
        self._workers.hang_up(worker)
        if worker.rank < 0 and not worker.incarnation:  # a process that had a rank is forgotten when it has ended
            self._workers.drop(worker)
        else:
            self._deaths.doubt(worker, time.monotonic_ns())

    def _hello(self, worker: Worker, hello: WorkerHello, descriptors: list[int]) -> None:
        trouble = ""
        try:
            page = _native.Page.attach(descriptors[0]) if descriptors else None
        except (ValueError, OSError) as error:
            page, trouble = None, f"its beat page cannot be used: {error}"
        if page is not None and (page.pid, page.rank) != (worker.pid, hello.rank):
            trouble = f"its beat page is that of rank {page.rank} in process {page.pid}"
        if hello.pid != worker.pid:
            trouble = f"it says that it is process {hello.pid}, the system says {worker.pid}"
        if page is None or trouble:
            local.close_all(descriptors)
            reason = trouble or "it came without a beat page"
            self._refuse("hello", f"process {worker.pid} was not let in as rank {hello.rank}: {reason}")
            self.tell(worker, WorkerWelcome(False, False, hello.incarnation, hello.epoch, cut(reason)))
            return
        os.close(descriptors.pop(0))
        if len(hello.key) == KEY_BYTES:
            self._uplink.use(keys.Key(hello.key, "a worker of this node"))
        self._workers.show_page(worker, page)
        self._step(events.WorkerSaid(hello), worker)
        if worker.rank == hello.rank:
            self._workers.records.keep(hello.rank, descriptors, worker.incarnation)
        else:
            local.close_all(descriptors)

    def _counters(self, worker: Worker, said: CountersShown, descriptors: list[int]) -> None:
        trouble = ""
        if worker.rank < 0 or said.rank != worker.rank:
            trouble = f"it spoke for rank {said.rank}, which it is not"
        elif not descriptors:
            trouble = "they came without their descriptor"
        else:
            try:
                self._workers.show_counters(worker, said.transport, descriptors[0])
            except (ValueError, OSError) as error:
                trouble = str(error)
        local.close_all(descriptors)
        if trouble:
            self._refuse("counters", f"the rail counters of process {worker.pid} are not read: {trouble}")

    def _hear(self, worker: Worker, message: object) -> None:
        if isinstance(message, WorkerHello) or not isinstance(message, FromWorker):
            self._refuse(
                "unexpected", f"process {worker.pid} sent a {type(message).__name__}, which no worker may send"
            )
            return
        if isinstance(message, StackTold) and message.rank == worker.rank:
            self.stack_told(worker, message.words)
            return
        speaker = message.witness if isinstance(message, Evidence) else message.rank
        if worker.rank < 0 or speaker != worker.rank:
            self._refuse("foreign", f"process {worker.pid} spoke for rank {speaker}, which it is not")
            return
        if isinstance(message, WorkerLeaving):
            worker.leaving = True
        self._step(events.WorkerSaid(message), None)

    def _refuse(self, kind: str, sentence: str) -> None:
        self.refused[kind] = self.refused.get(kind, 0) + 1
        log.once(_logger, logging.WARNING, f"{kind} {sentence}", "%s", sentence)

    def relay(self, effect: effects.Relay, asker: Worker | None) -> None:
        """Send to the processes of these ranks; a welcome goes to the one that has just asked."""
        message = effect.message
        for rank in effect.ranks:
            worker = self._workers.by_rank.get(rank)
            if isinstance(message, WorkerWelcome) and message.accepted and asker is not None:
                worker = asker
            if worker is None:
                continue
            if isinstance(message, WorkerWelcome) and message.accepted:
                if worker is asker:
                    self._workers.seat(worker, rank, message.incarnation)
                worker.incarnation = message.incarnation
            self.tell(worker, message)

    def ask_stack(self, worker: Worker) -> None:
        """Ask this process where in its script it is."""
        if worker.welcome is not None:
            self.tell(worker, StackAsked(worker.rank))

    def tell(self, worker: Worker, message: ToWorker) -> None:
        """Send to this process, and write an order into its page. What it does not read now is repeated later."""
        if isinstance(message, WorkerWelcome):
            if message.accepted and not message.acknowledged and not message.reason:
                message = replace(message, reason=cut(self._reason))
            worker.welcome = message
        elif worker.page is not None and isinstance(message, (Order, Stop)):
            # The word in the page reaches the guard in C++ at once, even if the GIL is held. The socket has the rest.
            word = (local.STOP_WORD, 0) if isinstance(message, Stop) else (int(message.stage), message.epoch)
            if worker.order != word:
                worker.order = word
                worker.page.order(*word)
        if worker.connection is None:
            return
        self._sequence += 1
        data = encode(message, Envelope(self._job, self._node, self._uplink.life, self._sequence))
        try:
            local.send(worker.connection, data)  # a worker that does not read gets the next repetition
        except OSError:
            return  # the poll will report the end of the connection
