"""Tells whether this rank's work is done, so that its death would lose nothing: Phase.DONE in its beat page.

The end of training does not prove this: a rank may still have to write its checkpoint. Nobody can know what the last
lines of a script do. So only these ranks count as done:

- *Its group is destroyed, or is being destroyed*, and it is not rank 0: no other rank can need anything from it any
  more. Rank 0 writes the common files, and may do so after this, too.
- *Its script has ended*, and it has no exit handlers of the script left to run, or it is not rank 0.
- *All its exit handlers have run*: then it leaves in good order (exits.py), whichever rank it is.

Any write takes this back until the rank leaves in good order: torch.save, a file opened for writing or renamed, a
program that is started. A new process group takes it back, too. *Not seen:* a rank other than 0 that writes its first
and only file after its group is gone; a file that a library writes without Python.

It does NOT decide what a death means (core does) and delays nothing.
"""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from taskd.core.types import Phase
from taskd.worker import audit, current, hooks
from taskd.worker.writes import opens_to_write

_STARTS = frozenset({"os.rename", "os.link", "subprocess.Popen", "os.system", "os.posix_spawn", "os.exec"})
"""Audit events, besides `open`, that lead to a written file."""
_NO_FILES = ("/dev/", "/proc/")


class Finish:
    """The end of one process' work. Call `watch` once, before user code."""

    def __init__(self, rank: int) -> None:
        self._first = rank == 0
        self._pid = os.getpid()
        self._handlers = 0
        self._ended = False  # nothing is trained or sent any more
        self._writes = False

    def watch(self) -> None:
        """Follow this script's end from now on."""
        audit.listen(("open", "torch.save", *_STARTS), self._hears)
        self._handlers = atexit._ncallbacks()  # type: ignore[attr-defined]
        for name, around in (("destroy_process_group", self._destroying), ("init_process_group", self._making)):
            wrapped = around(getattr(c10d, name))
            setattr(c10d, name, wrapped)
            setattr(dist, name, wrapped)

    def script_is_through(self) -> None:
        """Note that the script's last line has run, or that the script has ended itself with exit code 0."""
        current.leaves()
        self._ended = True
        own = atexit._ncallbacks() > self._handlers  # type: ignore[attr-defined]
        self._say(not (self._first and own))

    def script_has_failed(self) -> None:
        """Note that the script ends by an exception, or with an exit code other than 0."""
        self._written()

    def _destroying(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def destroy_process_group(group: Any = None) -> Any:
            if group is None or group is dist.group.WORLD:
                current.leaves()
                self._ended = True
                self._say(not self._first)
            return original(group)

        return destroy_process_group

    def _making(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            if self._ended and os.getpid() == self._pid:
                self._ended = False
                hooks.mark_phase(Phase.BETWEEN)
            return original(*args, **kwargs)

        return init_process_group

    def _say(self, done: bool) -> None:
        if done and not self._writes and os.getpid() == self._pid:
            hooks.mark_phase(Phase.DONE)

    def _written(self) -> None:
        if self._ended and not self._writes and os.getpid() == self._pid:
            self._writes = True
            hooks.mark_phase(Phase.BETWEEN)

    def _hears(self, event: str, args: tuple[Any, ...], _: FrameType) -> None:
        if self._ended and (event != "open" or _writes(*args)):
            self._written()


def _writes(path: Any, *more: Any) -> bool:
    return opens_to_write(path, *more) and not (isinstance(path, str) and path.startswith(_NO_FILES))
