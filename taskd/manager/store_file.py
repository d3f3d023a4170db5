"""The store's values in one SQLite file, so that they survive a manager that is killed.

The file is written once per turn of the manager's loop, before the answers leave. So the file holds every answer that
a worker has received. The file is never synced to the disk. It must survive processes, not a host: the workers of a
host that loses power are gone as well, and no answer shall wait for a disk. The file also holds the answers of
operations that may be repeated, so that a restarted manager does not apply these operations twice.

A file that cannot be written costs one warning and never the job: from then on the values are in memory only. A
damaged file is moved aside. This module does NOT know what operations mean (store_contents.py does).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator

from taskd import log
from taskd.core.messages import StoreAnswer
from taskd.manager.journal import move_aside
from taskd.manager.store import Changes, Store
from taskd.wire import older
from taskd.wire.codec import Envelope, WireError, decode, encode

_log = log.get(__name__)

FORMAT = 1
_SCHEMA = f"""
BEGIN;
CREATE TABLE kept (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE applied (life INTEGER NOT NULL, number INTEGER NOT NULL, answer BLOB NOT NULL,
  PRIMARY KEY (life, number)) WITHOUT ROWID;
PRAGMA user_version={FORMAT};
COMMIT;
"""
_NOBODY = Envelope("", "", 0, 0)


class StoreFile:
    """The file of one store. After trouble, every call does nothing."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.trouble = ""
        self._database: sqlite3.Connection | None = None

    def open(self, store: Store, fresh: bool) -> None:
        """Open or make the file and load the store from it. `fresh`: delete its contents, an earlier job's, first."""
        try:
            if fresh:
                self._remove()
            try:
                self._open(store)
            except sqlite3.OperationalError:
                raise  # locked, full, read-only: nothing is wrong with the file itself
            except (sqlite3.DatabaseError, ValueError) as error:
                self._close()
                aside = move_aside(self.path, "damaged")
                _log.warning(
                    "the store's file %s cannot be read (%s): it was moved to %s and the store begins empty",
                    self.path,
                    error,
                    aside,
                )
                self._open(store)
        except (sqlite3.Error, OSError) as error:
            self._give_up(str(error))

    def _remove(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            if os.path.lexists(self.path + suffix):
                os.unlink(self.path + suffix)

    def _open(self, store: Store) -> None:
        # Create the file here to choose its mode: SQLite would use the umask's.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        self._database = database = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=OFF")
        ((tables,),) = database.execute("SELECT count(*) FROM sqlite_master WHERE type='table'")
        if not tables:
            database.executescript(_SCHEMA)
        ((version,),) = database.execute("PRAGMA user_version")
        if version != FORMAT:
            raise ValueError(f"its format is {version}, this taskd writes {FORMAT}")
        # Read everything before loading anything: half a store would be worse than none.
        values = list(database.execute("SELECT key, value FROM kept"))
        if not all(isinstance(key, bytes) and isinstance(value, bytes) for key, value in values):
            raise ValueError("a row is not what a manager writes")
        store.load(values, list(_answers(database)))

    def write(self, changes: Changes) -> None:
        """Write what has changed, in one transaction."""
        database = self._database
        if database is None or not changes:
            return
        put = [(key, value) for key, value in changes.values.items() if value is not None]
        gone = [(key,) for key, value in changes.values.items() if value is None]
        applied = [(life, answer.number, encode(answer, _NOBODY)) for life, answer in changes.applied]
        try:
            database.execute("BEGIN")
            for statement, rows in (
                ("INSERT OR REPLACE INTO kept VALUES (?, ?)", put),
                ("DELETE FROM kept WHERE key = ?", gone),
                ("INSERT OR REPLACE INTO applied VALUES (?, ?, ?)", applied),
                ("DELETE FROM applied WHERE life = ? AND number < ?", list(changes.settled.items())),
            ):
                if rows:
                    database.executemany(statement, rows)
            database.execute("COMMIT")
        except sqlite3.Error as error:
            self._give_up(str(error))

    def close(self) -> None:
        """Close the file; its contents stay."""
        self._close()

    def _close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            try:
                database.close()
            except sqlite3.Error as error:
                _log.info("the store's file could not be closed in good order: %s", error)

    def _give_up(self, why: str) -> None:
        self._close()
        self.trouble = f"memory only because {why}"
        _log.warning(
            "the store's file %s cannot be written (%s): the job goes on, but a manager that is started again will not "
            "know the values that workers have set: make room, or set TASKD_RUN_DIR",
            self.path,
            why,
        )


def _answers(database: sqlite3.Connection) -> Iterator[tuple[int, StoreAnswer]]:
    for life, number, data in database.execute("SELECT life, number, answer FROM applied"):
        found = decode(data, older.OLDEST) if isinstance(data, bytes) else WireError("garbage", "it is not bytes")
        if isinstance(found, WireError):
            raise ValueError(f"an answer in it is none: {found.reason}")
        answer = found[1]
        if not isinstance(answer, StoreAnswer) or answer.number != number:
            raise ValueError("an answer in it is another one's")
        yield life, answer
