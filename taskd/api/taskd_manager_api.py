"""The manager as existing scripts start it: `init_taskd_manager({...})`, then `start_taskd_manager()`, which blocks.

Both return True or False and never raise. A script that starts its manager in the background must not fail because of
it, so an error is logged in one sentence. The dictionary's keys are the original's; everything else comes from the
configuration (environment, file). This is only a thin layer: taskd.manager.loop does the work.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from taskd import log
from taskd.api.conventions import never_raises
from taskd.core.limits import MAX_NODES, MAX_RANKS
from taskd.errors import UsageError

if TYPE_CHECKING:
    from taskd.config import Config

_log = log.get(__name__)

NUMBERS = ("node_nums", "proc_per_node")
WITHOUT_MEANING = {
    "plugin_dir": "taskd loads no plug-ins",
    "cluster_infos": "taskd talks to no cluster service and finds its nodes by itself",
}
"""Keys of the original that do nothing here, and why."""
KEYS = ("job_id", *NUMBERS, "fault_recover", "taskd_enable", *WITHOUT_MEANING)

_config: Config | None = None


@never_raises(_log)
def init_taskd_manager(config: dict[str, Any]) -> bool:
    """Check and remember the job: job_id, node_nums, proc_per_node. False, and a sentence in the log, on an error."""
    global _config
    log.identify("manager")
    _config = None  # after a refused job, the job before it must not stay in its place
    _config = _load(config)
    if not _config.enabled:
        _log.warning("taskd is switched off (taskd_enable or TASKD_PROCESS_ENABLE is off): there will be no manager")
    return True


@never_raises(_log)
def start_taskd_manager() -> bool:
    """Run the job's manager until the job is over or a signal comes. False if not initialised, or on an error.

    If taskd is switched off there is nothing to run, and it returns True at once.
    """
    if _config is None:
        raise UsageError("init_taskd_manager has not been called before, or returned False")
    if _config.enabled:
        from taskd.manager.loop import ManagerLoop

        ManagerLoop(_config).run()
    return True


def _load(given: Any) -> Config:
    from taskd.config import effects, load

    if not isinstance(given, dict):
        raise UsageError(f"a dict with job_id, node_nums and proc_per_node is wanted, not {type(given).__name__}")
    missing = [key for key in ("job_id", *NUMBERS) if key not in given]
    if missing:
        raise UsageError(f"the configuration lacks {', '.join(missing)}")
    for key in NUMBERS:
        value = given[key]
        if isinstance(value, bool) or not isinstance(value, int):
            raise UsageError(
                f"{key} is {value!r}, a whole number is wanted (int(os.environ[...]) if it comes from there)"
            )
        if value < 1:
            raise UsageError(f"{key} is {value}, at least 1 is wanted")
    if given["node_nums"] > MAX_NODES or given["node_nums"] * given["proc_per_node"] > MAX_RANKS:
        raise UsageError(f"a job has at most {MAX_NODES} nodes and {MAX_RANKS} ranks")
    unknown = [str(key) for key in given if key not in KEYS]
    if unknown:
        _log.warning("init_taskd_manager does not know %s; known are %s", ", ".join(unknown), ", ".join(KEYS))
    for key, why in WITHOUT_MEANING.items():
        if given.get(key):
            log.once(_log, logging.WARNING, f"manager key {key}", "%s does nothing: %s", key, why)
    job: dict[str, Any] = {key: given[key] for key in NUMBERS}
    if given["job_id"] not in (None, ""):
        job["id"] = given["job_id"]
    config = load(
        job=job, enabled=_enabled(given.get("taskd_enable")), recover={"process_recover": given.get("fault_recover")}
    )
    effects.say(config)
    if "id" not in job:
        _log.info("job_id is not set (MINDX_TASK_ID?): this is job %s", config.job.id)
    return config


def _enabled(word: Any) -> bool | None:
    """Only "off" (or False) disables, as in the original. With anything else the environment decides."""
    return False if word is False or (isinstance(word, str) and word.strip().lower() == "off") else None
