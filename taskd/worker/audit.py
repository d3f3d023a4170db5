"""Tells other modules of what is about to be done: a file is opened, removed or replaced, a program is started.

Python calls an audit hook before each such act, and a hook cannot be taken out again. So a process has one, which is
native (csrc/native/module_audit.cpp): Python calls it for each `id()`, too. torch.save opens its files without Python,
so it has an event of its own, and one like that of open(). If a listener raises an error, the act does not happen.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import torch

from taskd import _native

Listener = Callable[[str, tuple[Any, ...], FrameType], None]
"""Gets the name of an event, its arguments, and the code that is about to act."""
_listeners: dict[str, tuple[Listener, ...]] = {}
_SAVES = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
_installed = False


def listen(events: Iterable[str], listener: Listener) -> None:
    """Tell the listener of these events from now on. A second call does nothing."""
    global _installed
    for event in events:
        _listeners[event] = (*(one for one in _listeners.get(event, ()) if one != listener), listener)
    if not _installed:
        _installed = True
        _native.listen(_hear)
        atexit.register(_native.listen, None)  # later, the modules of listeners may be gone
        _follow_saves()


def leave(listener: Listener) -> None:
    """Tell this listener of nothing more."""
    for event, listeners in [*_listeners.items()]:
        _listeners[event] = tuple(one for one in listeners if one != listener)


def _hear(event: str, args: tuple[Any, ...]) -> None:
    _tell(event, args, sys._getframe(1))


def _tell(event: str, args: tuple[Any, ...], frame: FrameType) -> None:
    for listener in _listeners.get(event, ()):
        listener(event, args, frame)


def _follow_saves() -> None:
    opens = torch.serialization._open_zipfile_writer

    @functools.wraps(opens)
    def open_zipfile_writer(file: Any, *more: Any, **options: Any) -> Any:
        _tell("torch.save", (file,), sys._getframe(1))
        if isinstance(file, (str, os.PathLike)):
            _tell("open", (file, "wb", _SAVES), sys._getframe(1))
        return opens(file, *more, **options)

    torch.serialization._open_zipfile_writer = open_zipfile_writer
