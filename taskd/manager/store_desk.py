"""Connects the manager's loop to the job's store: it takes operations and returns the answers to send.

It joins the values (store.py) to their file (store_file.py) and keeps the order: an answer leaves only after `commit`
has written the change. It does NOT know sockets. A place is an opaque value that tells the loop where to send an
answer.
"""

from __future__ import annotations

import os
from typing import Any

from taskd.core.messages import StoreAsk
from taskd.manager.store import Due, Store
from taskd.manager.store_file import StoreFile

STORE_FILE = "store.db"


class StoreDesk:
    """The store of one job. `directory` None: nothing is written to a file."""

    def __init__(self, directory: str | None) -> None:
        self.store = Store()
        self._file = StoreFile(os.path.join(directory, STORE_FILE)) if directory is not None else None

    def begin(self, fresh: bool, epoch: int) -> None:
        """Load what an earlier manager of the job has kept, unless the job is `fresh`."""
        if self._file is not None:
            self._file.open(self.store, fresh)
        self.store.begin_epoch(epoch)  # there are no waits yet, so no answers are due

    def ask(self, now_ns: int, life: int, ask: StoreAsk, place: bytes) -> list[Due]:
        """Carry out one operation; returns the answers that are due now."""
        return self.store.ask(now_ns, life, ask, place)

    def look(self, now_ns: int, epoch: int) -> list[Due]:
        """Drop old waits and begin a newer epoch, once per turn; returns the answers that are due now."""
        self.store.waits.expire(now_ns)
        return self.store.begin_epoch(epoch)

    def next_deadline(self) -> int | None:
        """The latest time to call `look`; None: there are no waits."""
        return self.store.waits.next_deadline()

    def commit(self) -> None:
        """Write the changes since the last call to the file."""
        changes = self.store.take_changes()
        if self._file is not None:
            self._file.write(changes)

    def close(self) -> None:
        """Write what is left and close the file."""
        self.commit()
        if self._file is not None:
            self._file.close()

    def facts(self) -> dict[str, Any]:
        """The store's part of `taskd status --json`."""
        trouble = self._file.trouble if self._file is not None else "memory only, as configured (manager.journal off)"
        contents = self.store.contents
        return {
            "keys": len(contents.values),
            "bytes": contents.size_bytes,
            "waits": len(self.store.waits),
            "trouble": trouble,
        }
