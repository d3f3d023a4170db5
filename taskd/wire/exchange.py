"""How the job's key passes through a store that anybody may read: a notice, asks with public keys, sealed answers.

The first node writes a notice. If its key was given (TASKD_KEY, TASKD_KEY_FILE), the notice is only a fingerprint, and
the key is not passed on. A node without the key, or with another one, learns from the fingerprint what is wrong. Else
the notice names the giver's public key, which an asker trusts from then on. The asker draws its own key pair, takes a
number, and writes its public key under `ask/N`. Under `give/N` it finds the job's key, sealed (sealed.py). The giver's
pair is derived from the job's key. So every holder of the key can answer, and all answers are the same bytes. An asker
can check that it received the key that the notice describes.

Failure modes: an ask that is garbage, or whose public key leads to a fixed number, is refused, and the next one is
served. An asker that dies between its number and its ask leaves a gap. The next asker that waits in vain fills it,
because it asks again at the first free number. After ASKS_MAX asks no asker is served. Errors of the store
(RuntimeError) go to the caller.
It protects against processes that read the store or listen on the network. It does NOT protect against a process that
can write into the store. Such a process can ask like a node and gets the key. Or it replaces the true notice by its own
before a node has read it. Only a given key protects against this. This module does NOT wait, and logs nothing.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from taskd.core.limits import ASKS_MAX, KEY_BYTES
from taskd.wire import sealed
from taskd.wire.keys import FINGERPRINT_BYTES, Key

HOW_TO_GIVE = "give it to every node by TASKD_KEY_FILE (a file of mode 0600) or TASKD_KEY"
REFUSED = "refused"
NOBODY = "nobody"
"""Written in the place of an ask, to end the wait for one."""
_PURPOSE = b"taskd job key 1"
_GIVEN, _ASK = "given", "ask"


class Store(Protocol):
    """The methods of torch's stores that are needed here."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, value: int, /) -> int: ...
    def check(self, keys: Sequence[str], /) -> bool: ...
    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...


@dataclass(frozen=True)
class Notice:
    """What everybody may know of the job's key: whether it was given, and the mark that identifies it."""

    given: bool
    mark: bytes
    """The fingerprint if the key was given, else the giver's public key."""

    def text(self) -> str:
        """The text form in a store."""
        return f"{_GIVEN if self.given else _ASK}:{self.mark.hex()}"

    def fits(self, key: Key) -> bool:
        """Whether this notice is about this key."""
        return hmac.compare_digest(self.mark, _mark(key, self.given))


def notice_of(key: Key, given: bool) -> Notice:
    """The notice that the holder of this key publishes."""
    return Notice(given, _mark(key, given))


def notice_from(text: str) -> Notice | None:
    """The notice in this text from a store; None if the text is no notice."""
    kind, _, mark = text.partition(":")
    length = {_GIVEN: FINGERPRINT_BYTES, _ASK: sealed.PUBLIC_BYTES}.get(kind)
    found = _from_hex(mark, length) if length is not None else None
    return None if found is None else Notice(kind == _GIVEN, found)


def trouble(notice: Notice, own: Key | None) -> str:
    """Why a node with this given key, or with none, cannot belong to the job of this notice; "" if it can."""
    if own is None:
        why = f"the job's key was given to its first node and is handed on to nobody: {HOW_TO_GIVE}"
        return why if notice.given else ""
    if notice.fits(own):
        return ""
    if notice.given:
        return f"this node was given another key than the first node of the job ({own.source}): {HOW_TO_GIVE}"
    return f"this node was given a key ({own.source}), the first node of the job was not: {HOW_TO_GIVE}, or to none"


