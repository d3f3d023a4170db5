"""The job's manager as a child of the first node's launcher: started unless one is given, started again if it dies.

The manager takes the configured port. If another job has the default port and the user named none, it takes a free one.
It ends by itself with the job, and it always ends when its launcher ends. A job whose manager is not available still
trains, unwatched. A manager that hangs is ended, and then started again. This module does NOT speak with the manager:
the launcher's agent does.
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
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from taskd import config as configuration
from taskd import log
from taskd.config import Config
from taskd.core.budget import Budget
from taskd.core.limits import MS, SECOND
from taskd.errors import UsageError
from taskd.policy import load, parse, to_hand
from taskd.wire.pulse import Pulse

STARTS_MAX = 5
STARTS_WINDOW_NS = 600 * SECOND
"""At most STARTS_MAX starts within this time. The next start waits until the first of them is that long ago."""
PAUSE_NS = 500 * MS
HUNG_NS = 8 * SECOND
"""A manager whose loop has not made a turn for this long hangs. Ranks hold failed operations longer than this."""
BEGIN_NS = 300 * SECOND
"""How long its first turn may take: it may have a long journal to read."""
AWAY_NS = 5 * SECOND
"""A launcher that did not look for this long was itself suspended, and knows nothing about its manager."""
LOOK_SECONDS = 2.0
STARTING_SECONDS = 30.0
MEET_SECONDS = 60.0
"""How long a configured manager may take to be there. Then the first node's launcher starts one: a job that waits for
ever is worse than one with another manager."""
SAY_SECONDS = 5.0
_logger = log.get(__name__)


def is_given(config: Config) -> bool:
    """Whether the user has configured the manager's host: then no manager is started."""
    return not config.sources.get("manager.host", "default").startswith("default")


def find_or_start(config: Config, nodes: int, world_size: int) -> tuple[Config, ManagerProcess | None]:
    """Return the configuration with the job's manager, and the manager if it had to be started."""
    if is_given(config):
        if _is_missing_here(config):
            return config, _started(config, nodes, world_size)
        if _is_met(config):
            return config, None
    elif port := running(config):
        return at_port(config, port), None
    port, holder = take_port(config)
    config = at_port(config, port)
    return config, _started(config, nodes, world_size, holder)


def _started(config: Config, nodes: int, world_size: int, holder: socket.socket | None = None) -> ManagerProcess:
    manager = ManagerProcess(config, nodes, world_size, holder)
    manager.start()
    return manager


def _is_met(config: Config) -> bool:
    """Wait until the configured manager accepts connections. False: it did not in time."""
    place, begin, said = (config.manager.host, config.manager.port), time.monotonic(), False
    named = f"the manager at {place[0]}:{place[1]} ({config.sources['manager.host']})"
    while True:
        try:
            socket.create_connection(place, LOOK_SECONDS).close()
            return True
        except OSError as error:
            why = error.strerror or str(error)
        waited = time.monotonic() - begin
        if waited >= MEET_SECONDS:
            text = "%s was not there in %.0f s (%s): this launcher starts one in its place"
            _logger.warning(text, named, MEET_SECONDS, why)
            return False
        if waited >= SAY_SECONDS and not said:
            said = True
            _logger.warning("waiting for %s (%s), for %.0f s at most", named, why, MEET_SECONDS)
        time.sleep(0.2)  # nothing says when a port of another host opens


def _is_missing_here(config: Config) -> bool:
    """Whether the configured manager's host is this one, and nobody has its port: then the launcher starts it."""
    host = config.manager.host
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, config.manager.port))
        except OSError:
            return False  # another host, a name that is not known, or a port that is taken
    return not running(config)


