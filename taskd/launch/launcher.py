"""One node's launcher: meets the others, starts manager and workers, is the node's agent, and ends as torchrun would.

It runs the agent's loop in its main thread, with a spawner, so that the manager's orders can start and end single
workers. None of its processes outlives it. If it dies, the system signals workers, standby and manager. If it ends in
any other way, it ends them itself.
It does NOT decide about repairs (the manager does). Without a manager, or with recovery switched off, the first worker
that fails ends the job, as under torchrun.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import socket
import sys
import time
import traceback
import uuid
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
from torch.distributed.elastic.rendezvous import RendezvousGracefulExitError
from torch.distributed.elastic.utils import macros
from torch.distributed.launcher.api import LaunchConfig

from taskd import _native, descriptors, log, policy
from taskd import config as configuration
from taskd.agent.loop import AgentLoop
from taskd.backup.heirs import Keepers
from taskd.backup.keeper import Keeper
from taskd.check.meet import LEAVES, check_seconds
from taskd.config import Config, effects
from taskd.core.effects import Spawn
from taskd.core.messages import Stop
from taskd.core.types import StopKind
from taskd.errors import TaskdError, UsageError
from taskd.launch import beginning, checking, handing, keepers, logs, terminated
from taskd.launch.manager import ManagerProcess, find_or_start, is_given, job_settings, running
from taskd.launch.options import complete, extend, take_up
from taskd.launch.ranks import ENDED, JOB, Ranks, learn_all, meet, with_address
from taskd.launch.standby import Standby
from taskd.launch.succession import Succession
from taskd.launch.workers import PROGRAM, Command, Workers
from taskd.torch_versions import shutdown_timeout_of
from taskd.wire import exchange, keys, leftovers, local

MANAGER_SECONDS = 30
"""How long the manager may take to tell all nodes that the job is over."""
TWICE_SECONDS = 1.0
"""A SIGTERM that comes so soon after the first is the same one."""
FILES = 90
"""Files and connections that a launcher has open besides those of its workers: libraries, rendezvous, standby, agent,
and the question to the manager after a SIGTERM."""
FILES_PER_WORKER = 14
"""The pipes, logs and records of a worker: enough for a dead worker and its replacement."""
NOT_SUPPORTED = ("TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_HEALTH_CHECK_PORT")
"""Services of torchrun's agent that this launcher does not offer."""
_logger = log.get(__name__)


