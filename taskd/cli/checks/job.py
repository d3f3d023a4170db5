"""The doctor's field "job": settings, the job's name, its run directory and key, and preloads of the original.

It reads what taskd would read and makes nothing: no directory, no key. It does NOT show the key.
"""

from __future__ import annotations

import os
import re
import stat

from taskd import config as configuration
from taskd.cli.checks import Finding, fault, ok, warning
from taskd.config import Config, effects
from taskd.errors import UsageError
from taskd.wire import keys, run_dir

TOPIC = "job"
ORIGINALS = ("libtaskd.so", "libmspti.so")
SPACE_BYTES_LEAST = 64 * 1024 * 1024


def load() -> tuple[Config, Finding]:
    """The configuration as this environment makes it; the defaults, and a fault, when it is refused."""
    try:
        config = configuration.load()
    except UsageError as error:
        return Config(), fault(TOPIC, "settings", str(error), "correct it; the other checks go by the defaults")
    given = [path for path, _, source in configuration.explain(config) if not source.startswith("default")]
    shown = f"set here: {', '.join(given)}" if given else "all at their defaults"
    idle = effects.without_effect(config)
    if idle:
        return config, warning(TOPIC, "settings", f"{shown}; {'; '.join(idle)}", "leave out what does nothing")
    return config, ok(TOPIC, "settings", shown if config.enabled else f"{shown}; taskd is switched off")


def check(config: Config) -> list[Finding]:
    """Every finding of this field but the settings."""
    return [_name(config), _directory(config), _key(config), *_preloads()]


def _name(config: Config) -> Finding:
    source = config.sources.get("job.id", "default")
    if source == "default":
        return ok(TOPIC, "job id", f"{config.job.id!r}; set MINDX_TASK_ID when several of your jobs share a host")
    return ok(TOPIC, "job id", f"{config.job.id!r} from {source}")


def _directory(config: Config) -> Finding:
    path = config.job.directory
    if os.path.lexists(path):
        try:
            run_dir.check(path)
        except UsageError as error:
            return fault(TOPIC, "run directory", str(error), "do so before the job starts")
        state = "is this user's alone"
    else:
        state = "will be made"
    above = path
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    trouble = "" if os.access(above, os.W_OK | os.X_OK) else "not writable"
    trouble = trouble if os.path.isdir(above) else "not a directory"
    if trouble:
        return fault(
            TOPIC, "run directory", f"{path} cannot be made, {above} is {trouble}", "set TASKD_RUN_DIR to one that is"
        )
    space = os.statvfs(above)
    if space.f_bavail * space.f_frsize < SPACE_BYTES_LEAST:
        return warning(
            TOPIC,
            "run directory",
            f"{path}: less than {SPACE_BYTES_LEAST // 2**20} MiB are free there, the journal will soon stop",
            "make room, or set TASKD_RUN_DIR to another file system",
        )
    return ok(TOPIC, "run directory", f"{path} {state}")


def _key(config: Config) -> Finding:
    try:
        key = keys.find(config)
    except UsageError as error:
        return fault(TOPIC, "key", str(error), "mend the file, or give the key by TASKD_KEY")
    if key is None:
        text = (
            "none yet; the manager makes one (mode 0600) and the job hands it to its nodes, sealed: who reads the "
            "rendezvous' store learns nothing, who can write there may ask; TASKD_KEY_FILE on all nodes avoids that"
        )
        return ok(TOPIC, "key", text)
    config_file = os.environ.get("TASKD_CONFIG", "")
    if config.manager.key and config.sources.get("manager.key", "").startswith("file") and _others_read(config_file):
        return fault(
            TOPIC, "key", f"{config_file} holds the key and other users can read it", f"`chmod 600 {config_file}`"
        )
    return ok(TOPIC, "key", f"32 bytes from {key.source}")


def _others_read(path: str) -> bool:
    try:
        return bool(stat.S_IMODE(os.stat(path).st_mode) & 0o077)
    except OSError:
        return False


def _preloads() -> list[Finding]:
    entries = [entry for entry in re.split(r"[:\s]+", os.environ.get("LD_PRELOAD", "")) if entry]
    if not entries:
        return [ok(TOPIC, "LD_PRELOAD", "not set, and not needed")]
    findings = []
    for entry in entries:
        name = os.path.basename(entry)
        known = f"{name} belongs to the original; taskd needs no preload and tolerates it" if name in ORIGINALS else ""
        if "/" in entry and not os.path.exists(entry):
            findings.append(
                warning(
                    TOPIC,
                    "LD_PRELOAD",
                    f"{known or name}, but {entry} does not exist: the loader complains at each start of a process",
                    "take it out of LD_PRELOAD",
                )
            )
        else:
            findings.append(ok(TOPIC, "LD_PRELOAD", known or f"{entry} is loaded into every process of the job"))
    return findings
