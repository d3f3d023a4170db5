"""The import finder that answers for modules existing scripts import, when the real packages are absent.

Importing this module appends one finder to the END of sys.meta_path: whatever is really installed is found before it is
asked, so the real packages always win, also partly: a real `mindio_ttp` that lacks a submodule stays as it is, and the
ImportError stands. The finder answers with the public names of the modules beside this file.

`mindio_ttp` is answered for only where somebody has asked for taskd: by importing taskd.api, or by a variable that a
job of that kind has in its environment. Code that looks whether the package is there must not find it on every
machine on which taskd happens to be installed.

A .pth file imports this at every start of the interpreter. So it imports sys and os alone, and does its work in
microseconds. It does NOT import torch, yaml, logging or any other part of taskd; the modules it answers with do that
later.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` costs milliseconds at every start of every interpreter
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

PACKAGE = ""
MODULES = {
    "mindio_ttp": PACKAGE,
    "mindio_ttp.framework_ttp": "taskd.compat.framework",
    "mindio_ttp.controller_ttp": "taskd.compat.controller",
    "mindx_elastic": PACKAGE,
    "mindx_elastic.api": "taskd.compat.launcher",
    "taskd.python": PACKAGE,
    "taskd.python.adaptor": PACKAGE,
    "taskd.python.adaptor.patch": "taskd.compat.launcher",
}
"""The name that is answered for -> the module whose public names answer; PACKAGE is an empty package."""
ASKED_BY = ("TASKD_", "_TASKD_", "PROCESS_RECOVER", "ELASTIC_PROCESS_", "HIGH_AVAILABILITY", "MINDX_TASK_ID")
"""How the variables begin whose presence says that this process belongs to a job that taskd looks after."""
SERVICE_LINKS = ("_SERVICE_HOST", "_SERVICE_PORT", "_PORT_")
"""In the names that Kubernetes gives to every pod beside a Service, be it called taskd-manager: nobody has asked."""


class Loader:
    """Fills a module with the public names of the one that answers for it: the same functions, the same classes."""

    def __init__(self, home: str) -> None:
        self.home = home

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        if self.home == PACKAGE:
            module.__doc__ = f"{module.__name__}, answered by taskd because the real package is not installed."
            return
        import importlib

        home = importlib.import_module(self.home)
        for name in home.__all__:
            setattr(module, name, getattr(home, name))
        module.__doc__ = home.__doc__
        module.__dict__["__all__"] = list(home.__all__)


class Finder:
    """Knows the eight names above; stands at the end of sys.meta_path."""

    is_of_taskd = True  # survives a reload of this module, which makes another class

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        home = MODULES.get(name)
        if home is None or (name.startswith("mindio_ttp") and not asked()):
            return None
        parent = name.rpartition(".")[0]
        # Never a module of ours inside a package of theirs: half of each is worse than an honest ImportError.
        if parent and parent != "taskd":
            spec = getattr(sys.modules.get(parent), "__spec__", None)
            if not isinstance(getattr(spec, "loader", None), Loader):
                return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, Loader(home), origin="taskd.compat", is_package=home == PACKAGE)  # type: ignore[arg-type]


def asked() -> bool:
    """Whether this process wants taskd, and does not only run where it is installed."""
    if "taskd.api" in sys.modules:
        return True
    named = [name for name in os.environ if name.startswith(ASKED_BY)]
    links = ("tcp://", "udp://", "sctp://")
    return any(
        not os.environ[name].startswith(links) and not any(part in name for part in SERVICE_LINKS) for name in named
    )


def install() -> None:
    """Put the finder at the end of sys.meta_path, once."""
    if not any(getattr(finder, "is_of_taskd", False) for finder in sys.meta_path):
        sys.meta_path.append(Finder())


install()
