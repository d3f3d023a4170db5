"""Fetches the records of a rank that lived on another node: what to ask a keeper, and how to use its answers.

A newcomer may replace a rank whose node is lost. It then needs the dead rank's local record and its set-up record. A
keeper on another node has copies. Here they become memory files again, exactly as the dead process had left them.
Questions are repeated until they are answered, so a lost message costs one repetition. The owner of the connection
sends the questions. This module does NOT know who wants the records.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field

from taskd.backup import slots
from taskd.core import limits
from taskd.core.messages import RecordsAnswer, RecordsAsk, SetupPiece, SetupWanted

Question = RecordsAsk | SetupWanted


@dataclass(frozen=True)
class Fetched:
    """The result of a fetch: two memory files, which the caller closes, or the reason why there are none."""

    rank: int
    incarnation: int  # the incarnation that wrote them
    descriptors: tuple[int, ...]
    reason: str


@dataclass
class Fetch:
    """The fetch of one rank's records. `due_ns`: when to ask again; `done` is set when there is a result.

    Keepers are asked in turn. Records of the last life are taken at once. Records of an older life are taken only when
    all keepers were asked: the last life may have ended before it had any.
    """

    rank: int
    last_life: int
    ends_ns: int
    due_ns: int = 0
    done: Fetched | None = None
    passed: bool = False
    """The keeper that was asked last does not have the records, or not the newest ones."""
    _reason: str = ""
    _unheard: bool = False  # one of the keepers that were asked did not answer
    _older: dict[int, RecordsAnswer] = field(default_factory=dict)  # by keeper
    _answer: RecordsAnswer | None = None
    _pieces: dict[bytes, bytes] = field(default_factory=dict)
    _asked: frozenset[bytes] = frozenset()

    def question(self, now: int) -> Question:
        """The question to send now."""
        self.due_ns = now + limits.COPY_REPEAT_NS
        if self._answer is None:
            return RecordsAsk(self.rank)
        missing = tuple(self._missing()[: limits.SETUP_PIECES_AT_ONCE])
        self._asked = frozenset(missing)
        return SetupWanted(self.rank, self._answer.lineage, True, missing)

    def hear(self, message: RecordsAnswer | SetupPiece, keeper: int = 0) -> None:
        """Take an answer of this keeper."""
        if isinstance(message, RecordsAnswer):
            if message.rank != self.rank or self._answer is not None or self.done is not None:
                return
            if message.lineage and message.incarnation >= self.last_life:
                self._answer, self.due_ns = message, 0
            elif message.lineage:
                self._older[keeper], self.passed = message, True
            else:
                self._reason, self.passed = message.reason, True
        elif self._answer is not None:
            digest = hashlib.sha256(message.data).digest()
            if digest in _digests(self._answer):
                self._pieces[digest] = message.data
                if self._asked <= self._pieces.keys():
                    self.due_ns = 0
        if self._answer is not None and self.done is None and not self._missing():
            self._build(self._answer)

    def next_after(self, keeper: int, last: bool, trouble: str) -> int | None:
        """The keeper to ask next, since this one lacks the records or does not answer; None: the fetch has failed."""
        self._unheard = self._unheard or not self.passed
        self._answer, self.passed, self.due_ns = None, False, 0
        if not last:
            return keeper + 1
        if self._older:
            best = max(self._older, key=lambda at: self._older[at].incarnation)
            self._answer = self._older.pop(best)
            if not self._missing():
                self._build(self._answer)
            return best
        if self._unheard:
            self._unheard = False
            return 0
        self.give_up(self._reason or trouble)
        return None

    def look(self, now: int, trouble: str) -> None:
        """Give up if the time is over."""
        if now >= self.ends_ns:
            self.give_up(trouble or "their keeper does not answer")

    def give_up(self, reason: str) -> None:
        """End without records, for this reason."""
        if self.done is None:
            self._end(reason)

    def _missing(self) -> list[bytes]:
        assert self._answer is not None
        return [digest for digest in _digests(self._answer) if digest not in self._pieces]

    def _contents(self, answer: RecordsAnswer) -> dict[int, tuple[int, bytes]]:
        """The step and the bytes of each slot."""
        found, at = {}, 0
        for slot in answer.slots:
            count = -(-slot.length // limits.SETUP_PIECE)
            found[slot.number] = slot.step, self._join(answer.slot_digests[at : at + count], slot.length)
            at += count
        return found

    def _join(self, digests: tuple[bytes, ...], length: int) -> bytes:
        return b"".join(self._pieces[digest] for digest in digests)[:length]

    def _end(self, reason: str) -> None:
        self.done = Fetched(self.rank, 0, (), f"the records of rank {self.rank}'s life before are lost: {reason}")

    def _build(self, answer: RecordsAnswer) -> None:
        try:
            record = slots.make(answer.lineage, self._contents(answer))
        except OSError as error:
            self._end(f"there is no memory for them here ({error.strerror})")
            return
        setup = os.memfd_create("taskd-setup", os.MFD_CLOEXEC)
        with os.fdopen(os.dup(setup), "wb") as file:
            file.write(self._join(answer.digests, answer.length))
        self.done = Fetched(self.rank, answer.incarnation, (record, setup), "")


def _digests(answer: RecordsAnswer) -> dict[bytes, None]:
    """All pieces that the answer names, each once, in order."""
    return dict.fromkeys([*answer.slot_digests, *answer.digests])
