"""Holds the manager's messages, as bytes, until its turn ends: nothing is sent before the journal holds it.

A message to many nodes is one object of the core and is encoded once; only the envelope is made for each node.
It does NOT send, and does not know where the nodes are.
"""

from __future__ import annotations

from taskd.wire.codec import Body, Envelope, Message, body_of, seal


class Outbox:
    """The outbox of one life of the manager. Call `post` in any order, and `take` once per turn."""

    def __init__(self, job: str, life: int) -> None:
        self._job = job
        self._life = life
        self._sequence = 0
        self._waiting: list[tuple[bytes, bytes]] = []
        self._last: tuple[Message, Body] | None = None

    def post(self, routing: bytes, message: Message, node: str) -> None:
        """Queue a message for the agent of a node. An empty `node`: it answers an operator or a store client."""
        if self._last is None or self._last[0] is not message:
            self._last = (message, body_of(message))
        self._sequence += 1
        self._waiting.append((routing, seal(self._last[1], Envelope(self._job, node, self._life, self._sequence))))

    def take(self) -> list[tuple[bytes, bytes]]:
        """Remove and return the queued messages in order: each with its routing id and its bytes."""
        waiting, self._waiting = self._waiting, []
        self._last = None
        return waiting
