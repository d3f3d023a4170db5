"""How the job's key reaches every node with nothing for anyone to configure.

The manager makes the key on rank 0's host; rank 0's worker finds it there and puts it into the store with which the
job's ranks have met anyway (torch.distributed's), and the others take it from there. A key given by environment or
file wins and needs no store. Each look is short and belongs to the link's own thread: the training thread never
waits, and its store connection is never shared (a blocking get from two threads at once mixes their answers), so the
store is cloned. It does NOT create keys, nor prove them: the manager does.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta
from typing import Any

from taskd import log
from taskd.config import Config
from taskd.core.limits import KEY_BYTES
from taskd.errors import UsageError
from taskd.wire import keys
from taskd.worker.identity import initialised_distributed

STORE_KEY = "taskd/key"
STORE_SECONDS_MAX = 5
FILE_AFTER_SECONDS = 2.0
"""How long a rank other than 0 looks only into the store: a file on its own host may be left from an older job. What
comes from such a file is tried, and the store is looked into until the manager has acknowledged the rank."""
_logger = log.get(__name__)


class KeyShare:
    """One rank's search for the key; `look()` until it is found, `settled` when there is nothing left to do."""

    def __init__(self, config: Config, rank: int, wanted: bool = True) -> None:
        """Not `wanted`: somebody else hands the key on, there is nothing to look for."""
        self.key = b""
        self.trouble = ""
        self.proven = False  # the manager has acknowledged this rank: the key is the right one
        self._sure = False  # it was given, or lay in the job's store
        self._wanted = wanted
        self._config = config
        self._given = bool(config.manager.key or config.manager.key_file)
        self._publishes = rank == 0
        self._began = time.monotonic()
        self._store: Any = None
        self._published = False
        self._looking = threading.Lock()
        self._closed = False

    @property
    def settled(self) -> bool:
        """The key is found, and published if that is this rank's part."""
        return self._is_settled()

    def _is_settled(self) -> bool:
        if not self._wanted:
            return True
        return bool(self.key) and (self._published if self._publishes else self._sure or self.proven)

    def close(self) -> None:
        """Looks no more; returns when a look under way has ended. A thread that is in the store when the interpreter
        ends would take the process with it: torch's code cannot be left from inside."""
        with self._looking:
            self._closed = True
            self._store = None

    def look(self) -> bytes:
        """One short look, and publication where it is due; the key, or nothing yet."""
        with self._looking:
            return self.key if self._closed else self._look()

    def _look(self) -> bytes:
        if self._is_settled():
            return self.key
        if not self._publishes and not self._given and (found := self._in_store()):
            self.key, self._sure = found, True
        elif not self.key and (self._publishes or self._given or self._store_is_silent()):
            self.key, self._sure = self._on_this_host(), self._given
        if self.key and self._publishes and not self._published:
            self._publish()
        if self._is_settled():
            self._store = None  # its connection is not needed again
        return self.key

    def _store_is_silent(self) -> bool:
        """There is no store, or rank 0 has had its time to put the key into it."""
        return initialised_distributed() is None or time.monotonic() - self._began > FILE_AFTER_SECONDS

    def _on_this_host(self) -> bytes:
        try:
            found = keys.find(self._config)
        except UsageError as error:
            self.trouble = str(error)
            log.once(_logger, logging.WARNING, f"key {error}", "%s", error)
            return b""
        return b"" if found is None else found.secret

    def _in_store(self) -> bytes:
        store = self._open()
        try:
            if store is None or not store.check([STORE_KEY]):
                return b""
            found = bytes(store.get(STORE_KEY))
        except RuntimeError as error:  # DistStoreError and its kin: the store's host is gone or busy
            self._store = None
            _logger.info("the job's store did not give the key: %s", str(error).splitlines()[0])
            return b""
        return found if len(found) == KEY_BYTES else b""

    def _publish(self) -> None:
        store = self._open()
        if store is None:
            return
        try:
            store.set(STORE_KEY, self.key)
            self._published = True
        except RuntimeError as error:
            self._store = None
            _logger.info("the job's store did not take the key: %s", str(error).splitlines()[0])

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