class JobFailed(TaskdError):
    """The job fails, and the cause is not a worker of this node. Or it is the cause of torchrun's error, for its code.
    `exit_code`: this launcher's own."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def launch(arguments: Sequence[str] | Namespace, standby: Standby | None, called: bool = False) -> int:
    """Run the job, report its end in torchrun's own words, and return the exit code. `called`: a caller of torchrun's
    functions gets its errors instead."""
    try:
        return int((_launch if called else record(_launch))(arguments, standby) or 0)
    except (ChildFailedError, SignalException, TaskdError) as error:
        if called:
            raise
        return _told(error)


def _told(error: Exception) -> int:
    """Report why a job failed, and return the exit code."""
    if isinstance(error, ChildFailedError):
        # Print the root cause in torchrun's form, without the launcher's own frames above it.
        sys.stderr.write("".join(traceback.format_exception_only(type(error), error)))
        return error.__cause__.exit_code if isinstance(error.__cause__, JobFailed) else 1
    if isinstance(error, SignalException):
        _logger.error("the job was ended by %s", error.sigval.name)
    else:
        _logger.error("%s", error)
    return error.exit_code if isinstance(error, JobFailed) else 1


def _launch(arguments: Sequence[str] | Namespace, standby: Standby | None) -> int:
    """Run the job and return the exit code. Raises ChildFailedError, JobFailed or SignalException if it fails."""
    if isinstance(arguments, Namespace):
        parsed = complete(arguments, sys.argv[1:], os.environ)
    else:
        parsed = extend(torchrun.get_args_parser()).parse_args(list(arguments))
    _choose_rendezvous(parsed)
    if parsed.hang:
        os.environ["TASKD_RECOVER_HANG"] = parsed.hang
    if parsed.policy:
        policy.parse(policy.load(parsed.policy))
        os.environ["TASKD_RECOVER_POLICY"] = os.path.abspath(parsed.policy)
    given = configuration.load()
    explicit = parsed.max_restarts is not None
    parsed.max_restarts = int(parsed.max_restarts) if explicit else given.recover.max_restarts
    if not given.enabled:
        _logger.warning("TASKD_PROCESS_ENABLE is off: this is plain torchrun")
        if not explicit:
            parsed.max_restarts = 0
        if standby is not None:
            standby.close()
        torchrun.run(parsed)
        return 0
    wanted, entrypoint, words = torchrun.config_from_args(parsed)
    wanted = with_address(wanted)
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = wanted.signals_to_handle
    for name in NOT_SUPPORTED:
        if os.environ.get(name):
            _logger.warning("%s is set, but taskd-run has no part of that kind: the variable is ignored", name)
    check_seconds(parsed.check_timeout)
    wishes = checking.Wishes(parsed.exclude_straggler, parsed.check_timeout) if parsed.network_check else None
    command = _command(parsed)
    if command.kind == PROGRAM:
        _logger.warning("with --no-python taskd only watches: a program that is no Python script cannot be repaired")
    _allow_files(wanted.nproc_per_node)
    _native.set_child_subreaper()  # this process adopts the standby's children
    signals = Signals(wanted.signals_to_handle)
    try:
        try:
            found = checking.check(wanted, wishes) if wishes is not None else checking.Checked(wanted)
            if found.leaves is not None:
                raise JobFailed(f"{found.leaves.line} ({found.leaves.reason})", LEAVES)
            wanted = found.config
            ranks = meet(wanted, entrypoint, words, found.backend)
        except RendezvousGracefulExitError:
            _logger.info("the job has ended while this node waited to be a spare")
            return 0
        with beginning.told(ranks):
            launcher = Launcher(wanted, command, ranks, standby if command.kind != PROGRAM else None, signals)
        return launcher.run()
    finally:
        logs.put_away(wanted, parsed.log_dir)
        signals.restore()


def _allow_files(workers: int) -> None:
    """Raise the limit of open files now, and not when a worker must be replaced. Raises UsageError."""
    needed = FILES + FILES_PER_WORKER * workers
    if (most := descriptors.allow(needed)) < needed:
        raise UsageError(
            f"only {most} files may be open (ulimit -n), and a launcher of {workers} workers that are to be replaced "
            f"needs {needed}: raise the hard limit"
        )


def _choose_rendezvous(parsed: Namespace) -> None:
    """Choose the rendezvous as torchrun does before it reads the rest: a single node needs no address."""
    if parsed.network_check:
        take_up(parsed, os.environ)
    alone = parsed.rdzv_backend == "static" and not parsed.rdzv_endpoint and parsed.master_port is None
    if parsed.standalone or (alone and torchrun.parse_min_max_nnodes(parsed.nnodes)[1] == 1):
        parsed.rdzv_backend, parsed.rdzv_endpoint, parsed.rdzv_id = "c10d", "localhost:0", str(uuid.uuid4())
    if parsed.master_port is None:
        parsed.master_port = 29500


def _command(parsed: Namespace) -> Command:
    kind = "run_path" if parsed.run_path else PROGRAM if parsed.no_python else "module" if parsed.module else "script"
    interpreter = os.getenv("PYTHON_EXEC", sys.executable)
    # torch.distributed.launch still gives each worker its local rank as an argument, unless it is told otherwise.
    first = () if torchrun.get_use_env(parsed) else (f"--local-rank={macros.local_rank}",)
    return Command(kind, parsed.training_script, (*first, *parsed.training_script_args), interpreter)


class Signals:
    """The signals that end a job. They raise an exception as under torchrun, or stop the agent's loop once it runs."""

    def __init__(self, names: str) -> None:
        self.received: signal.Signals | None = None
        self.tell: Callable[[str], None] | None = None
        self.prepare: Callable[[], None] | None = None
        """Called at the first SIGTERM instead. It ends the job later, or has it ended (terminated.py)."""
        self._prepared_at = -TWICE_SECONDS
        self._before: dict[int, Any] = {}
        for name in names.split(","):
            number = getattr(signal, name.strip(), None)
            if number is None:
                _logger.warning("%s in --signals-to-handle is no signal and is ignored", name)
                continue
            self._before[number] = signal.signal(number, self._take)

    def restore(self) -> None:
        """Restore the earlier handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def exception(self) -> SignalException:
        """The exception with which torchrun ends."""
        assert self.received is not None
        return SignalException(f"Process {os.getpid()} got signal: {self.received!r}", self.received)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGTERM and self.prepare is not None:
            prepare, self.prepare, self._prepared_at = self.prepare, None, time.monotonic()
            prepare()
            return
        if number == signal.SIGTERM and time.monotonic() - self._prepared_at < TWICE_SECONDS:
            return  # `timeout` signals the process, and then its group
        self.received = signal.Signals(number)
        if self.tell is None:
            raise self.exception()
        self.tell(f"its launcher got {self.received.name}")


class Launcher:
    """One run on this node; `run` returns when the job has ended well."""

    def __init__(
        self, config: LaunchConfig, command: Command, ranks: Ranks, standby: Standby | None, signals: Signals
    ) -> None:
        self.config, self.command, self.ranks, self.signals = config, command, ranks, signals
        self.standbys: Succession | None = None
        self.manager: ManagerProcess | None = None
        self.keeper: Keeper | None = None
        self.handing: handing.Handing | None = None
        self.beginnings: beginning.Beginnings | None = None
        self._made_key = False
        self.run_name = ""
        """The name of this run only: a manager may outlive it and see the next run of the same job."""
        self.settings = self._meet_manager()
        self.node = self._name()
        recover = self.settings.recover.process_recover
        if not recover:
            _logger.warning("PROCESS_RECOVER is off: this job runs unguarded, the first worker that fails ends it")
        environments = self._environments()
        self.logs = logs.Logs(config, environments)
        self.workers = Workers(command, ranks, self.logs, standby, self.settings.job.id, self.node, guarded=recover)
        self.workers.run_name = self.run_name
        if standby is not None:
            self.standbys = Succession(standby, self.workers.fork_from)
        self.workers.on_exit = self._worker_ended
        self._trouble = ""
        self._loop: AgentLoop | None = None

    def run(self) -> int:
        """Start everything, run as the node's agent until the job is over, end everything. Return the exit code."""
        try:
            key = keys.Key(bytes.fromhex(self.settings.manager.key), "the first node")
            self.handing = handing.begin(self.ranks, self._notice, key, self.config.max_nodes)
            with beginning.told(self.ranks):
                loop = self._open(key)
            self.beginnings = beginning.listen(self.ranks, self._end_for)
            code = self._serve(loop)
        finally:
            self._end_all()
        if self.signals.received is not None:
            raise self.signals.exception()
        return self._judge(code, loop)

    # ---- the manager ------------------------------------------------------------------------------------------

    def _meet_manager(self) -> Config:
        """The job's settings. The first node's launcher starts the manager and tells the others where it is."""
        ranks, board = self.ranks, self.ranks.board
        run_id = ranks.spec.rdzv_handler.get_run_id()
        if ranks.group_rank != 0:
            return self._learn(board.read(JOB))
        self.run_name = secrets.token_hex(4)
        settings = job_settings(run_id, ranks.master_port, self.config.max_restarts)
        effects.say(settings)
        self._made_key = keys.find(settings) is None
        key = keys.load_or_create(settings)
        self._notice = exchange.notice_of(key, given=keys.is_given(settings))
        given = is_given(settings)
        settings, self.manager = find_or_start(settings, ranks.group_world_size, ranks.world_size)
        board.tell(
            JOB,
            {
                "job": settings.job.id,
                "run": self.run_name,
                "host": settings.manager.host if is_given(settings) else ranks.master_addr,
                "port": settings.manager.port,
                "instead": given and not is_given(settings),
                "key": self._notice.text(),
                "recover": settings.recover.process_recover,
                "master": [ranks.master_addr, ranks.master_port],
                "world_size": ranks.world_size,
                "group_world_size": ranks.group_world_size,
            },
        )
        return replace(settings, manager=replace(settings.manager, key=key.secret.hex()))

    def _learn(self, told: dict[str, Any]) -> Config:
        ranks = self.ranks
        self.run_name = told["run"]
        if ranks.spare:
            ranks.master_addr, ranks.master_port = told["master"]
            ranks.group_world_size, ranks.told_world_size = told["group_world_size"], told["world_size"]
            learn_all(ranks)
        settings = configuration.load(job_id=told["job"], recover_process_recover=told["recover"])
        manager = settings.manager
        if told["instead"] or not is_given(settings):
            manager = replace(manager, host=told["host"], port=told["port"])
        self._notice = handing.notice_in(told.get("key"))
        key = handing.learn(ranks.board, self._notice, settings)
        return replace(settings, manager=replace(manager, key=key.secret.hex()))

    def _find_keepers(self, key: keys.Key) -> Keepers | None:
        """Open this node's keeper and find the keepers for its own records; None: no rank survives its node."""
        ranks, settings = self.ranks, self.settings
        if ranks.group_world_size < 2 or not settings.recover.process_recover or self.command.kind == PROGRAM:
            return None
        self.keeper = keepers.open_keeper(ranks, settings.job.id, self.node, settings.manager.bind, key)
        known = keepers.learn(ranks)
        own = keepers.own_places(ranks, known)
        self.workers.copies, self.workers.copies_key = own, key.copies
        return Keepers(key, own, lambda rank: keepers.places_of(ranks, known, rank))

    # ---- starting ---------------------------------------------------------------------------------------------

    def _name(self) -> str:
        given = self.settings.job
        if not self.settings.sources.get("job.node", "default").startswith("default"):
            return given.node
        if self.ranks.spare:
            return f"spare-{self.ranks.board.next('spares')}"
        return f"node-{self.ranks.group_rank}"

    def _environments(self) -> dict[int, dict[str, str]]:
        """The variables from which log files get their names, by local rank."""
        run_id = self.ranks.spec.rdzv_handler.get_run_id()
        found = {
            place: {"TORCHELASTIC_RUN_ID": run_id, "TORCHELASTIC_RESTART_COUNT": "0"}
            for place in range(self.config.nproc_per_node)
        }
        for rank in self.ranks.places:
            found[rank.local_rank]["RANK"] = str(rank.global_rank)
        return found

    def _open(self, key: keys.Key) -> AgentLoop:
        name = local.address(self.settings.job.id, self.node)
        listener: socket.socket | None = local.listen(name)
        if listener is None:
            raise UsageError(
                f"node {self.node} of job {self.settings.job.id} has an agent on this host already: end it, or give "
                "this node another name by TASKD_NODE"
            )
        loop = AgentLoop(
            self.settings,
            self.node,
            listener,
            self.workers,
            slots=self.config.nproc_per_node,
            on_stop=self._told_to_stop,
            keepers=self._find_keepers(key),
        )
        self._loop = loop
        self.workers.records = loop.workers.records.of
        self.workers.causes, self.workers.raised = loop.core.crew.causes, loop.core.crew.raised
        loop.others = self._others
        if self.standbys is not None:
            loop.pages.on_compiles = self.standbys.want
        self.signals.tell = loop.stop
        if self.settings.recover.process_recover and self.settings.recover.term_wait_ms:
            told = terminated.Terminated(self.settings, self.node, self.run_name, self._end_after_sigterm)
            self.signals.prepare = told.begin
        return loop

    def _serve(self, loop: AgentLoop) -> int:
        if self.standbys is not None:
            self._prepare_standby(self.standbys.current, wait=not self.ranks.spare)
        self.logs.start()
        if self.signals.received is not None:
            return 1
        loop.start([Spawn(place.global_rank, 1, 0, newcomer=False) for place in self.ranks.places])
        if self.ranks.spare:
            _logger.warning("node %s is a spare: it waits for ranks that lose their node", self.node)
        return loop.run()

    def _prepare_standby(self, standby: Standby, wait: bool) -> None:
        """Wait for the standby. If its guessed environment differs from the workers', start it again first.

        A spare does not wait: ranks may have lost their node, and are given up if the manager hears of no spare."""
        places = self.ranks.places
        wanted = self.workers.environment(places[0]) if places else {**standby.environment, **os.environ}
        different = standby.differs(wanted)
        if different:
            _logger.info("the standby is started anew, the workers have another %s", ", ".join(different))
            standby.close()
            standby.environment = wanted
            standby.start()
        if wait:
            standby.wait()

    def _others(self) -> Mapping[int, Callable[[], None]]:
        found: dict[int, Callable[[], None]] = {}
        if self.manager is not None:
            self.manager.look()
            if self.manager.fd >= 0:
                found[self.manager.fd] = self._tend_manager
        if self.standbys is not None:
            found.update(self.standbys.sources())
        return found

    def _tend_manager(self) -> None:
        """Start a dead manager again. If it never began to work, end the job: the cause must be corrected first."""
        assert self.manager is not None and self._loop is not None
        if self.manager.has_begun:
            self.manager.tend()
            return
        self.manager.end(0)
        self.manager = None
        if running(self.settings) == self.settings.manager.port:
            _logger.info("another manager of this job was quicker, and is used")
            return
        self._end_for("the job has no manager: it could not start, and said why")

    def _end_for(self, trouble: str) -> None:
        assert self._loop is not None
        self._trouble = trouble
        self._loop.stop(trouble)

    # ---- ending -----------------------------------------------------------------------------------------------

    def _end_after_sigterm(self) -> None:
        """End because of a SIGTERM of before, unless the job ends by itself meanwhile. Any thread may call this."""
        loop = self._loop
        if self.signals.received is None and loop is not None and loop.left is None and not loop.core.post.stopping:
            self.signals.received = signal.SIGTERM
            loop.stop("its launcher got SIGTERM")

    def _told_to_stop(self, stop: Stop) -> None:
        if stop.exit_code:
            self.workers.signal_all(signal.SIGTERM)

    def _worker_ended(self, rank: int, code: int) -> None:
        loop = self._loop
        alone = not self.settings.recover.process_recover
        stopping = None if loop is None else loop.core.post.stopping
        if code and alone and loop is not None and (stopping is None or not stopping.exit_code):
            loop.stop(f"rank {rank} has failed, and nobody repairs it")

    def _end_all(self) -> None:
        if self.handing is not None:
            self.handing.close()
        if self.beginnings is not None:
            self.beginnings.close()
        number = self.signals.received or signal.SIGTERM
        self.signals.prepare = None
        self.signals.tell = lambda _reason: self.workers.signal_all(signal.SIGKILL)
        if self.workers.living:
            self.workers.signal_all(number)
            within = shutdown_timeout_of(self.config)
            if not self._wait_for_workers(within):
                self.workers.signal_all(signal.SIGKILL)
                self._wait_for_workers(within or 5)
        self.logs.stop()
        if self.standbys is not None:
            self.standbys.close()
        if self.keeper is not None:
            self.keeper.stop()
        over = self._loop is not None and self._loop.left is not None
        if self.manager is not None:
            self.manager.end(MANAGER_SECONDS if over else 0)
            if over:
                leftovers.forget_run(Path(self.settings.job.directory), self._made_key)
        if self.ranks.group_rank == 0 and self.signals.received is None:
            self.ranks.board.try_to_tell(ENDED, True)
            self.ranks.handler.shutdown()

    def _wait_for_workers(self, seconds: float) -> bool:
        """Wait for all workers; returns whether they have ended within this time."""
        ends = time.monotonic() + seconds
        poller = select.poll()
        opened = {os.pidfd_open(pid): pid for pid in self.workers.living}
        try:
            for fd in opened:
                poller.register(fd, select.POLLIN)
            while self.workers.living:
                left_ms = (ends - time.monotonic()) * 1000
                ready = poller.poll(left_ms) if left_ms > 0 else []
                if not ready:
                    return False
                for fd, _ in ready:
                    self.workers.reap(opened[fd])
                    poller.unregister(fd)
            return True
        finally:
            for fd in opened:
                os.close(fd)

    def _judge(self, code: int, loop: AgentLoop) -> int:
        """Return the exit code if the job has ended well on this node, or was stopped by an operator. Else raise its
        failure."""
        if loop.left is not None and loop.left.kind is StopKind.ASKED:
            _logger.warning("the job ends: %s", loop.left.reason)
            return code
        if loop.left is not None and not code:
            return code
        reason = loop.left.reason if loop.left is not None else ""
        # torchrun ends with 1 whatever a worker ended with. Who writes a policy by exit codes wants to see them.
        text = f"the job ends: {self._trouble or reason or f'its exit code is {code}'}"
        failed = JobFailed(text, (code or 1) if self.settings.recover.policy else 1)
        if not self.workers.failures:
            raise failed
        if reason:
            _logger.error("the job ends: %s", reason)
        raise ChildFailedError(self.command.target, self.workers.causes_first()) from failed
