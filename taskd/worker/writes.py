"""The write guard: it stops a newcomer's script from writing while the script only runs through its past again.

Python calls an audit hook before it opens, removes or renames a file, connects a socket or starts a program. During a
rehearsal, any such act that would leave a trace is stopped before it happens. The message names the script's own line.

What is let through, and why:
- What Python, torch and the loader's processes do for themselves, as the calling code shows: compiled modules and
  kernels are the same when they are made again, and the files of `tempfile` are new ones.
- What lies below a cache folder, for the same reason.
- Devices like /dev/null and the terminal, and shared memory of torch and multiprocessing: they keep nothing.
- Unix sockets, by which the processes of one job talk.
- A folder that is made.
- An open descriptor: it was checked when it was opened.

What it does NOT see: writes to a file that was opened before, and what a library writes without Python. The positions
of files that were opened before are compared, except for the handlers of `logging`, whose lines may come twice.
"""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import os
import socket
import sysconfig
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from taskd.errors import StepAbandoned
from taskd.worker import audit

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_FILES = os.path.join(_PACKAGE, "worker", "files.py")
"""The module of taskd that a script calls to write files."""
_PATHS = sysconfig.get_paths()
_LIBRARIES = tuple(_PATHS[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_BY_THEMSELVES = tuple(
    os.path.join(_PATHS[place], *(name if name.endswith("/") else f"{name}.py").split("/"))
    for place, names in (
        ("stdlib", ("tempfile", "importlib/", "py_compile", "multiprocessing/", "linecache")),
        ("purelib", ("torch/_inductor/", "torch/_dynamo/", "torch/utils/cpp_extension", "torch/utils/data/")),
        ("purelib", ("torch/multiprocessing/", "torch/_functorch/", "triton/")),
    )
    for name in names
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/pts/", "/dev/std", "/dev/fd/", "/proc/self/")
_SHARED = ("/dev/shm/torch_", "/dev/shm/sem.", "/dev/shm/pym-", "/dev/shm/psm_")
_CACHES = ("XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_HOME", "HF_HOME")


def opens_to_write(path: Any, _mode: Any = None, flags: Any = 0, *_: Any) -> bool:
    """Whether the audit event `open` with these arguments opens a file for writing. A path that is a descriptor does
    not count: it was checked when it was opened."""
    return not isinstance(path, int) and isinstance(flags, int) and bool(flags & _WRITING)


def path_of(name: Any, folder: Any = -1) -> str:
    """Return the absolute path of a file that an audit event names, relative to the descriptor of a folder if there is
    one. Raises OSError, TypeError or ValueError if it is no path."""
    name = os.fsdecode(name)
    if name.startswith("file:"):  # the name of a database may be written like that
        name = name[len("file:") :].partition("?")[0]
    return os.path.abspath(name if folder in (-1, None) else os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name))


def _opened(path: Any, *more: Any) -> str:
    return f"opens {_name(path)} for writing" if opens_to_write(path, *more) else ""


def _removed(path: Any, *_: Any) -> str:
    return f"removes {_name(path)}"


def _renamed(path: Any, to: Any, *_: Any) -> str:
    return f"puts {_name(path)} in the place of {_name(to)}"


def _truncated(path: Any, *_: Any) -> str:
    return f"cuts {_name(path)} short"


def _connected(sock: Any, address: Any = None, *_: Any) -> str:
    return "" if getattr(sock, "family", None) == socket.AF_UNIX else f"connects to {address}"


def _started(program: Any, *_: Any) -> str:
    return f"starts {_name(program)}"


def _database(path: Any, *_: Any) -> str:
    return "" if path == ":memory:" else f"opens the database {_name(path)}"


_EVENTS: dict[str, Callable[..., str]] = {
    "open": _opened,
    "os.remove": _removed,
    "os.rmdir": _removed,
    "os.rename": _renamed,
    "os.link": _renamed,
    "os.symlink": _renamed,
    "os.truncate": _truncated,
    "socket.connect": _connected,
    "socket.sendto": _connected,
    "socket.sendmsg": _connected,
    "subprocess.Popen": _started,
    "os.system": _started,
    "os.exec": _started,
    "os.posix_spawn": _started,
    "os.spawn": lambda _mode, program, *_: _started(program),
    "sqlite3.connect": _database,
}


def _name(path: Any) -> str:
    try:
        return os.fsdecode(path)
    except TypeError:
        return repr(path)


class WriteGuard:
    """A context manager that can be entered more than once; only one is armed in a process at a time."""

    def __init__(self, stop: Callable[[str], None]) -> None:
        """`stop(sentence)` is called on the thread that entered, before the write happens, and never returns; it may
        raise StepAbandoned. On other threads an OSError is raised instead, and `found` holds the sentence."""
        self._stop = stop
        self._thread = -1
        self._places: dict[tuple[int, str], int] = {}
        self.found = ""

    def __enter__(self) -> None:
        global _armed
        self._thread, self._places = threading.get_ident(), _places()
        audit.listen(_EVENTS, _hears)
        _armed = self

    def __exit__(self, *_: object) -> None:
        global _armed
        _armed = None
        if self._thread >= 0 and not self.found:
            now = _places()
            grown = [name for (fd, name), place in self._places.items() if now.get((fd, name), place) != place]
            self.found = f"the script writes into {grown[0]}, which it has opened before" if grown else ""
        self._thread = -1

    def saw(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        """Check an act that is about to happen. If it is forbidden, raises OSError on threads other than the one that
        entered."""
        global _armed
        what = _EVENTS[event](*args)
        if not what or keeps_nothing(args[0] if args else None) or threading.current_thread().name.startswith("taskd-"):
            return
        place = whose(frame)
        if not place:
            return
        sentence = f"{place} {what}"
        if threading.get_ident() != self._thread:
            self.found = self.found or sentence
            raise PermissionError(sentence)
        _armed = None  # stop() itself opens files and connects
        try:
            self._stop(sentence)
        except StepAbandoned:
            _armed = self if self._thread >= 0 else None  # only the body of a step has ended, unless this was left
            raise


def keeps_nothing(path: Any) -> bool:
    """Whether the path is a device, shared memory, or below a cache folder."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return False
    found = os.path.abspath(os.fsdecode(path))
    caches = [os.environ[name] for name in _CACHES if os.environ.get(name)]
    caches.append(os.path.join(os.path.expanduser("~"), ".cache"))
    below = tuple(os.path.join(os.path.abspath(cache), "") for cache in caches)
    return found.startswith((*_DEVICES, *_SHARED, *below)) or f"{os.sep}__pycache__{os.sep}" in found


def whose(frame: FrameType | None) -> str:
    """Return the script's own line that asks for it; empty: the asking code only makes files for itself."""
    innermost = ""
    while frame is not None:
        name = frame.f_code.co_filename
        place = f"{name}, line {frame.f_lineno},"
        if name.startswith(("<frozen importlib", *_BY_THEMSELVES)):
            return ""
        if name.startswith(_PACKAGE) and name != _FILES:
            return ""
        if not name.startswith(("<frozen", _FILES, *_LIBRARIES)):
            return place
        innermost = innermost or place
        frame = frame.f_back
    return innermost


def _places() -> dict[tuple[int, str], int]:
    """Return the position in each file that Python holds open for writing, by descriptor and name, after a flush. The
    output of this process is left out, whatever its descriptor: other processes write there, too, and move it."""
    left_out = {_file_of(1), _file_of(2)}
    for stream in _streams_of_logs():
        with contextlib.suppress(OSError, ValueError, AttributeError):
            left_out.add(_file_of(stream.fileno()))
    found = {}
    for stream in [item for item in gc.get_objects() if issubclass(type(item), io.IOBase) and not _closed(item)]:
        with contextlib.suppress(OSError, ValueError):
            if not stream.writable():
                continue
            stream.flush()
            fd = stream.fileno()
            path = os.readlink(f"/proc/self/fd/{fd}")
            if os.path.isfile(path) and _file_of(fd) not in left_out:
                found[fd, path] = os.lseek(fd, 0, os.SEEK_CUR)
    return found


def _file_of(fd: int) -> tuple[int, int]:
    """Return the device and inode of a descriptor; a closed descriptor gets a value of its own."""
    try:
        status = os.fstat(fd)
    except OSError:
        return -1, fd
    return status.st_dev, status.st_ino


def _closed(stream: io.IOBase) -> bool:
    try:
        return stream.closed
    except (ValueError, AttributeError):  # a stream that is not fully initialised
        return True


def _streams_of_logs() -> Iterator[Any]:
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        for handler in getattr(logger, "handlers", ()):
            if isinstance(handler, logging.StreamHandler):
                yield handler.stream


_armed: WriteGuard | None = None


def _hears(event: str, args: tuple[Any, ...], frame: FrameType) -> None:
    if (guard := _armed) is not None:
        guard.saw(event, args, frame)
