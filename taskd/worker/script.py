"""Runs a user's script as `python script.py` and `python -m module` would, inside a process that is running already.

The script gets its own `__main__` with __file__, __spec__ and loader, its arguments and its search path. So spawned
DataLoader workers, pickling by `__main__.name`, exit codes and tracebacks work as usual. taskd's own frames are removed
from the traceback of an uncaught exception before it is printed. It does NOT catch, change or report anything else.
"""

from __future__ import annotations

import importlib.machinery
import os
import pkgutil
import runpy
import sys
import types
from collections.abc import Callable, Sequence
from types import CodeType, TracebackType

SCRIPT = "script"
MODULE = "module"
RUN_PATH = "run_path"


def folder_of(kind: str, target: str) -> str:
    """Return what Python puts first in its search path: the script's folder, or the current folder for a module."""
    if kind == MODULE:
        return os.getcwd()
    return os.path.dirname(os.path.realpath(target))


def run(kind: str, target: str, arguments: Sequence[str]) -> None:
    """Run the script to its end. Every error that it raises is passed on, SystemExit included."""
    _become_main()
    if kind == RUN_PATH:
        from torch.distributed.elastic.multiprocessing.errors import record
        from torch.distributed.run import run_script_path

        _without_our_frames(lambda: record(run_script_path)(target, *arguments))
        return
    sys.argv = [target, *arguments]
    if kind == MODULE:
        _search(folder_of(kind, target))
        sys.argv[0] = "-m"
        module = runpy._run_module_as_main  # type: ignore[attr-defined]
        _without_our_frames(lambda: module(target))
    elif pkgutil.get_importer(target) is None:
        _search(folder_of(kind, target))
        _without_our_frames(lambda: _run_file(target))
    else:  # a folder or an archive with a __main__ in it
        _search(target)
        module = runpy._run_module_as_main  # type: ignore[attr-defined]
        _without_our_frames(lambda: module("__main__", False))


def _become_main() -> types.ModuleType:
    """Put an empty `__main__` in place of the current one."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=sys.modules["builtins"], __annotations__={})
    sys.modules["__main__"] = main
    return main


def _search(folder: str) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, folder)


def _code_of(target: str) -> CodeType:
    with open(target, "rb") as file:
        code = pkgutil.read_code(file)  # a compiled script
    if code is not None:
        return code
    with open(target, "rb") as file:
        return compile(file.read(), target, "exec", dont_inherit=True)


def _run_file(target: str) -> None:
    target = os.path.abspath(target)
    main = sys.modules["__main__"]
    main.__dict__.update(__file__=target, __cached__=None)
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", target)
    try:
        code = _code_of(target)
    except OSError as error:
        sys.stderr.write(f"{sys.executable}: can't open file {target!r}: [Errno {error.errno}] {error.strerror}\n")
        sys.exit(2)
    exec(code, main.__dict__)


def _without_our_frames(call: Callable[[], object]) -> None:
    try:
        call()
    except BaseException as error:
        if not isinstance(error, SystemExit):
            _hide_frames()
        raise


def _hide_frames() -> None:
    """If the current exception reaches the top, show only the frames below runpy and this package."""
    shown = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        inner = trace
        while inner is not None and _is_ours(inner):
            inner = inner.tb_next
        # A script that cannot be compiled has no frame of its own; our frames are removed then, too.
        shown(kind, error.with_traceback(inner), inner)

    sys.excepthook = hook


_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OURS = tuple(os.path.join(_PACKAGE, room) + os.sep for room in ("launch", "worker"))
_MIDDLE = ("<frozen runpy>", runpy.__file__)


def _is_ours(trace: TracebackType) -> bool:
    name = trace.tb_frame.f_code.co_filename
    return name.startswith(_OURS) or name in _MIDDLE or trace.tb_frame.f_globals.get("__name__") == "runpy"
