"""taskd keeps a distributed PyTorch training job alive from the inside.

This module is the modern API in one screen. Every name is loaded when it is first used, so that `import taskd`
costs nothing and works where torch is not installed (the manager's host, an operator's laptop). The names that
existing scripts call live in `taskd.api`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # a .pth file imports taskd at every start of Python, where typing alone would cost ten milliseconds
    from typing import Any

__version__ = "0.1.0"

_HOMES: dict[str, str] = {
    "session": "taskd.worker.current",
    "guard": "taskd.comm.guard:adopt",
    "monitored_barrier": "taskd.comm.barrier",
    "resilient": "taskd.worker.resilient",
    "StepSampler": "taskd.worker.sampler",
    "add_line": "taskd.worker.files",
    "save": "taskd.worker.files",
    "write_file": "taskd.worker.files",
    "Client": "taskd.client",
    "UsageError": "taskd.errors",
    "PeerError": "taskd.errors",
    "BackendError": "taskd.errors",
    "StepAbandoned": "taskd.errors",
}
"""Where each public name lives; after the colon, what it is called there."""

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'taskd' has no attribute {name!r}")
    import importlib

    module, _, own = home.partition(":")
    return getattr(importlib.import_module(module), own or name)


def __dir__() -> list[str]:
    return sorted(__all__)
