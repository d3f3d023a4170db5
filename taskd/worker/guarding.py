"""Puts the guard around the groups of a process that taskd's launcher did not start, if recovery is wanted.

With PROCESS_RECOVER=on, `start_taskd_worker()` does what `taskd.guard()` does: every live process group keeps its
object and its name, and a guard is put between it and gloo. If this fails, one message is logged, and the groups stay
as they were. It does NOT repair anything: that needs a launcher that can start a rank again.
"""

from __future__ import annotations

import logging

from taskd import log
from taskd.config import Config
from taskd.errors import TaskdError
from taskd.worker.identity import initialised_distributed

_logger = log.get(__name__)


def guard_groups(config: Config) -> None:
    """Guard the live groups if recovery is on and there are any. Raises nothing that an import or torch would."""
    if not config.recover.process_recover or initialised_distributed() is None:
        return
    try:
        from taskd.comm import cpu_settings, guard

        cpu_settings.configure(config)
        for identity in guard.adopt():
            _logger.info("group %s is guarded", identity)
    except (ImportError, TaskdError, RuntimeError) as error:
        log.once(_logger, logging.WARNING, "unguarded", "the process groups stay unguarded: %s", error)
