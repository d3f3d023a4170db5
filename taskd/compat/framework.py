"""Replaces `mindio_ttp.framework_ttp`: the functions that a training script calls around its loop.

Three calls have an effect: tft_pause_train says that a step has ended and waits while an operator pauses the job.
tft_start_updating_os and tft_end_updating_os enclose the optimizer step. They feed taskd's beats, and cost next to
nothing when taskd does not run in this process. tft_exception_handler runs the function it decorates. Every other
function is a no-op: it says so once and returns the value that means "nothing happened, nothing is wanted". Functions
that register a handler still refuse one that is not callable. The controller's functions are offered here too, from
controller.py.
This module does NOT keep handlers, ignore signals or touch torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import IntEnum
from typing import Any, TypeVar

from taskd.compat.controller import (
    tft_destroy_controller,
    tft_init_controller,
    tft_notify_controller_change_strategy,
    tft_notify_controller_dump,
    tft_notify_controller_on_global_rank,
    tft_notify_controller_prepare_action,
    tft_notify_controller_stop_train,
    tft_query_high_availability_switch,
    tft_register_mindx_callback,
    tft_start_controller,
)
from taskd.compat.notice import need_callable, without_effect

__all__ = [
    "Action",
    "OptimizerType",
    "RepairType",
    "ReportState",
    "set_mindio_export_version",
    "tft_can_do_uce_repair",
    "tft_destroy_controller",
    "tft_destroy_processor",
    "tft_end_updating_os",
    "tft_exception_handler",
    "tft_get_reboot_type",
    "tft_get_repair_step",
    "tft_get_repair_type",
    "tft_init_controller",
    "tft_init_processor",
    "tft_is_reboot_node",
    "tft_notify_controller_change_strategy",
    "tft_notify_controller_dump",
    "tft_notify_controller_on_global_rank",
    "tft_notify_controller_prepare_action",
    "tft_notify_controller_stop_train",
    "tft_pause_train",
    "tft_query_high_availability_switch",
    "tft_register_clean_handler",
    "tft_register_decrypt_handler",
    "tft_register_exception_handler",
    "tft_register_exit_handler",
    "tft_register_mindx_callback",
    "tft_register_rebuild_group_handler",
    "tft_register_rename_handler",
    "tft_register_repair_handler",
    "tft_register_rollback_handler",
    "tft_register_save_ckpt_handler",
    "tft_register_stop_handler",
    "tft_register_stream_sync_handler",
    "tft_register_zit_downgrade_rebuild_handler",
    "tft_register_zit_upgrade_rebuild_handler",
    "tft_register_zit_upgrade_repair_handler",
    "tft_register_zit_upgrade_rollback_handler",
    "tft_report_error",
    "tft_report_load_ckpt_step",
    "tft_reset_limit_step",
    "tft_set_dp_group_info",
    "tft_set_optimizer_replica",
    "tft_set_step_args",
    "tft_set_update_end_time",
    "tft_set_update_start_time",
    "tft_start_controller",
    "tft_start_copy_os",
    "tft_start_processor",
    "tft_start_updating_os",
    "tft_wait_next_action",
    "tft_wait_repair_action",
]

Handler = Callable[..., Any]
Function = TypeVar("Function", bound=Callable[..., Any])

WORKER = "start_taskd_worker() links this process to the job's taskd manager"
HANDLERS = "taskd stops, repairs and resumes a step without handlers of the script"
STATE = "taskd keeps track of who holds a copy of what by itself"
COPY = "taskd takes no copy of the optimizer here"
UNASKED = "no repair of the original is under way, and none will be"


class ReportState(IntEnum):
    """What a rank can report about itself."""

    RS_NORMAL = 0
    RS_RETRY = 1
    RS_UCE = 2
    RS_UCE_CORRUPTED = 3
    RS_HCCL_FAILED = 4
    RS_UNKNOWN = 5
    RS_INIT_FINISH = 6
    RS_PREREPAIR_FINISH = 7
    RS_STEP_FINISH = 8


class RepairType(IntEnum):
    """A rank's part in a repair."""

    RT_SEND = 0
    RT_UCE_HIGHLEVEL = 1
    RT_UCE_LOWLEVEL = 2
    RT_ROLLBACK = 3
    RT_RECV_REPAIR = 4
    RT_LOAD_CKPT = 5
    RT_LOAD_REBUILD = 6


class OptimizerType(IntEnum):
    """The part of the optimizer that a replica list describes."""

    ATTENTION = 0
    MOE = 1


