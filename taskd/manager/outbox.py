"""What the manager has to send, as bytes, until its turn ends: nothing leaves before the journal holds it.

A message that goes to many nodes is one object of the core and is encoded once; only the envelope is each node's own.
It does NOT send, and does not know where anybody is.
"""

from __future__ import annotations

from taskd.wire.codec import Body, Envelope, Message, body_of, seal


class Outbox:
    """Of one life of the manager. `post` in any order, `take` once per turn."""

    def __init__(self, job: str, life: int) -> None:
        self._job = job
        self._life = life
        self._sequence = 0
        self._waiting: list[tuple[bytes, bytes]] = []
        self._last: tuple[Message, Body] | None = None

    def post(self, routing: bytes, message: Message, node: str) -> None:
        """Send this to the agent of a node, or (a node without a name) to whoever has asked."""
        if self._last is None or self._last[0] is not message:
            self._last = (message, body_of(message))
        self._sequence += 1
        self._waiting.append((routing, seal(self._last[1], Envelope(self._job, node, self._life, self._sequence))))

    def take(self) -> list[tuple[bytes, bytes]]:
        """What waits, in order: where to, and the bytes."""
        waiting, self._waiting = self._waiting, []
        self._last = None
        return waiting