class Giver:
    """Answers one ask after the other; `waits_for` is the place of the next one."""

    def __init__(self, store: Store, key: Key, prefix: str = "") -> None:
        self._store, self._key, self._prefix = store, key, prefix
        self.number = 1  # of the ask that is served next
        self.given = 0

    @property
    def waits_for(self) -> str:
        """The store key of the next ask."""
        return f"{self._prefix}ask/{self.number}"

    @property
    def answers_at(self) -> str:
        """The store key of the answer to the next ask."""
        return f"{self._prefix}give/{self.number}"

    @property
    def exhausted(self) -> bool:
        """Whether the limit of asks is reached, so that no asker is served any more."""
        return self.number > ASKS_MAX

    def asked(self) -> str:
        """The public key in the waiting ask. NOBODY: the ask only ends a wait. "": it is not a valid ask."""
        value = bytes(self._store.get(self.waits_for))
        found = _public_in(value)
        return NOBODY if value == NOBODY.encode() else "" if found is None else found.hex()

    def skip(self) -> None:
        """Leave the waiting ask to other givers."""
        self.number += 1

    def serve(self) -> bool:
        """Answer the waiting ask; return whether the key was given."""
        asker = _public_in(self._store.get(self.waits_for))
        box = None
        if asker is not None:
            box = sealed.seal(self._key.secret, self._key.giver_private, self._key.giver_public, asker, _PURPOSE)
        answer = REFUSED if box is None else f"{self._key.giver_public.hex()}:{box.hex()}"
        self._store.set(self.answers_at, answer)
        self.number += 1
        self.given += box is not None
        return box is not None

    def serve_all(self, most: int) -> None:
        """Answer the asks that have come by now, at most this many."""
        for _ in range(most):
            if self.exhausted or not self._store.check([self.waits_for]):
                return
            self.serve()


class Asker:
    """Gets the key of a notice: call `ask`, then `answer` once something is at `waits_for`."""

    def __init__(self, store: Store, notice: Notice, prefix: str = "") -> None:
        assert not notice.given
        self._store, self._notice, self._prefix = store, notice, prefix
        self._private = secrets.token_bytes(KEY_BYTES)
        self._public = sealed.public_of(self._private)
        self.number = 0  # of the last ask; 0: none yet

    @property
    def waits_for(self) -> str:
        """The store key of the answer."""
        return f"{self._prefix}give/{self.number}"

    def ask(self) -> bool:
        """Ask, or ask again if no answer came; False if the limit of asks is reached, so that none will come."""
        # No other asker has the drawn number, unless an asker has left a gap or a process tampers with the counter.
        drawn = self._store.add(f"{self._prefix}asks", 1) if not self.number else 0
        for number in range(drawn if 0 < drawn <= ASKS_MAX else 1, ASKS_MAX + 1):
            answered = self._store.check([f"{self._prefix}give/{number}"])
            if not answered and self._take(f"{self._prefix}ask/{number}"):
                self.number = number
                return True
        return False

    def answer(self) -> tuple[bytes, str]:
        """Return the job's key, or no key and the reason. Call it when something is at `waits_for`. No key and no
        reason: the place was answered before it was asked, so `ask` again."""
        text = bytes(self._store.get(self.waits_for)).decode("ascii", "replace")
        giver, _, box = text.partition(":")
        if text == REFUSED:
            return b"", ""
        if giver != self._notice.mark.hex():
            return b"", f"who answers for the job's key has another public key than at first: {HOW_TO_GIVE}"
        found = sealed.unseal(
            _from_hex(box, sealed.BOX_BYTES) or b"", self._private, self._public, self._notice.mark, _PURPOSE
        )
        if found is None or not self._notice.fits(Key(found, "another node")):
            return b"", f"the job's key came damaged or from somebody who does not have it: {HOW_TO_GIVE}"
        return found, ""

    def _take(self, place: str) -> bool:
        try:
            return bytes(self._store.compare_set(place, "", self._public.hex())) == self._public.hex().encode()
        except RuntimeError:
            # Some stores, like etcd's, cannot do this. Two askers may then take one place, and one of them asks again.
            # A store that is gone raises here, too.
            if self._store.check([place]):
                return False
            self._store.set(place, self._public.hex())
            return True


def _mark(key: Key, given: bool) -> bytes:
    return key.fingerprint if given else key.giver_public


def _public_in(value: bytes) -> bytes | None:
    return _from_hex(bytes(value).decode("ascii", "replace"), sealed.PUBLIC_BYTES)


def _from_hex(text: str, length: int) -> bytes | None:
    if len(text) != 2 * length:
        return None
    try:
        found = bytes.fromhex(text)
    except ValueError:
        return None
    return found if len(found) == length else None
