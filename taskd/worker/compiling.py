"""Compilation: shows in the beat page whether this process compiles, and prepares the compiler ahead in a standby.

A process that compiles looks as if it hung: nothing is sent and no step ends. torch tells when a compilation begins and
ends, and flags in the page tell the agent. Once a process has used torch's own compiler, its node replaces the standby
by one that has called `prepare`. So a newcomer finds the compiler imported and all done that it does once in a process
(compiled_practice.py). Compiled code is in torch's own caches on disk, which all processes of a node share.

Failure modes: a script may set the compiler's environment variables before it imports the compiler, but a standby has
imported it already. So COMPILES is reported only if this process still has the variables that it was given. An
accelerator must not be touched before a fork, so if there may be one, `prepare` does nothing. It does NOT change how
anything is compiled.
"""

from __future__ import annotations

import contextlib
import glob
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from taskd import _native, log
from taskd.core.types import PageFlag

if TYPE_CHECKING:
    from taskd._native import Page

COMPILER = "torch._inductor.compile_fx"
PRACTICE = "taskd.worker.compiled_practice"
_READ = ("TORCH", "PYTORCH", "TRITON")
"""The prefixes of the variables that the compiler reads, most of them when it is imported."""
_FOLDER = "TORCHINDUCTOR_CACHE_DIR"
"""The compiler sets this variable itself, to the folder that it would use anyway."""
_logger = log.get(__name__)
_DEVICES = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/davinci*", "/dev/dri/render*", "/dev/accel*")


class _Watch:
    """Reports the compilations of this process."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._given = _variables()

    def look(self) -> None:
        """Listen to torch's compilations from now on, if this process has imported the compiler."""
        callbacks = sys.modules.get("torch._dynamo.callback")
        handler: Any = getattr(callbacks, "callback_handler", None)
        if self._begin in getattr(handler, "start_callbacks", [self._begin]):
            return  # already registered, or this torch has no such callbacks
        handler.register_start_callback(self._begin)
        handler.register_end_callback(self._end)

    def _begin(self, _: object) -> None:
        """Called by torch, on any thread."""
        self._tell(PageFlag.COMPILING)

    def _end(self, _: object) -> None:
        self._tell(PageFlag(0))

    def _tell(self, now: PageFlag) -> None:
        compiles = COMPILER in sys.modules and _variables() == self._given
        self._page.store_flags(int(now | PageFlag.COMPILES if compiles else now))


_watch: _Watch | None = None


def attach(page: Page | None) -> None:
    """Report compilations in this page from now on; None: stop reporting."""
    global _watch
    _watch = _Watch(page) if page is not None else None
    look()


def look() -> None:
    """Check again, since the compiler may have been imported meanwhile."""
    if _watch is not None:
        _watch.look()


def _variables() -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if name.startswith(_READ)}
    folders = sys.modules.get("torch._inductor.runtime.cache_dir_utils")
    if folders is not None and found.get(_FOLDER) == os.path.abspath(folders.default_cache_dir()):
        del found[_FOLDER]
    return found


# ---- in a standby -------------------------------------------------------------------------------------------------


def prepare() -> None:
    """Do what every process that compiles does once; a forked process keeps the result."""
    if any(map(glob.glob, _DEVICES)):
        return
    importlib.import_module(COMPILER)
    _measure_no_guards()
    pid = os.fork()
    if pid == 0:  # threads make what is not in the caches yet, so a child process does this
        _native.set_parent_death_signal(signal.SIGKILL)
        _practise(os._exit)
    os.waitpid(pid, 0)
    _practise()
    _leave_context_managers_alone()


def _leave_context_managers_alone() -> None:
    """Let the two functions of contextlib run as they are that make a context manager of a generator.

    The forward of DistributedDataParallel is left to Python, and calls them. The compiler would take each for itself,
    find nothing in it to compute, and leave it to Python, too. This takes 100 ms. It still sees through them in models.
    """
    from torch._dynamo import eval_frame

    skip: Callable[[object], None] | None = getattr(eval_frame, "skip_code", None)
    if skip is not None:
        skip(contextlib.contextmanager(lambda: iter(())).__code__)  # type: ignore[attr-defined]
        skip(contextlib._GeneratorContextManagerBase.__init__.__code__)  # type: ignore[attr-defined]


def _measure_no_guards() -> None:
    """Spare each compilation a measurement of torch: how long its guards take if the processor has nothing in its
    caches. It writes over much memory for that, 30 ms each time, and only a log for torch's developers has the result.
    """
    guards: Any = sys.modules.get("torch._dynamo.guards")
    measure, logger = getattr(guards, "profile_guard_manager", None), getattr(guards, "guards_log", None)
    if measure is not None and logger is not None:
        guards.profile_guard_manager = lambda *what: measure(*what) if logger.isEnabledFor(logging.DEBUG) else 0.0


def _practise(then: Callable[[int], object] = lambda _: None) -> None:
    """Compile a small training: the compiler inspects the machine, imports the rest of itself, and fills its tables."""
    try:
        importlib.import_module(PRACTICE).run()
    except Exception as error:
        _logger.info("the compiler could not be tried out: %s", error)  # then each process does it itself
    finally:
        then(0)
