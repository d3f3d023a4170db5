"""The distribution of the job's key to every node of a torchrun job, without any configuration by the user.

The manager makes the key on rank 0's host. Rank 0's worker finds it there and hands it on, sealed for each rank that
asks. The key travels through the store in which the job's ranks have met anyway: torch.distributed's, which anyone who
reaches its port can read (wire/exchange.py). One rank per node is enough. The other ranks ask only if the manager does
not know them after a while.

A key given by environment or file wins, needs no store and is not handed on. Rank 0 then only announces that it was
given; a rank without it, or with another key, reports this. A key on this host is used without asking if rank 0 has
announced the same key. A key left by an older job is not used.

Each look is short and runs on the link's own thread, so the training thread never waits. The store is cloned, because
two threads must not share a store connection (blocking gets from two threads mix their answers). Rank 0 looks for
requests as long as it lives. When it has gone, no request is answered any more; ranks that have the key keep it.
It does NOT create keys, nor prove them: the manager does.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta
from typing import Any

from taskd import log
from taskd.config import Config
from taskd.errors import UsageError
from taskd.wire import exchange, keys
from taskd.worker.identity import Identity, initialised_distributed

PREFIX = "taskd/"
STORE_KEY = f"{PREFIX}key"
"""The store key under which rank 0's notice of the job's key is found."""
STORE_SECONDS_MAX = 5
FILE_AFTER_SECONDS = 2.0
"""How long a rank other than 0 looks only into the store: a file on its own host may be left from an older job. A key
from such a file is tried, and the rank looks into the store until the manager has acknowledged it."""
ASK_AFTER_SECONDS = 3.0
"""When a rank that is not the first of its node asks, if the first has not brought the key to the node."""
ASK_AGAIN_SECONDS = 10.0
LOOK_MS = 100
LOOK_SLOW_MS = 1_000
EAGER_SECONDS = 30.0
ANSWERS_MAX = 16
"""The most answers in one look: each costs some milliseconds of this process."""
_logger = log.get(__name__)


class KeyShare:
    """One rank's search for the key; `look()` until it is found, `settled` when there is nothing left to do."""

    def __init__(self, config: Config, identity: Identity, wanted: bool = True) -> None:
        """Not `wanted`: another process hands the key on, so there is nothing to look for."""
        self.key = b""
        self.trouble = ""
        self.proven = False  # the manager has acknowledged this rank: the key is the right one
        self._sure = False  # the key is the one that rank 0 has announced
        self._wanted = wanted
        self._config = config
        self._given = keys.is_given(config)
        self._first = identity.rank == 0
        self._alone = identity.world_size < 2
        self._patient = identity.local_rank > 0
        self._began = time.monotonic()
        self._store: Any = None
        self._notice: exchange.Notice | None = None
        self._giver: exchange.Giver | None = None
        self._asker: exchange.Asker | None = None
        self._asked_at = -ASK_AGAIN_SECONDS
        self._published = False
        self._looking = threading.Lock()
        self._closed = False

    @property
    def settled(self) -> bool:
        """Whether the key is found, and handed on if that is this rank's task."""
        return self._is_settled()

    @property
    def hands_on(self) -> bool:
        """Whether other ranks may ask this rank at any time."""
        return self._giver is not None

    def _is_settled(self) -> bool:
        if not self._wanted:
            return True
        if self._first:
            return bool(self.key) and self._published and (self._giver is None or self._giver.exhausted)
        return (bool(self.key) and (self._sure or self.proven)) or (self._patient and self.proven)

    def close(self) -> None:
        """End the looks; return when the current look has ended. If a thread were in the store when the interpreter
        ends, the process would abort: torch's code cannot be left from inside."""
        with self._looking:
            self._closed = True
            self._store = self._giver = self._asker = None

    def look(self) -> bytes:
        """Look once, briefly, and serve the requests of other ranks if this is due. Return the key, or nothing yet."""
        with self._looking:
            return self.key if self._closed else self._look()

    def _look(self) -> bytes:
        if self._is_settled():
            return self.key
        try:
            if self._first:
                self._hand_on()
            else:
                self._search()
        except RuntimeError as error:  # DistStoreError and similar: the store's host is gone or busy
            self._drop()
            _logger.info("the job's store does not serve the job's key: %s", str(error).splitlines()[0])
        if self._is_settled():
            self._store = None  # its connection is not needed again
        return self.key

    def _drop(self) -> None:
        self._store = self._giver = self._asker = None
        self._published = False

    # ---- rank 0 -----------------------------------------------------------------------------------------------

    def _hand_on(self) -> None:
        if not self.key:
            found = self._on_this_host()
            self.key = b"" if found is None else found.secret
        if initialised_distributed() is None:
            self._drop()  # before the store is gone: otherwise torch prints about it on the terminal
        if not self.key or (store := self._open()) is None:
            return
        if self._giver is not None:
            self._giver.serve_all(ANSWERS_MAX)
            return
        key = keys.Key(self.key, "this host")
        store.set(STORE_KEY, exchange.notice_of(key, self._given).text())
        self._published = True
        if not self._given and not self._alone:
            self._giver = exchange.Giver(store, key, PREFIX)

    # ---- the others -------------------------------------------------------------------------------------------

    def _search(self) -> None:
        if self._notice is None:
            self._notice = self._find_notice()
        if self._given:
            self._use_given()
        elif self._notice is None:
            if not self.key and self._store_is_silent() and (found := self._on_this_host()) is not None:
                self.key = found.secret
        elif (found := self._on_this_host(quiet=True)) is not None and self._notice.fits(found):
            self._found(found.secret)
        elif self._notice.given:
            self._complain(exchange.trouble(self._notice, None))
        else:
            self._ask(self._notice)

    def _use_given(self) -> None:
        own = self._on_this_host()
        if own is None:
            return
        self.key = own.secret
        if self._notice is not None:
            self._sure = True
            self._complain(exchange.trouble(self._notice, own))

    def _ask(self, notice: exchange.Notice) -> None:
        """Do one step of asking: send the request, or look for its answer."""
        now = time.monotonic()
        if (store := self._open()) is None or (self._patient and now - self._began < ASK_AFTER_SECONDS):
            return
        if self._asker is not None and store.check([self._asker.waits_for]):
            found, why = self._asker.answer()
            if found:
                self._found(found)
                return
            if why:
                self._asker = None
                self._complain(why)
            else:
                self._asked_at -= ASK_AGAIN_SECONDS
        if now - self._asked_at >= ASK_AGAIN_SECONDS:
            self._asked_at = now
            self._asker = self._asker or exchange.Asker(store, notice, PREFIX)
            if not self._asker.ask():
                self._asker = None
                self._complain(f"too many have asked for the job's key: {exchange.HOW_TO_GIVE}")

    def _found(self, secret: bytes) -> None:
        self.key, self._sure, self.trouble, self._asker = secret, True, "", None

    def _complain(self, why: str) -> None:
        self.trouble = why
        if why:
            log.once(_logger, logging.WARNING, f"key {why}", "%s", why)

    def _store_is_silent(self) -> bool:
        """Whether there is no store, or rank 0 has had enough time to announce the key there."""
        return initialised_distributed() is None or time.monotonic() - self._began > FILE_AFTER_SECONDS

    def _on_this_host(self, quiet: bool = False) -> keys.Key | None:
        try:
            return keys.find(self._config)
        except UsageError as error:
            if not quiet:
                self._complain(str(error))
            return None

    def _find_notice(self) -> exchange.Notice | None:
        store = self._open()
        if store is None or not store.check([STORE_KEY]):
            return None
        return exchange.notice_from(bytes(store.get(STORE_KEY)).decode("ascii", "replace"))

    def _open(self) -> Any:
        distributed = initialised_distributed()
        if self._store is None and distributed is not None:
            try:
                store = distributed.distributed_c10d._get_default_store().clone()
                store.set_timeout(timedelta(seconds=STORE_SECONDS_MAX))
                self._store = store
            except (RuntimeError, AttributeError, ValueError, NotImplementedError) as error:
                log.once(_logger, logging.INFO, "store", "the job's store cannot be opened a second time: %s", error)
        return self._store


class KeyLooks:
    """Decides when a rank looks for the key: often at first, rarely later or once it is found. It has no thread."""

    def __init__(self, share: KeyShare) -> None:
        self.share = share
        self.due_at = 0.0
        self._began = time.monotonic()

    def look(self, now: float, acknowledged: bool) -> bool:
        """Look, and set when the next look is due. Return whether the key has changed."""
        before = self.share.key
        key = self.share.look()
        found = acknowledged and bool(key) and not self.share.hands_on
        slow = now - self._began > EAGER_SECONDS or found
        self.due_at = now + (LOOK_SLOW_MS if slow else LOOK_MS) / 1000
        return key != before
