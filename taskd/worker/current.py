"""The two objects that exist once per process: the repair that it takes part in, and the session that uses it.

In a process that taskd's launcher started, boot.py puts a real repair here before user code runs. Any other process has
a repair that does nothing, so that a script with a session trains as it would without. It has no behaviour of its own.
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
    """Return the repair of this process; a forked child does not use its parent's."""
    if _repair is not None and _repair[0] == os.getpid():
        return _repair[1]
    from taskd.worker.heal import Repair

    return Repair()


def establish(found: Repair) -> None:
    """Make this the process' repair."""
    global _repair
    _repair = (os.getpid(), found)


def failed(sentence: str) -> None:
    """Tell the session, if there is one, that the script has failed by itself."""
    if _session is not None and _session[0] == os.getpid():
        _session[1].failed(sentence)


def was_tried_again() -> bool:
    """Whether the error that ends the script has left its step twice."""
    return _session is not None and _session[0] == os.getpid() and _session[1].was_tried_again


def leaves() -> None:
    """Tell the session, if there is one, that the script destroys its process group, or has ended."""
    if _session is not None and _session[0] == os.getpid():
        _session[1].leaves()


def session() -> Session:
    """Return the session of this process; the first call makes it."""
    global _session
    if _session is None or _session[0] != os.getpid():
        from taskd.worker.heal import LaunchedRepair
        from taskd.worker.session import Session

        found = repair()
        _session = (os.getpid(), Session(found))
        if isinstance(found, LaunchedRepair):
            found.orders.session_begins()
    return _session[1]
