"""The names that existing training scripts call: `from taskd.api import init_taskd_manager, ...`.

There are ten functions in four modules, loaded on first use: a manager's host needs no torch, and a worker needs no
manager. They never raise into a training script; they log one sentence and return False. Their modules describe what
they do. Nothing is decided here.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "init_taskd_manager": "taskd_manager_api",
    "start_taskd_manager": "taskd_manager_api",
    "init_taskd_worker": "taskd_worker_api",
    "start_taskd_worker": "taskd_worker_api",
    "destroy_taskd_worker": "taskd_worker_api",
    "init_taskd_agent": "taskd_agent_api",
    "start_taskd_agent": "taskd_agent_api",
    "register_func": "taskd_agent_api",
    "init_taskd_proxy": "taskd_proxy_api",
    "destroy_taskd_proxy": "taskd_proxy_api",
}
"""The module of this package that holds each name."""

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'taskd.api' has no attribute {name!r}")
    return getattr(importlib.import_module(f"taskd.api.{home}"), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
