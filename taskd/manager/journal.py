"""The manager's journal: what happened and what was decided, in one SQLite file that survives the manager.

SQLite runs in WAL mode with synchronous=NORMAL. A killed manager loses nothing. A host that loses power loses at most
the last seconds. No beat ever waits for a disk. Rows are collected and written once per turn of the loop, before the
decisions in them leave the process. The core decides which events matter (Manager.to_journal): beats that change
nothing are not in here.

A journal that cannot be opened, read or written costs one loud warning and never the job. From then on the manager
works in memory only (`trouble` says since when and why). A damaged file is moved aside, never deleted. Rows can be
compacted into a snapshot, which replaces them. A full journal (ROWS_MAX) also stops, in the same way.

It does NOT interpret rows (record.py) or snapshots (snapshot.py), or replay them (replay.py).
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass

from taskd import log

_log = log.get(__name__)

FORMAT = 3
OLDER = frozenset({"2"})
"""Older formats that can be read, too. Format 2 had no snapshots."""
ROWS_MAX = 400_000
"""About a minute of replay. A journal reaches this size only if its snapshots cannot be written."""
KEPT_FILES = 3
"""How many journals of earlier jobs of the same name are kept beside the current one."""

_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE steps (number INTEGER PRIMARY KEY, at_ns INTEGER NOT NULL, wall_ns INTEGER NOT NULL, events BLOB NOT NULL,
  effects BLOB NOT NULL);
"""
_SNAPSHOT = """
CREATE TABLE IF NOT EXISTS snapshot (number INTEGER PRIMARY KEY, at_ns INTEGER NOT NULL, wall_ns INTEGER NOT NULL,
  state BLOB NOT NULL);
"""


class Broken(Exception):
    """The file is no journal, or it is damaged; the text says what was found. Never leaves taskd.manager."""


@dataclass(frozen=True)
class Row:
    """One step of the core: its events and effects, as record.py writes them, and its time."""

    number: int
    at_ns: int
    wall_ns: int
    events: bytes
    effects: bytes


@dataclass(frozen=True)
class Snapshot:
    """The manager's state after the step of this number, as snapshot.py writes it, and the time of that step."""

    number: int
    at_ns: int
    wall_ns: int
    state: bytes


class Journal:
    """One journal file that is being written. After trouble, every call does nothing."""

    def __init__(self, path: str, rows_max: int = ROWS_MAX) -> None:
        self.path = path
        self.trouble = ""
        self._rows_max = rows_max
        self._waiting: list[tuple[int, int, int, bytes, bytes]] = []
        self._number = 0
        self._kept = 0  # the number of the last step that the snapshot holds
        self._database: sqlite3.Connection | None = None

    def open(self) -> bool:
        """Open or make the file; False (and a warning) when it cannot be written. A damaged file is moved aside."""
        try:
            try:
                self._open()
            except (Broken, sqlite3.DatabaseError) as error:
                # "locked", "full", "read-only" are OperationalErrors: nothing is wrong with the file itself.
                if isinstance(error, sqlite3.OperationalError):
                    raise
                self._close()
                aside = move_aside(self.path, "damaged")
                _log.warning(
                    "the journal %s cannot be read (%s): it was moved to %s and a new one begins, so what happened "
                    "before now is not known to this manager",
                    self.path,
                    error,
                    aside,
                )
                self._open()
        except (sqlite3.Error, OSError) as error:
            self._give_up(str(error))
        return not self.trouble

    def _open(self) -> None:
        # Create the file here to choose its mode: SQLite would use the umask's.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        self._database = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=NORMAL")
        tables = {name for (name,) in self._database.execute("SELECT name FROM sqlite_master WHERE type='table'")}
        if not tables:
            self._database.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
            self.set_meta(format=str(FORMAT))
        elif not {"meta", "steps"} <= tables:
            raise Broken("it is a database, but not a journal")
        found = self.meta().get("format")
        if found in OLDER:
            self.set_meta(format=str(FORMAT))
        elif found != str(FORMAT):
            raise Broken(f"its format is {found}, this taskd writes {FORMAT}")
        self._database.execute(_SNAPSHOT)
        ((last,),) = self._database.execute("SELECT coalesce(max(number), 0) FROM steps")
        kept = self.snapshot()
        self._kept = kept.number if kept is not None else 0
        self._number = max(int(last), self._kept)

    def meta(self) -> dict[str, str]:
        """The few facts about the whole journal: format, job, sizes, term, ended."""
        if self._database is None:
            return {}
        return dict(self._database.execute("SELECT name, value FROM meta"))

    def set_meta(self, **values: str) -> None:
        """Write facts about the whole journal at once."""
        if self._database is None:
            return
        try:
            self._database.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", list(values.items()))
        except sqlite3.Error as error:
            self._give_up(str(error))

    def rows(self) -> Iterator[Row]:
        """Every row in order; raises Broken when the file turns out to be damaged."""
        return _rows(self._database) if self._database is not None else iter(())

    def snapshot(self) -> Snapshot | None:
        """The snapshot that replaces the rows before the first one; raises Broken when it is damaged."""
        return _snapshot(self._database) if self._database is not None else None

    @property
    def fresh_rows(self) -> int:
        """How many steps a replay would have after the snapshot."""
        return self._number - self._kept

    def put_together(self, at_ns: int, state: bytes) -> None:
        """Replace all steps so far by this snapshot: `state` is the manager's state after them."""
        self.commit()
        if self._database is None:
            return
        try:
            self._database.execute("BEGIN")
            self._database.execute("DELETE FROM snapshot")
            row = (self._number, at_ns, time.time_ns(), state)
            self._database.execute("INSERT INTO snapshot VALUES (?, ?, ?, ?)", row)
            self._database.execute("DELETE FROM steps WHERE number <= ?", (self._number,))
            self._database.execute("COMMIT")
            self._kept = self._number
        except sqlite3.Error as error:
            self._give_up(str(error))

    def append(self, at_ns: int, events: bytes, effects: bytes) -> None:
        """Keep a step for the next `commit`."""
        if self._database is None:
            return
        if self.fresh_rows >= self._rows_max:
            self._give_up(f"it holds {self.fresh_rows} steps, more than that could not be replayed in time")
            return
        self._number += 1
        self._waiting.append((self._number, at_ns, time.time_ns(), events, effects))

    def commit(self) -> None:
        """Write the kept steps in one transaction."""
        if self._database is None or not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        try:
            self._database.execute("BEGIN")
            self._database.executemany("INSERT INTO steps VALUES (?, ?, ?, ?, ?)", waiting)
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            self._give_up(str(error))

    def close(self) -> None:
        """Write what is left and close the file."""
        self.commit()
        self._close()

    def start_over(self, why: str, word: str) -> str:
        """Rename the current journal, marked with `word` (old, damaged), and begin an empty one; returns its name."""
        self._close()
        try:
            aside = move_aside(self.path, word)
        except OSError as error:
            self._give_up(str(error))
            return self.path
        self.open()
        _log.info("the journal so far was moved to %s: %s", aside, why)
        return aside

    def _close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            try:
                database.close()
            except sqlite3.Error as error:
                _log.info("the journal could not be closed in good order: %s", error)

    def _give_up(self, why: str) -> None:
        self._close()
        self._waiting = []
        if self.trouble:
            return
        self.trouble = f"memory only since {time.strftime('%Y-%m-%d %H:%M:%S')} because {why}"
        _log.error(
            "THE JOURNAL %s CANNOT BE WRITTEN (%s): from now on this manager remembers in memory only; the job goes "
            "on, but a manager that is started again will not know what happened: make room, or set TASKD_RUN_DIR",
            self.path,
            why,
        )


