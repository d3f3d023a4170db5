"""The import finder that replaces modules that existing scripts import, when the real packages are absent.

Importing this module appends one finder to the END of sys.meta_path. Python finds every installed package before it
asks this finder, so the real packages always win. This holds for parts, too: a real `mindio_ttp` that lacks a submodule
stays as it is, and the ImportError stays. The finder answers with the public names of the modules beside this file.

It answers for `mindio_ttp` only in a process that has asked for taskd: by importing taskd.api, or by a variable that
such a job has in its environment. Some code checks whether the package is there. It must not find the package on every
machine on which taskd happens to be installed.

Where PROCESS_RECOVER is on, a second finder stands first. It answers for `torch.distributed.run` only, with torch's own
module and other entrances (torchrun.py): torchrun then starts the job as taskd-run does. Nobody else meets it.

A .pth file imports this module at every start of the interpreter. So it imports only sys and os, and does its work in
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
"""Replaced name -> the module that provides its public names; PACKAGE is an empty package."""
ASKED_BY = ("TASKD_", "_TASKD_", "PROCESS_RECOVER", "ELASTIC_PROCESS_", "HIGH_AVAILABILITY", "MINDX_TASK_ID")
"""Prefixes of variables. If one is set, this process belongs to a job that taskd looks after."""
SERVICE_LINKS = ("_SERVICE_HOST", "_SERVICE_PORT", "_PORT_")
"""Parts of the variables that Kubernetes sets in every pod beside a Service. A Service may be called taskd-manager, so
such a variable does not ask for taskd."""
LAUNCHER = "torch.distributed.run"
RECOVER = ("TASKD_RECOVER_PROCESS_RECOVER", "PROCESS_RECOVER", "ELASTIC_PROCESS_RECOVER_ENABLE")
"""Variables that say whether ranks that die are replaced. The first one that is set decides."""
YES = ("on", "true", "yes", "1", "enable", "enabled")


class Loader:
    """Fills a module with the public names of its replacement: the same functions, the same classes."""

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
    """Finds the eight names above; it is the last one in sys.meta_path."""

    is_of_taskd = True  # survives a reload of this module, which makes another class

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        home = MODULES.get(name)
        if home is None or (name.startswith("mindio_ttp") and not asked()):
            return None
        parent = name.rpartition(".")[0]
        # Never put our module into a real package: half of each is worse than an honest ImportError.
        if parent and parent != "taskd":
            spec = getattr(sys.modules.get(parent), "__spec__", None)
            if not isinstance(getattr(spec, "loader", None), Loader):
                return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, Loader(home), origin="taskd.compat", is_package=home == PACKAGE)  # type: ignore[arg-type]


class LauncherFinder:
    """Finds torch's launcher, and gives it other entrances. It stands first in sys.meta_path."""

    is_of_taskd = True

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if name != LAUNCHER:
            return None
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, path)
        if spec is not None:
            from taskd.compat import torchrun

            spec.loader = torchrun.Loader(spec.loader)  # type: ignore[assignment]
        return spec


def recovers() -> bool:
    """Whether torchrun is to start jobs as taskd-run does."""
    if os.environ.get("TASKD_PROCESS_ENABLE", "").strip().lower() == "off":
        return False
    words = [word for name in RECOVER if (word := os.environ.get(name, "").strip().lower())]
    return bool(words) and words[0] in YES


def asked() -> bool:
    """Whether this process wants taskd, and does not only run on a machine where it is installed."""
    if "taskd.api" in sys.modules:
        return True
    named = [name for name in os.environ if name.startswith(ASKED_BY)]
    links = ("tcp://", "udp://", "sctp://")
    return any(
        not os.environ[name].startswith(links) and not any(part in name for part in SERVICE_LINKS) for name in named
    )


def install() -> None:
    """Put the finder at the end of sys.meta_path, once, and the launcher's at its beginning if it is wanted."""
    if not any(getattr(finder, "is_of_taskd", False) for finder in sys.meta_path):
        sys.meta_path.append(Finder())
        if recovers():
            sys.meta_path.insert(0, LauncherFinder())  # type: ignore[arg-type]


install()
