"""What this process has exactly one of: the repair it takes part in, and the session over it.

Started by taskd's launcher, boot puts a real repair here before user code runs; in any other process there is the
quiet one, so that a script with a session trains as it would without. It holds no behaviour of its own.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskd.worker.heal import Repair
    from taskd.worker.session import Session

_repair: tuple[int, Repair] | None = None
_session: tuple[int, Session] | None = None


def repair() -> Repair:
    """The repair of this process; a forked child has none of its parent's."""
    if _repair is not None and _repair[0] == os.getpid():
        return _repair[1]
    from taskd.worker.heal import Repair

    return Repair()


def establish(found: Repair) -> None:
    """Make this the process' repair."""
    global _repair
    _repair = (os.getpid(), found)


def failed(sentence: str) -> None:
    """The script has failed by itself: its session has to know, if there is one."""
    if _session is not None and _session[0] == os.getpid():
        _session[1].failed(sentence)


def was_tried_again() -> bool:
    """Whether the error by which the script ends has left its step twice."""
    return _session is not None and _session[0] == os.getpid() and _session[1].was_tried_again


def leaves() -> None:
    """The script takes its process group down, or is through: its session has to know, if there is one."""
    if _session is not None and _session[0] == os.getpid():
        _session[1].leaves()


def session() -> Session:
    """The session of this process, made at the first call."""
    global _session
    if _session is None or _session[0] != os.getpid():
        from taskd.worker.heal import LaunchedRepair
        from taskd.worker.session import Session

        found = repair()
        _session = (os.getpid(), Session(found))
        if isinstance(found, LaunchedRepair):
            found.orders.session_begins()
    return _session[1]
