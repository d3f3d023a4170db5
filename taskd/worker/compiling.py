"""Says in the beat page whether this process compiles; and, in a standby, does ahead what compiling takes each time.

Who compiles looks as if it hung: nothing is sent and no step ends. torch tells when a compilation begins and ends, and
the page's flags say so to the agent. Once a process has used torch's own compiler, its node's standby is followed by
one in which `prepare` was called, so that a newcomer finds the compiler imported and what it asks the machine answered.
What it has compiled lies in torch's own caches on disk, which all processes of a node share.

Failure modes: a script sets variables of the compiler's before it imports it, which a standby has done already. So
COMPILES is told only where this process still has the variables that it was given. An accelerator must not be touched
before a fork, so where there may be one `prepare` does nothing. It does NOT change how anything is compiled.
"""

from __future__ import annotations

import glob
import importlib
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
_READ = ("TORCH", "PYTORCH", "TRITON")
"""How the names of variables begin that the compiler reads, most of them when it is imported."""
_FOLDER = "TORCHINDUCTOR_CACHE_DIR"
"""The compiler sets this one itself, to where it would look anyway."""
_logger = log.get(__name__)
_DEVICES = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/davinci*", "/dev/dri/render*", "/dev/accel*")


class _Watch:
    """What this process tells of its compilations."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._given = _variables()

    def look(self) -> None:
        """Listen to torch's compilations from now on, if this process has what they are made with."""
        callbacks = sys.modules.get("torch._dynamo.callback")
        handler: Any = getattr(callbacks, "callback_handler", None)
        if self._begin in getattr(handler, "start_callbacks", [self._begin]):
            return  # it knows, or this torch has no such thing
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
    """Tell of compilations in this page from now on; None: no longer."""
    global _watch
    _watch = _Watch(page) if page is not None else None
    look()


def look() -> None:
    """The compiler may have been imported since."""
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
    """Do what every process that compiles does once, and what a fork keeps."""
    if any(map(glob.glob, _DEVICES)):
        return
    importlib.import_module(COMPILER)
    pid = os.fork()
    if pid == 0:  # what is not in the caches yet is made by threads, so it is made elsewhere
        _native.set_parent_death_signal(signal.SIGKILL)
        _compile_something(os._exit)
    os.waitpid(pid, 0)
    _compile_something()


def _compile_something(then: Callable[[int], object] = lambda _: None) -> None:
    """The smallest model: the compiler asks the machine what it can, and fills tables of its own."""
    import torch

    try:
        layer = torch.nn.Linear(4, 4)
        torch.compile(lambda x: layer(x).relu().sum())(torch.ones(2, 4))
    except Exception as error:
        _logger.info("the compiler could not be tried out: %s", error)  # then each process asks for itself
    finally:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        then(0)
