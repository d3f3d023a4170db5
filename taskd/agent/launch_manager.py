"""The job's manager as a child of the first node's launcher: started unless one is given, started again if it dies.

It takes the configured port; where another job has the usual one and the user named none, a free one. It ends with
the job by itself, and with its launcher whatever happens to that. A job whose manager cannot be had trains all the
same, unwatched. It does NOT speak with the manager: the launcher's agent does.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from taskd import config as configuration
from taskd import log
from taskd.config import Config
from taskd.errors import UsageError

STARTS_MAX = 5
LOOK_SECONDS = 2.0
_logger = log.get(__name__)


def is_given(config: Config) -> bool:
    """Whether the user has said where the manager is: then none is started."""
    return not config.sources.get("manager.host", "default").startswith("default")


def running(config: Config) -> int:
    """The port of this job's manager if one lives on this host already; 0: none does."""
    try:
        note = json.loads(Path(config.job.directory, "manager.json").read_text(encoding="utf-8"))
        os.kill(int(note["pid"]), 0)
        # One that was killed leaves its note behind, and its number for as long as nobody has reaped it.
        socket.create_connection((str(note["address"]), int(note["port"])), LOOK_SECONDS).close()
        return int(note["port"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def free_port(config: Config) -> int:
    """The configured port, or any other one where it is taken and nobody insists on it."""
    address = config.manager.bind if config.manager.bind != "*" else "0.0.0.0"
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        try:
            probe.bind((address, config.manager.port))
            return config.manager.port
        except OSError:
            if not config.sources.get("manager.port", "default").startswith("default"):
                return config.manager.port  # the manager says what is wrong with it
            probe.bind((address, 0))
            return int(probe.getsockname()[1])


def at_port(config: Config, port: int) -> Config:
    """The configuration with this manager on this host."""
    manager = replace(config.manager, host="127.0.0.1", port=port)
    return replace(config, manager=manager)


class ManagerProcess:
    """`start`, then `tend` whenever `fd` is readable, then `end`."""

    def __init__(self, config: Config, nodes: int, world_size: int) -> None:
        self._config = config
        self._nodes, self._world_size = nodes, world_size
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self.fd = -1
        """Readable when the manager has ended; -1: there is none."""

    @property
    def pid(self) -> int:
        """Its process; 0: there is none."""
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        """Start it; returns at once. Raises UsageError when the system does not."""
        self._starts += 1
        command = [sys.executable, "-m", "taskd.agent.launch_child", str(os.getpid()), "module", "taskd.manager"]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=2,  # nothing of its own may stand between the lines of the script
                env=self._environment(),
                start_new_session=True,
            )
            self.fd = os.pidfd_open(self._process.pid)
        except OSError as error:
            raise UsageError(f"the job's manager could not be started: {error}") from None

    def _environment(self) -> dict[str, str]:
        config = self._config
        even = self._world_size % self._nodes == 0
        found = environment(os.environ)
        found |= {
            "TASKD_JOB_ID": config.job.id,
            "TASKD_RUN_DIR": config.job.run_dir,
            "TASKD_MANAGER_PORT": str(config.manager.port),
            "TASKD_JOB_NODE_NUMS": str(self._nodes if even else self._world_size),
            "TASKD_JOB_PROC_PER_NODE": str(self._world_size // self._nodes if even else 1),
            "TASKD_RECOVER_PROCESS_RECOVER": "on" if config.recover.process_recover else "off",
            "TASKD_RECOVER_MAX_RESTARTS": str(config.recover.max_restarts),
        }
        for name in ("MINDX_TASK_ID", "PROCESS_RECOVER", "ELASTIC_PROCESS_RECOVER_ENABLE"):
            found.pop(name, None)
        return found

    def tend(self) -> None:
        """It has ended: start it again. It finds its journal, so nothing is lost."""
        code = self.reap()
        if self._starts < STARTS_MAX:
            _logger.warning("the job's manager ended with %d and is started again", code)
            try:
                self.start()
                return
            except UsageError as error:
                _logger.warning("%s", error)
        _logger.warning("the job goes on without a manager: faults are not repaired any more")

    def end(self, seconds: float) -> None:
        """Wait this long for it to end by itself, then tell it to; returns when it is gone."""
        if self._process is None:
            return
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        for wait_seconds, number in ((seconds, signal.SIGTERM), (5.0, signal.SIGKILL)):
            if poller.poll(wait_seconds * 1000):
                break
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
        self.reap()

    def reap(self) -> int:
        """The exit code of a manager that has ended, or is just ending."""
        assert self._process is not None
        code = self._process.wait()
        os.close(self.fd)
        self.fd, self._process = -1, None
        return code


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment for a process of taskd's own beside the training."""
    found = dict(environ)
    found.pop("LD_PRELOAD", None)  # preloaded profilers and allocators are meant for the training process
    return with_taskd(found)


def with_taskd(environ: dict[str, str]) -> dict[str, str]:
    """The environment, in which this very taskd is found from any folder."""
    import site

    root = str(Path(__file__).resolve().parents[2])
    path = environ.get("PYTHONPATH", "")
    if root not in (*site.getsitepackages(), site.getusersitepackages(), *path.split(os.pathsep)):
        environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [path])])
    return environ


def settings(run_id: str, port: int, max_restarts: int) -> Config:
    """The configuration of this job: the user's; by default it is named after the rendezvous and recovery is on."""
    loaded = configuration.load()
    given = {path for path, source in loaded.sources.items() if not source.startswith("default")}
    return configuration.load(
        job_id=None if "job.id" in given else _job_of(run_id, port),
        recover_process_recover=None if "recover.process_recover" in given else True,
        recover_max_restarts=max_restarts,
    )


def _job_of(run_id: str, port: int) -> str:
    name = run_id if run_id != "none" else f"static-{port}"
    return (
        "".join(c if c.isascii() and (c.isalnum() or c in "._:@+-") else "-" for c in name)[:64].lstrip(".:@+-")
        or "job"
    )