def read(path: str) -> tuple[dict[str, str], Iterator[Row], Snapshot | None]:
    """Return the facts, the rows and the snapshot of a journal file. A manager may be writing it; raises Broken."""
    try:
        if not os.path.isfile(path):
            raise Broken("there is no such file")
        database = sqlite3.connect(f"file:{_quoted(path)}?mode=ro", uri=True, timeout=2.0, isolation_level=None)
        database.execute("BEGIN")  # read one consistent state, even if the manager compacts the rows meanwhile
        meta = dict(database.execute("SELECT name, value FROM meta"))
    except sqlite3.Error as error:
        raise Broken(str(error)) from None
    if meta.get("format") not in {str(FORMAT), *OLDER}:
        raise Broken(f"its format is {meta.get('format')}, this taskd reads {FORMAT}")
    return meta, _rows(database), None if meta["format"] in OLDER else _snapshot(database)


def move_aside(path: str, word: str) -> str:
    """Rename a journal with its WAL, keeping the last KEPT_FILES of each word; returns the new name."""
    number = 1
    directory, name = os.path.split(path)
    kept = sorted(
        int(suffix)
        for entry in os.listdir(directory)
        if entry.startswith(f"{name}.{word}-") and (suffix := entry.rpartition("-")[2]).isdigit()
    )
    if kept:
        number = kept[-1] + 1
    # Damaged files are evidence and are never deleted. Of the old ones, only the last few are kept.
    for old in kept[: max(0, len(kept) - KEPT_FILES + 1)] if word == "old" else []:
        for suffix in ("", "-wal", "-shm"):
            if os.path.exists(f"{path}.{word}-{old}{suffix}"):
                os.unlink(f"{path}.{word}-{old}{suffix}")
    aside = f"{path}.{word}-{number}"
    os.rename(path, aside)
    for suffix in ("-wal", "-shm"):
        if os.path.exists(path + suffix):
            os.rename(path + suffix, aside + suffix)
    return aside


def _rows(database: sqlite3.Connection) -> Iterator[Row]:
    try:
        for values in database.execute("SELECT number, at_ns, wall_ns, events, effects FROM steps ORDER BY number"):
            row = Row(*values)
            numbers = isinstance(row.at_ns, int) and isinstance(row.wall_ns, int)
            if not (numbers and isinstance(row.events, bytes) and isinstance(row.effects, bytes)):
                raise Broken(f"row {row.number} is not what a manager writes")
            yield row
    except sqlite3.Error as error:
        raise Broken(str(error)) from None


def _snapshot(database: sqlite3.Connection) -> Snapshot | None:
    try:
        found = database.execute("SELECT number, at_ns, wall_ns, state FROM snapshot").fetchone()
    except sqlite3.Error as error:
        raise Broken(str(error)) from None
    if found is None:
        return None
    kept = Snapshot(*found)
    if not (isinstance(kept.at_ns, int) and isinstance(kept.wall_ns, int) and isinstance(kept.state, bytes)):
        raise Broken(f"the snapshot {kept.number} is not what a manager writes")
    return kept


def _quoted(path: str) -> str:
    return os.path.abspath(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