class Action(IntEnum):
    """What to do next, as tft_wait_next_action returns it."""

    RETRY = 0
    EXIT = 1


_hooks: Any = None


def _load_hooks() -> Any:
    # Imported at the first call: a script that only imports this module must not pay for the worker's part.
    global _hooks
    from taskd.worker import hooks

    _hooks = hooks
    return hooks


# Calls with an effect: the progress of training.
def tft_pause_train(cur_step: int) -> None:
    """Say that step `cur_step` has ended; wait while an operator pauses the job. Call it after every iteration."""
    (_hooks or _load_hooks()).step_end(cur_step)


def tft_start_updating_os(backup_step: int = -1) -> None:
    """Say that the optimizer begins to change the parameters; -1 means the step that is under way."""
    (_hooks or _load_hooks()).optimizer_begin(backup_step)


def tft_end_updating_os(step: int) -> None:
    """Say that the optimizer has finished step `step`."""
    (_hooks or _load_hooks()).optimizer_end(step)


def tft_exception_handler(func: Function) -> Function:
    """Decorator around train(): runs the function; its exceptions are its own."""
    need_callable("tft_exception_handler", func)

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        without_effect("tft_exception_handler", "the function runs as it is; " + HANDLERS)
        return func(*args, **kwargs)

    return wrapper  # type: ignore[return-value]


# Calls without an effect: the processor, which is the original's own link.
def tft_init_processor(
    rank: int,
    world_size: int,
    enable_local_copy: bool,
    enable_tls: bool = True,
    tls_info: str = "",
    enable_uce: bool = True,
    enable_arf: bool = False,
    enable_zit: bool = False,
) -> None:
    """No effect; signals stay as they are, too."""
    without_effect("tft_init_processor", WORKER)


def tft_start_processor(master_ip: str, port: int, local_ip: str = "") -> None:
    """No effect: connects to nobody."""
    without_effect("tft_start_processor", WORKER)


def tft_destroy_processor() -> None:
    """No effect: there is no link to close."""
    without_effect("tft_destroy_processor", WORKER)


def tft_start_copy_os() -> None:
    """No effect: no copy is taken."""
    without_effect("tft_start_copy_os", COPY)


def tft_set_optimizer_replica(rank: int, replica_info: list[dict[str, Any]]) -> None:
    """No effect: the replica list is not kept."""
    without_effect("tft_set_optimizer_replica", STATE)


def tft_set_dp_group_info(rank: int, dp_rank_list: list[int]) -> None:
    """No effect: the list is not kept."""
    without_effect("tft_set_dp_group_info", STATE)


def tft_set_step_args(args: Any) -> None:
    """No effect: the arguments are not kept, since no handler is called."""
    without_effect("tft_set_step_args", HANDLERS)


def _registered(name: str, func: object) -> None:
    need_callable(name, func)
    without_effect(name, HANDLERS)


def tft_register_save_ckpt_handler(func: Handler, ctx: Any = None) -> None:
    """No effect: `func(step, save_info, args, ctx)` is not called."""
    _registered("tft_register_save_ckpt_handler", func)


def tft_register_rename_handler(func: Handler, ctx: Any = None) -> None:
    """No effect: `func(step, args)` is not called."""
    _registered("tft_register_rename_handler", func)


def tft_register_stop_handler(func: Handler, ctx: Any = None) -> None:
    """No effect: `func(args, ctx)` is not called."""
    _registered("tft_register_stop_handler", func)


def tft_register_clean_handler(func: Handler, ctx: Any = None) -> None:
    """No effect: `func(is_uce_error, args, ctx)` is not called."""
    _registered("tft_register_clean_handler", func)


def tft_register_rebuild_group_handler(func: Handler, ctx: Any = None) -> None:
    """No effect: `func(fault_ranks, args, ctx)` is not called."""
    _registered("tft_register_rebuild_group_handler", func)


def tft_register_repair_handler(func: Handler, ctx: Any = None) -> None:
    """No effect: `func(step, need_rebuild, error_ranks, repair_info, args, ctx)` is not called."""
    _registered("tft_register_repair_handler", func)


def tft_register_rollback_handler(func: Handler, ctx: Any = None) -> None:
    """No effect: `func(step, args, ctx)` is not called."""
    _registered("tft_register_rollback_handler", func)


def tft_register_stream_sync_handler(func: Handler, ctx: Any = None) -> None:
    """No effect: `func()` is not called."""
    _registered("tft_register_stream_sync_handler", func)


