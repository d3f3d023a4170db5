"""Replaces `mindio_ttp.controller_ttp`: the controller's side. taskd's own manager does the controller's work.

Every function has the signature of the original and says once that it has no effect. Functions that return a result
code return FAILED, because a call that did nothing has not succeeded; the others return None or False.
This module does NOT start a controller, open port 8000 or call back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from taskd.compat.notice import need_callable, without_effect

DONE = 0
FAILED = 1
MANAGER = "the job's taskd manager decides and needs no controller"
VERBS = "the job's taskd manager stops, pauses and repairs by itself"

__all__ = [
    "tft_destroy_controller",
    "tft_init_controller",
    "tft_notify_controller_change_strategy",
    "tft_notify_controller_dump",
    "tft_notify_controller_on_global_rank",
    "tft_notify_controller_prepare_action",
    "tft_notify_controller_stop_train",
    "tft_query_high_availability_switch",
    "tft_register_mindx_callback",
    "tft_start_controller",
]


def tft_init_controller(
    rank: int, world_size: int, enable_local_copy: bool, enable_arf: bool = False, enable_zit: bool = False
) -> None:
    """No effect: there is no controller to prepare."""
    without_effect("tft_init_controller", MANAGER)


def tft_start_controller(bind_ip: str, port: int, enable_tls: bool = True, tls_info: str = "") -> None:
    """No effect: nothing listens on this port."""
    without_effect("tft_start_controller", MANAGER)


def tft_destroy_controller() -> None:
    """No effect: there is no controller to end."""
    without_effect("tft_destroy_controller", MANAGER)


def tft_query_high_availability_switch() -> bool:
    """False: no processor is linked to a controller of the original."""
    without_effect("tft_query_high_availability_switch", MANAGER)
    return False


def tft_register_mindx_callback(action: str, func: Callable[..., Any]) -> int:
    """FAILED: nobody will call back. TypeError when `func` cannot be called."""
    need_callable("tft_register_mindx_callback", func)
    without_effect("tft_register_mindx_callback", "reports go to the job's taskd manager; `taskd incidents` shows them")
    return FAILED


def tft_notify_controller_stop_train(
    fault_ranks: dict[int, int], stop_type: str = "stop", timeout: int | None = None
) -> int:
    """FAILED: no controller was told."""
    without_effect("tft_notify_controller_stop_train", VERBS)
    return FAILED


def tft_notify_controller_on_global_rank(fault_ranks: dict[int, int], time: int = 1) -> int:
    """FAILED: no controller was told."""
    without_effect("tft_notify_controller_on_global_rank", VERBS)
    return FAILED


def tft_notify_controller_change_strategy(strategy: str, params: str = "") -> int:
    """FAILED: no controller was told."""
    without_effect("tft_notify_controller_change_strategy", VERBS)
    return FAILED


def tft_notify_controller_prepare_action(action: str, fault_ranks: dict[int, int] | None = None) -> int:
    """FAILED: no controller was told."""
    without_effect("tft_notify_controller_prepare_action", VERBS)
    return FAILED


def tft_notify_controller_dump() -> int:
    """FAILED: no controller was told."""
    without_effect("tft_notify_controller_dump", VERBS)
    return FAILED
