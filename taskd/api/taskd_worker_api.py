"""Drop-in names of a training process: init_taskd_worker, start_taskd_worker, destroy_taskd_worker.

They never raise and never block training for long. `start_taskd_worker()` waits for the manager's acknowledgement for
3 s (worker.register_wait_ms) at most. Then it logs the reason, returns False and keeps trying in the background. True
means that the manager knows this rank. With `TASKD_PROCESS_ENABLE=off` all of them do nothing and return True.
"""

from __future__ import annotations

import logging
import operator
from typing import Any

from taskd import config, log
from taskd.api.conventions import never_raises
from taskd.worker import guarding, identity, presence

FRAMEWORKS = ("pt", "ms")
DISK_LIMIT_MB = 5000
_logger = log.get(__name__)
_disabled = False


@never_raises(_logger)
def init_taskd_worker(rank_id: int, upper_limit_of_disk_in_mb: int = DISK_LIMIT_MB, framework: str = "pt") -> bool:
    """Prepare this process as rank `rank_id`; framework is "pt" or "ms". The disk limit is for profiling data, and
    taskd writes no such data."""
    global _disabled
    settings = config.load()
    _disabled = not settings.enabled
    if _disabled:
        _say_disabled()
        return True
    world_size = identity.world_size(settings)
    wrong = _wrong_rank(rank_id, world_size) or _wrong_limit(upper_limit_of_disk_in_mb) or _wrong_framework(framework)
    if wrong:
        _logger.error("init_taskd_worker: %s", wrong)
        return False
    rank = operator.index(rank_id)
    there = presence.current()
    if there is not None:
        if there.identity.rank == rank:
            return True
        if there.started:
            _logger.error(
                "init_taskd_worker: this process is rank %d already; call destroy_taskd_worker() first",
                there.identity.rank,
            )
            return False
    if framework == "ms":
        log.once(
            _logger,
            logging.WARNING,
            "ms",
            'framework "ms": taskd watches this process but follows no steps; "pt" is full',
        )
    if upper_limit_of_disk_in_mb != DISK_LIMIT_MB and rank == 0:
        log.once(
            _logger,
            logging.WARNING,
            "disk limit",
            "upper_limit_of_disk_in_mb=%d does nothing: taskd writes no profiling data",
            upper_limit_of_disk_in_mb,
        )
    presence.establish(presence.Presence(settings, presence.who(settings, rank), framework))
    return True


@never_raises(_logger)
def start_taskd_worker() -> bool:
    """Register with the manager; True only once it has acknowledged this rank."""
    if _disabled:
        _say_disabled()
        return True
    there = presence.current()
    if there is None:
        _logger.error("start_taskd_worker: init_taskd_worker(rank) has to come first")
        return False
    if there.started and there.link.registration.acknowledged:
        _logger.warning("start_taskd_worker: rank %d is registered already; nothing to do", there.identity.rank)
        return True
    if not there.started:
        if there.framework == "pt" and not there.launched:
            guarding.guard_groups(there.config)
        there.start()
    if there.wait(there.config.worker.register_wait_ms / 1000):
        return True
    registration = there.link.registration
    registration.late = True
    log.once(
        _logger,
        logging.WARNING,
        f"not registered {registration.reason}",
        "rank %d is not registered: %s; training goes on, and taskd keeps trying",
        there.identity.rank,
        registration.reason,
    )
    return False


@never_raises(_logger)
def destroy_taskd_worker() -> bool:
    """Leave the job in good order; training may go on. False if this process has no worker."""
    if _disabled:
        return True
    there = presence.current()
    if there is None:
        _logger.warning("destroy_taskd_worker: there is no worker in this process; nothing to do")
        return False
    presence.establish(None)
    there.end("destroy_taskd_worker() was called")
    return True


def _say_disabled() -> None:
    log.once(_logger, logging.WARNING, "disabled", "TASKD_PROCESS_ENABLE is off: taskd does nothing in this process")


def _wrong_rank(rank: Any, world_size: int) -> str:
    try:
        number = -1 if isinstance(rank, bool) else operator.index(rank)
    except TypeError:
        number = -1
    if number < 0:
        return f"a rank is a whole number from 0 on, not {rank!r:.80}"
    if number >= world_size:
        return f"rank {number} does not exist in a job of {world_size} (ranks 0 to {world_size - 1})"
    return ""


def _wrong_limit(limit: Any) -> str:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        return f"upper_limit_of_disk_in_mb is a whole number of megabytes from 0 on, not {limit!r:.80}"
    return ""


def _wrong_framework(framework: Any) -> str:
    if framework not in FRAMEWORKS:
        return f'framework is "pt" or "ms", not {framework!r:.80}'
    return ""