def running(config: Config) -> int:
    """The port of this job's manager if one already runs on this host; 0: none does. One that is still starting is
    waited for."""
    _wait_while_it_starts(config)
    try:
        note = json.loads(Path(config.job.directory, "manager.json").read_text(encoding="utf-8"))
        os.kill(int(note["pid"]), 0)
        # A killed manager leaves its note behind. Its pid also exists until it is reaped. So try to connect.
        socket.create_connection((str(note["address"]), int(note["port"])), LOOK_SECONDS).close()
        return int(note["port"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _wait_while_it_starts(config: Config) -> None:
    """Wait until a manager that has the job's lock has written its note, or is gone."""
    folder, until = Path(config.job.directory), time.monotonic() + STARTING_SECONDS
    while not (folder / "manager.json").exists() and time.monotonic() < until:
        if not _is_locked(folder / "manager.lock"):
            return
        time.sleep(0.05)  # nothing says when a note appears


def _is_locked(path: Path) -> bool:
    """Whether a process has locked this file. To try the lock would keep a manager from it that starts just now."""
    try:
        number = path.stat().st_ino
        held = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeError):
        return False
    return any(" FLOCK " in line and f":{number} " in line for line in held)


def take_port(config: Config) -> tuple[int, socket.socket | None]:
    """Return the manager's port and a socket that reserves it. If the default port is taken, any free port is used.

    Until the socket is closed, no other launcher finds the port free. But the manager can listen there, also after a
    restart: the system allows a second socket on the port if both allow it and one of them does not listen.
    """
    address = config.manager.bind if config.manager.bind != "*" else "0.0.0.0"
    holder = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        holder.bind((address, config.manager.port))
    except OSError:
        if not config.sources.get("manager.port", "default").startswith("default"):
            holder.close()
            return config.manager.port, None  # the manager will report what is wrong with this port
        holder.bind((address, 0))
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not before `bind`, which must fail on a taken port
    return int(holder.getsockname()[1]), holder


def at_port(config: Config, port: int) -> Config:
    """The configuration with the manager on this host at this port."""
    manager = replace(config.manager, host="127.0.0.1", port=port)
    return replace(config, manager=manager, sources={**config.sources, "manager.host": "default"})


class ManagerProcess:
    """The manager as a child process. Call `start`, then `look` in each turn and `tend` whenever `fd` is readable, then
    `end`."""

    def __init__(self, config: Config, nodes: int, world_size: int, port_holder: socket.socket | None = None) -> None:
        """`port_holder` reserves the manager's port (take_port). `end` closes it. Raises UsageError if the policy file
        is wrong. It is read once, so that a manager that is started again has the same one."""
        self._policy = load(config.recover.policy) if config.recover.policy else None
        if self._policy is not None:
            parse(self._policy)
        self._config = config
        self._port_holder = port_holder
        self._nodes, self._world_size = nodes, world_size
        self._process: subprocess.Popen[bytes] | None = None
        self._budget = Budget(STARTS_MAX, STARTS_WINDOW_NS, PAUSE_NS)
        self._pulse = Pulse()
        self._began_before = False
        self._since_ns = self._looked_ns = 0  # since when a beat is expected; when `look` last checked for one
        self.fd = -1
        """Readable when the manager has ended; -1: there is none."""

    @property
    def pid(self) -> int:
        """The pid of its process; 0: there is none."""
        return self._process.pid if self._process is not None else 0

    @property
    def has_begun(self) -> bool:
        """Whether this manager process, or an earlier one, has reached its loop."""
        return self._began_before or self._pulse.last_ns() > 0

    def start(self) -> None:
        """Start the process; returns at once. Raises UsageError when the system cannot start it."""
        now = time.monotonic_ns()
        self._began_before = self.has_begun
        self._budget.take(now)
        self._since_ns = self._looked_ns = now
        self._pulse.close()
        self._pulse = Pulse()
        command = [sys.executable, "-m", "taskd.launch.child", str(os.getpid()), "module", "taskd.manager"]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=2,  # its output must not appear between the lines of the script's standard output
                env=self._environment() | self._pulse.environment,
                pass_fds=(self._pulse.fd,),
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
            "TASKD_MANAGER_HOST": config.manager.host,
            "TASKD_MANAGER_PORT": str(config.manager.port),
            "TASKD_JOB_NODE_NUMS": str(self._nodes if even else self._world_size),
            "TASKD_JOB_PROC_PER_NODE": str(self._world_size // self._nodes if even else 1),
            "TASKD_RECOVER_PROCESS_RECOVER": "on" if config.recover.process_recover else "off",
            "TASKD_RECOVER_MAX_RESTARTS": str(config.recover.max_restarts),
            "TASKD_RECOVER_HANG": config.recover.hang,
        }
        found |= to_hand(self._policy)
        for name in ("MINDX_TASK_ID", "PROCESS_RECOVER", "ELASTIC_PROCESS_RECOVER_ENABLE"):
            found.pop(name, None)
        return found

    def tend(self) -> None:
        """Start the manager again after it has ended. It finds its journal, so nothing is lost."""
        code = self.reap()
        now = time.monotonic_ns()
        wait_ns = self._budget.free_at(now) - now
        when = f", in {wait_ns / SECOND:.1f} s, for it has ended again and again" if wait_ns else ""
        _logger.warning("the job's manager ended with %d and is started again%s", code, when)
        self.look()

    def look(self) -> None:
        """Start the manager if a start is due; end it if it hangs."""
        now = time.monotonic_ns()
        if self._process is None:
            if self._budget.free_at(now) <= now:
                try:
                    self.start()
                except UsageError as error:
                    _logger.warning("%s", error)
            return
        if now - self._looked_ns > AWAY_NS:
            self._since_ns = now
        self._looked_ns = now
        beaten = self._pulse.last_ns()
        allowed_ns = HUNG_NS if beaten else BEGIN_NS
        silent_ns = now - max(beaten, self._since_ns)
        if silent_ns > allowed_ns:
            self._since_ns = now  # warn only once: the process may take a while to end
            _logger.warning(
                "the job's manager (process %d) has done nothing for %d s: it hangs or was stopped, and is ended",
                self.pid,
                silent_ns // SECOND,
            )
            self._process.kill()

    def end(self, seconds: float) -> None:
        """Wait this long for the manager to end by itself, then end it by signals; returns when it is gone."""
        if self._port_holder is not None:
            self._port_holder.close()
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
        """Reap a manager that has ended or is just ending; returns its exit code."""
        assert self._process is not None
        code = self._process.wait()
        os.close(self.fd)
        self.fd, self._process = -1, None
        return code


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment for one of taskd's own processes, which do not train."""
    found = dict(environ)
    found.pop("LD_PRELOAD", None)  # preloaded profilers and allocators are meant for the training process
    return with_taskd(found)


def with_taskd(environ: dict[str, str]) -> dict[str, str]:
    """The environment, extended so that this installation of taskd is found from any folder."""
    import site

    root = str(Path(__file__).resolve().parents[2])
    path = environ.get("PYTHONPATH", "")
    if root not in (*site.getsitepackages(), site.getusersitepackages(), *path.split(os.pathsep)):
        environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [path])])
    return environ


def job_settings(run_id: str, port: int, max_restarts: int) -> Config:
    """The configuration of this job. By default the job is named after the rendezvous, and recovery is on."""
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
