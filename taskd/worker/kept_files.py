"""Files in which steps keep what later steps read: a running mean in a JSON file, a table of weights, a snapshot.

No look sees such a file, and no repair puts it back. A step that is done again finds what its first attempt has
written. A newcomer's set-up may write the first version of the file once more. So if a step reads a file that was
written after the loops began, all start over after a death, and the name of the file is said.

What is let through, and why:
- A file that this turn of the loop has written anew: what is read there is made there.
- A file that another process has written since this turn began. Nobody knows more of it.
- A file that the set-up of a newcomer has made, unless it was written after the loops began before: nothing is lost.
- What is only copied; caches and devices (writes.py); what other threads read.
- Files that are opened to add to them ("a", "a+"), unless the same function, or one that called it, moves elsewhere.

Failure modes: a rank dies in the turn in which the file is first read, so nobody has said anything; the dead rank alone
has read it. Invariant: what a newcomer, or a step that is done again, reads there reaches no weight: the rank refuses
before that. Not seen: libraries that open files without Python, whether a file exists, mapped memory, a file system
whose clock is ahead.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import threading
import time
import traceback
from collections.abc import Callable
from itertools import islice
from types import FrameType
from typing import Any

from taskd.state.coverage import IN_FILES
from taskd.state.ledger import Ledger
from taskd.worker import audit, files, reads
from taskd.worker.heal import Repair
from taskd.worker.registered import Registered
from taskd.worker.step_state import StepMachine, StepState
from taskd.worker.writes import keeps_nothing, opens_to_write, path_of, whose

_IN_STEP = (StepState.BODY, StepState.UPDATING, StepState.APPLIED)
_IN_LOOP = (StepState.LOOP, *_IN_STEP)
_MOST = 8
"""So many files are noted."""
_MOST_WRITTEN = 4096
"""So many files that this process has written are remembered."""
_CLOCK = 5
"""The number of the coarse clock of the system, by which files get their times."""
_CALLERS = 3
"""So many functions are asked whether they move inside of a file."""
_SYSTEM = ("/proc/", "/sys/")


class KeptFiles:
    """What the turns of a session's loops do with files."""

    def __init__(
        self,
        step: StepMachine,
        ledger: Ledger,
        registered: Registered,
        repair: Repair,
        refuse: Callable[[str], None],
    ) -> None:
        """`refuse` makes all ranks start over and never returns."""
        self._step, self._ledger = step, ledger
        self._registered, self._repair, self._refuse = registered, repair, refuse
        self._states: tuple[StepState, ...] = ()
        """The states in which the script's code belongs to this turn."""
        self._number = -1
        self._again = False
        self._turn_ns = self._first_ns = 0
        """When this turn and the first one began, by the clock of files."""
        self._made: set[str] = set()
        """What this turn has written anew."""
        self._written: set[str] = set()
        """What this process has opened for writing since its first turn."""
        self._found: dict[str, None] = {}
        self._wrong: dict[str, None] = {}
        """Those that this turn has read though they may hold something else than they should: it is done again, or this
        process has lost what was in them."""
        self._thread = -1

    def turn(self, number: int, early: bool) -> None:
        """Note that the script gets a step. `early`: it may do much else before it enters it."""
        if not self._repair.heals:
            return
        self._states = _IN_STEP if early else _IN_LOOP
        self._again, self._number = number == self._number, number
        self._made.clear()
        self._wrong.clear()
        self._turn_ns = time.clock_gettime_ns(_CLOCK)
        self._first_ns = self._first_ns or self._turn_ns
        self._thread = threading.get_ident()
        audit.listen(("open", "os.rename", "sqlite3.connect"), self.hears)

    def rehearses(self) -> None:
        """Note that the script gets a rehearsed step, of which nothing is kept."""
        self._states = ()

    def report(self) -> list[str]:
        """Report the files that turns have read, and that were written while the loops ran. Return the sentence."""
        return self._registered.keeps(IN_FILES, [*self._found])

    def judge(self) -> None:
        """Report such files. Refuse if this turn may have found something else there than it should."""
        found = self.report()
        if self._wrong:
            self._refuse(found[0])

    def hears(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        """Hear that a file is about to be opened."""
        with contextlib.suppress(OSError, TypeError, ValueError, IndexError):
            path = path_of(args[0])
            if event == "os.rename":
                self._moves(path, path_of(args[1]))
                return
            flags = args[2] if event == "open" else os.O_RDWR
            copies_it = frame.f_code.co_filename == shutil.__file__
            if event != "open" or opens_to_write(*args):
                self._writes(path, is_new=bool(flags & os.O_TRUNC) and not copies_it)
            if self._step.state not in self._states or self._thread != threading.get_ident():
                return
            if path.startswith(_SYSTEM) or keeps_nothing(path):
                return
            reads_it = flags & os.O_ACCMODE != os.O_WRONLY and not (flags & os.O_APPEND and _stays_at_the_end(frame))
            is_full = path not in self._found and len(self._found) == _MOST
            if reads_it and not copies_it and not is_full and self._is_kept(path) and whose(frame):
                self._found[path] = None
                if self._again or (self._repair.replaces and self._is_of_others(path)):
                    self._wrong[path] = None

    def _writes(self, path: str, is_new: bool) -> None:
        """`is_new`: nothing stays of what was there."""
        if is_new or not (os.path.exists(path) or reads.has_lost(path)):
            self._made.add(path)
        if len(self._written) < _MOST_WRITTEN:
            self._written.add(path)

    def _moves(self, path: str, to: str) -> None:
        is_new = path in self._made
        self._made -= {path, to}
        self._writes(to, is_new)

    def _is_kept(self, path: str) -> bool:
        """Whether this file was written while the loops ran, and not in this turn alone."""
        if path in self._made:
            return False
        status = os.stat(path)
        set_up_over = max(self._ledger.set_up.over, reads.last_written(path))
        if not stat.S_ISREG(status.st_mode) or status.st_mtime <= set_up_over:
            return False
        return path in self._written or status.st_mtime_ns < self._turn_ns or _is_open(status)

    def _is_of_others(self, path: str) -> bool:
        """Whether this process has lost what was in the file, or it was written before this process got a step."""
        return reads.has_lost(path) or os.stat(path).st_mtime_ns < self._first_ns


def _stays_at_the_end(frame: FrameType) -> bool:
    """Whether code that opens a file to add to it stays there, and so reads nothing. taskd's own add_line() only looks
    whether its line is there already."""
    if frame.f_code.co_filename == files.__file__:
        return True
    return not any("seek" in one.f_code.co_names for one, _ in islice(traceback.walk_stack(frame), _CALLERS))


def _is_open(wanted: os.stat_result) -> bool:
    """Whether this process has the file open for writing."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            same = os.path.samestat(os.fstat(int(name)), wanted)
            if same and fcntl.fcntl(int(name), fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
                return True
    return False
