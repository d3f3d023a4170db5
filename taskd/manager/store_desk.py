"""Where the manager's loop hands in what concerns the job's store, and takes out what is to be sent.

It joins the values (store.py) to their file (store_file.py) and keeps the order: an answer leaves only after `commit`
has written what it says. It does NOT know sockets; a place is whatever the loop needs to find who asked.
"""

from __future__ import annotations

import os
from typing import Any

from taskd.core.messages import StoreAsk
from taskd.manager.store import Due, Store
from taskd.manager.store_file import StoreFile

STORE_FILE = "store.db"


class StoreDesk:
    """The store of one job. `directory` None: nothing is written down."""

    def __init__(self, directory: str | None) -> None:
        self.store = Store()
        self._file = StoreFile(os.path.join(directory, STORE_FILE)) if directory is not None else None

    def begin(self, fresh: bool, epoch: int) -> None:
        """Take up what an earlier life of this manager kept, unless the job is a `fresh` one."""
        if self._file is not None:
            self._file.open(self.store, fresh)
        self.store.begin_epoch(epoch)  # nobody waits yet

    def ask(self, now_ns: int, life: int, ask: StoreAsk, place: bytes) -> list[Due]:
        """One operation; the answers that are due by it."""
        return self.store.ask(now_ns, life, ask, place)

    def look(self, now_ns: int, epoch: int) -> list[Due]:
        """What time and a newer epoch bring about; once per turn."""
        self.store.waits.expire(now_ns)
        return self.store.begin_epoch(epoch)

    def next_deadline(self) -> int | None:
        """When `look` is to be called at the latest."""
        return self.store.waits.next_deadline()

    def commit(self) -> None:
        """Write down what has changed since the last time."""
        changes = self.store.take_changes()
        if self._file is not None:
            self._file.write(changes)

    def close(self) -> None:
        """Write what is left and close the file."""
        self.commit()
        if self._file is not None:
            self._file.close()

    def facts(self) -> dict[str, Any]:
        """For `taskd status --json`."""
        trouble = self._file.trouble if self._file is not None else "memory only, as configured (manager.journal off)"
        contents = self.store.contents
        return {
            "keys": len(contents.values),
            "bytes": contents.size_bytes,
            "waits": len(self.store.waits),
            "trouble": trouble,
        }
