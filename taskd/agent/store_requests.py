"""The manager's side of the store relay: operations that are not answered yet.

An unanswered operation is sent again, at once when the connection to the manager comes back. The manager handles such
repetitions. An operation that is still unanswered at its timeout is answered here, with the reason. If a client goes
away, its wait ends: the manager is told to forget it. Every message names the number below which no answer is needed
any more.

It does NOT know sockets of workers (store_clients.py), values, or what operations do: taskd.manager.store does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from taskd.agent.store_clients import Client
from taskd.core import limits
from taskd.core.messages import StoreAnswer, StoreAsk
from taskd.core.types import StoreOperation as Op
from taskd.core.types import StoreStatus as Status
from taskd.wire import store_frame
from taskd.wire.uplink import Uplink

RETRY_NS = 10 * limits.MS
"""How soon to send again when the connection had no room for a message."""
TIMEOUT_MS_MAX = 2**43
"""Longer than any job; its nanoseconds fit 64 bits."""
PATIENCE_MS = 1_000
"""The least time for an answer that requires no wait for keys, even if the worker's own timeout is shorter."""
_WAITING = frozenset({Op.GET, Op.WAIT})
_UNCHANGING = frozenset({Op.GET, Op.WAIT, Op.CHECK, Op.COUNT, Op.LIST})


@dataclass(eq=False)
class _Request:
    """One operation that is not answered yet."""

    number: int
    operation: Op
    amount: int
    items: tuple[bytes, ...]
    client: Client
    timeout_ms: int
    deadline_ns: int
    gap_ns: int = limits.STORE_REPEAT_NS
    due_ns: int = 0  # when to send it (again)
    asked: bool = False


class Requests:
    """All unanswered operations, at most one for each client."""

    def __init__(
        self,
        line: Uplink,
        reply: Callable[[Client, Status, int, tuple[bytes, ...]], None],
        about: Callable[[Client], AbstractContextManager[None]],
    ) -> None:
        """`reply` sends an answer to a client. `about`: a context for serving one; if that raises, it is withdrawn."""
        self._line = line
        self._reply, self._about = reply, about
        self._by_number: dict[int, _Request] = {}
        self._of: dict[Client, _Request] = {}
        self._changing: dict[int, None] = {}  # the numbers of operations that change something, in order
        self._number = 0
        self._due_ns = 0  # no operation needs attention before this time

    def begin(self, client: Client, frame: store_frame.Frame) -> None:
        """Take an operation from a client and send it to the manager."""
        self._number += 1
        timeout_ms = max(0, min(frame.timeout_ms, TIMEOUT_MS_MAX))
        waits = frame.operation in _WAITING
        amount = int(timeout_ms == 0) if waits else frame.amount
        now = time.monotonic_ns()
        deadline_ns = now + limits.MS * (timeout_ms if waits and timeout_ms else max(timeout_ms, PATIENCE_MS))
        request = _Request(self._number, frame.operation, amount, frame.items, client, timeout_ms, deadline_ns)
        self._of[client] = self._by_number[request.number] = request
        if frame.operation not in _UNCHANGING:
            self._changing[request.number] = None
        self._ask(request, now)
        due = min(request.due_ns, request.deadline_ns)
        self._due_ns = due if len(self._by_number) == 1 else min(self._due_ns, due)

    def withdraw(self, client: Client) -> None:
        """Forget the operation of a client that is gone and needs no answer."""
        request = self._of.get(client)
        if request is not None:  # None: `begin` has raised before it had taken the operation
            self._give_up(request)

    def answered(self, answer: StoreAnswer) -> None:
        """Pass an answer of the manager to its client."""
        request = self._by_number.get(answer.number)
        if request is not None:
            with self._about(request.client):
                self._forget(request)
                self._reply(request.client, answer.status, answer.amount, answer.items)

    def ask_all(self) -> None:
        """Send all operations again, because the connection to the manager has come back."""
        now = time.monotonic_ns()
        for request in list(self._by_number.values()):
            request.gap_ns = limits.STORE_REPEAT_NS
            with self._about(request.client):
                self._ask(request, now)
        self._due_ns = now

    def next_deadline(self) -> int | None:
        """When to call `look`; None if nothing is unanswered."""
        return self._due_ns if self._by_number else None

    def look(self, now: int) -> None:
        """Send due operations again, and answer those whose timeout is over."""
        for request in list(self._by_number.values()):
            with self._about(request.client):
                if now >= request.deadline_ns:
                    self._give_up(request)
                    self._reply(request.client, Status.TIMED_OUT, 0, (self._why_not(request).encode(),))
                elif now >= request.due_ns:
                    self._ask(request, now)
        left = self._by_number.values()
        self._due_ns = min((min(request.due_ns, request.deadline_ns) for request in left), default=0)

    def _ask(self, request: _Request, now: int) -> None:
        """Send the operation if there is a connection, and set the time of its next repetition."""
        ask = StoreAsk(request.number, self._settled(), request.operation, request.amount, request.items)
        if self._line.send(ask):
            request.asked = True
            request.due_ns = now + request.gap_ns
            if request.operation in _WAITING:
                request.gap_ns = min(2 * request.gap_ns, limits.STORE_REPEAT_MAX_NS)
        elif self._line.ready:
            request.due_ns = now + RETRY_NS
        else:
            request.due_ns = request.deadline_ns  # sooner if the connection comes back

    def _settled(self) -> int:
        return next(iter(self._changing), self._number + 1)

    def _give_up(self, request: _Request) -> None:
        """Forget an operation whose answer is not needed any more, and tell the manager to drop its wait."""
        self._forget(request)
        if request.asked and request.operation in _WAITING:
            self._number += 1
            self._line.send(StoreAsk(self._number, self._settled(), Op.FORGET, request.number, ()))

    def _why_not(self, request: _Request) -> str:
        if request.asked and self._line.ready and request.operation in _WAITING:
            shown = ", ".join(key[:100].decode("utf-8", "backslashreplace") for key in request.items[:3])
            more = f" and {len(request.items) - 3} more" if len(request.items) > 3 else ""
            return f"wait timeout after {request.timeout_ms}ms, keys: {shown}{more}"
        why = self._line.reason or "the manager does not answer"
        return f"{request.operation.name.lower()} was not carried out in time: {why}"

    def _forget(self, request: _Request) -> None:
        self._by_number.pop(request.number, None)
        self._of.pop(request.client, None)
        self._changing.pop(request.number, None)