def tft_register_exit_handler(func: Handler, ctx: Any = None) -> None:
    """No effect: `func(ctx)` is not called."""
    _registered("tft_register_exit_handler", func)


def tft_register_zit_downgrade_rebuild_handler(func: Handler, ctx: Any = None) -> None:
    """No effect: `func(new_dp_ranks, new_world_ranks, args, params)` is not called."""
    _registered("tft_register_zit_downgrade_rebuild_handler", func)


def tft_register_zit_upgrade_rebuild_handler(func: Handler, ctx: Any = None) -> None:
    """No effect: `func(rank_list, args, param)` is not called."""
    _registered("tft_register_zit_upgrade_rebuild_handler", func)


def tft_register_zit_upgrade_repair_handler(func: Handler, ctx: Any = None) -> None:
    """No effect: `func(step, need_rebuild, error_ranks, repair_info, args, param)` is not called."""
    _registered("tft_register_zit_upgrade_repair_handler", func)


def tft_register_zit_upgrade_rollback_handler(func: Handler, ctx: Any = None) -> None:
    """No effect: `func(step, args, param)` is not called."""
    _registered("tft_register_zit_upgrade_rollback_handler", func)


def tft_register_exception_handler(fault_pattern: str, fault_type: str, fault_handle: Handler) -> None:
    """No effect: exceptions are not matched against patterns."""
    _registered("tft_register_exception_handler", fault_handle)


def tft_register_decrypt_handler(decryptor: Handler) -> None:
    """No effect: taskd's key needs no password."""
    need_callable("tft_register_decrypt_handler", decryptor)
    without_effect(
        "tft_register_decrypt_handler", "taskd authenticates with the job's key and has no password to decrypt"
    )


# Calls that ask the original for a decision: they answer as in a job in which nothing is being repaired.
def tft_report_error(error_type: ReportState, error_code: str = "") -> None:
    """No effect: the manager learns of faults from processes, beats, collectives and devices."""
    without_effect("tft_report_error", "the manager learns of faults from processes, beats, collectives and devices")


def tft_wait_next_action() -> int:
    """Action.EXIT at once: nobody will decide on a retry, and waiting for it would hang the rank."""
    without_effect("tft_wait_next_action", UNASKED)
    return int(Action.EXIT)


def tft_wait_repair_action() -> int:
    """Action.EXIT at once: nobody will decide on a repair, and waiting for it would hang the rank."""
    without_effect("tft_wait_repair_action", UNASKED)
    return int(Action.EXIT)


def tft_get_repair_step() -> int:
    """0: no step is being repaired."""
    without_effect("tft_get_repair_step", UNASKED)
    return 0


def tft_get_repair_type() -> str:
    """ "unknown": no repair is under way."""
    without_effect("tft_get_repair_type", UNASKED)
    return "unknown"


def tft_is_reboot_node() -> bool:
    """False: this process was not started again by the original."""
    without_effect("tft_is_reboot_node", UNASKED)
    return False


def tft_get_reboot_type() -> str:
    """ "": this process was not started again by the original."""
    without_effect("tft_get_reboot_type", UNASKED)
    return ""


def tft_reset_limit_step() -> None:
    """No effect: there is no limit step."""
    without_effect("tft_reset_limit_step", UNASKED)


def tft_report_load_ckpt_step(step: int) -> None:
    """No effect: nobody asked for the step of a checkpoint."""
    without_effect("tft_report_load_ckpt_step", UNASKED)


def tft_can_do_uce_repair(hbm_error_time: Any, start_time: Any = None, end_time: Any = None) -> bool:
    """False: taskd does not repair a memory error inside a step."""
    without_effect("tft_can_do_uce_repair", UNASKED)
    return False


def tft_set_update_start_time(t: Any = None) -> None:
    """No effect: update times are not kept."""
    without_effect("tft_set_update_start_time", UNASKED)


def tft_set_update_end_time(t: Any = None) -> None:
    """No effect: update times are not kept."""
    without_effect("tft_set_update_end_time", UNASKED)


def set_mindio_export_version(name: str) -> None:
    """No effect; ValueError for a name the original does not know either."""
    if name not in ("MindSpeed", "MindSpeed-LLM"):
        raise ValueError(
            f"set_mindio_export_version() knows MindSpeed and MindSpeed-LLM, not {name!r}; pass one of them"
        )
    without_effect("set_mindio_export_version", "there is nothing to export")
