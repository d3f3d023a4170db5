"""Starts, ends and reaps the workers of one node: the launcher's half of the agent.

A worker is forked from the standby, or started cold if that is not possible. The request that describes it is the same.
A replacement gets the number of the rank that it replaces, the environment of that rank's first start and its log
files. The same environment makes its set-up run in the same way. As a newcomer it also gets the memory files that the
rank's previous life has left behind. Exit codes are kept as failures in torch's own form, so that the end of a job
reads like torchrun's.
It does NOT decide which workers are started or ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.utils import macros
from torch.numa.binding import _maybe_wrap_command_args_with_numa_binding

from taskd import _native, log
from taskd.backup.copies import Place
from taskd.core.effects import Spawn
from taskd.core.words import exit_words
from taskd.errors import BackendError
from taskd.launch.logs import Logs
from taskd.launch.manager import with_taskd
from taskd.launch.ranks import RESTARTS, RankPlace, Ranks, environment_of
from taskd.launch.standby import NotReady, Standby

PROGRAM = "program"
_logger = log.get(__name__)


@dataclass(frozen=True)
class Command:
    """What a worker runs: a script, a module, a path for torch's run_path, or any program."""

    kind: str
    target: str
    arguments: tuple[str, ...]
    interpreter: str


@dataclass
class Child:
    """One worker process that was started here."""

    rank: int
    local_rank: int
    start_time: int
    started_cold: subprocess.Popen[bytes] | None
    code: int | None = None
    told_to_end: bool = False  # its end does not count as its own failure
    done: bool = False  # it has left in good order, so a signal that ends it now is no failure, either


class Workers:
    """The Spawner of a launcher's AgentLoop."""

    def __init__(
        self, command: Command, ranks: Ranks, logs: Logs, standby: Standby | None, job: str, node: str, guarded: bool
    ) -> None:
        self.failures: dict[int, ProcessFailure] = {}
        """The failures of ranks whose last life ended badly and by itself, in the order of their ends."""
        self.on_exit: Callable[[int, int], None] = lambda _rank, _code: None
        """Called with the rank and the exit code of each worker that has ended."""
        self.causes: Callable[[], Sequence[int]] = lambda: ()
        """The ranks of this node that have failed, in order of time, without those that a failed collective ended."""
        self.raised: Callable[[int], bool] = lambda _rank: False
        """Whether this rank has reported that an exception of its own is ending it."""
        self.records: Callable[[int], Sequence[int]] = lambda _rank: ()
        """Descriptors of the memory files that this rank's previous life has left here."""
        self.copies: Sequence[Place] = ()
        """The keepers to which workers send copies of their records, in the order in which they try."""
        self.copies_key = b""
        self.run_name = ""
        self._command, self._ranks, self._logs, self._standby = command, ranks, logs, standby
        self._job, self._node, self._guarded = job, node, guarded
        self._places = {place.global_rank: place for place in ranks.places}
        self._children: dict[int, Child] = {}
        self._newest: dict[int, int] = {}  # the last process of each rank
        self._buried: dict[int, int] = {}  # the rank of each group of processes in which orphans may still be dying
        self._restarts = 0
        self._epoch = -1 if ranks.spare else 0  # the epoch in which all ranks were last started together

    # ---- for the agent's loop ---------------------------------------------------------------------------------

    def prepared(self) -> bool:
        """Whether a worker would not be started sooner by waiting for the standby."""
        return self._standby is None or not self._standby.awaited

    def spawn(self, seat: Spawn) -> int:
        """Start a worker for this seat; returns its pid. Raises BackendError."""
        try:
            place = self._place_of(seat.rank)
            self._count_restarts(seat)
            environment = self.environment(place)
            again = seat.incarnation > 1
            self._logs.prepare(place.local_rank, environment, again)
            streams = self._logs.open(place.local_rank, again)
            try:
                pid, process = self._start(seat, place, environment, streams)
            finally:
                for fd in streams.values():
                    os.close(fd)
        except (OSError, ValueError) as error:
            raise BackendError(str(error)) from None
        self._children[pid] = Child(seat.rank, place.local_rank, _native.process_start_time(pid), process)
        self._newest[seat.rank] = pid
        self.failures.pop(seat.rank, None)
        return pid

    def end(self, rank: int, pid: int) -> None:
        """End this worker and the processes that it has started: they are one process group."""
        _signal(pid, signal.SIGKILL)

    def excuse(self, pid: int) -> None:
        """Note that this child has left in good order. If a signal ends its interpreter now, that is no failure."""
        child = self._children.get(pid)
        if child is not None:
            child.done = True

    def reap(self, pid: int) -> int | None:
        """The exit code of a child that has ended; None while it lives, or if this pid is no child."""
        self._bury()
        child = self._children.get(pid)
        if child is None or child.code is not None:
            return None if child is None else child.code
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        counts_as_done = child.done and code < 0
        if code and not counts_as_done:  # the pid cannot be reused before the child is reaped
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if counts_as_done:
            _logger.warning(
                "rank %d had done its work and left in good order when %s ended its interpreter, which was being "
                "taken down: it counts as done",
                child.rank,
                exit_words(code),
            )
            code = 0
        child.code = code
        if child.started_cold is not None:
            child.started_cold.returncode = code
        self._buried[pid] = child.rank
        if self._newest[child.rank] == pid:  # else another process has its rank already, so this is no failure
            raised = child.told_to_end and self.raised(child.rank)  # an exception ends it anyway: Python's code is 1
            if code and (raised or not child.told_to_end):
                self.failures[child.rank] = ProcessFailure(
                    child.local_rank, pid, 1 if raised else code, self._logs.error_file(child.local_rank)
                )
            self.on_exit(child.rank, code)
        return code

    def fork_from(self, standby: Standby) -> None:
        """Fork workers from this standby from now on."""
        self._standby = standby

    # ---- for the launcher -------------------------------------------------------------------------------------

    def causes_first(self) -> dict[int, ProcessFailure]:
        """The failures, with the root causes first.

        torch takes the failure with the earliest time as the root cause. It counts in whole seconds and takes the time
        at which the process ended. But the rank that fails first is often the last one to end."""
        ranks = [rank for rank in self.causes() if rank in self.failures]
        ordered = {rank: self.failures[rank] for rank in [*ranks, *self.failures]}
        if ranks:
            ordered[ranks[0]].timestamp = min(failure.timestamp for failure in ordered.values())
        return ordered

    @property
    def living(self) -> list[int]:
        """The pids of children that have not been reaped."""
        return [pid for pid, child in self._children.items() if child.code is None]

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to every worker that runs, and to the processes that it has started.

        A worker that is already exiting has ended by itself, even if that is seen only later. If it has failed, `reap`
        ends the processes that it has started. Processes that outlive a rank in good order are left alone, as under
        torchrun.
        """
        for pid, child in self._children.items():
            if child.code is None and _native.exit_state(pid, child.start_time).state == "alive":
                child.told_to_end = True
                _signal(pid, number)

    def environment(self, place: RankPlace) -> dict[str, str]:
        """All environment variables of a worker at this place."""
        ranks = self._ranks
        group_rank, group_world_size, _, _ = ranks.rows[place.global_rank]
        master = (ranks.master_addr, ranks.master_port)
        own = environment_of(ranks.spec, place, group_rank, group_world_size, master, self._restarts)
        return with_taskd({**os.environ, **own})

    def _bury(self) -> None:
        """Reap the orphans of dead workers, which this process has inherited. Log those that ended with their rank."""
        for group, rank in list(self._buried.items()):
            try:
                while (orphan := os.waitid(os.P_PGID, group, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                    name = _name_of(orphan.si_pid)
                    os.waitpid(orphan.si_pid, 0)
                    killed = orphan.si_code == os.CLD_KILLED and orphan.si_status == signal.SIGKILL
                    if killed and not name.startswith(("python", "pt_")):
                        _logger.warning("%s (process %d) was ended with rank %d", name, orphan.si_pid, rank)
            except ChildProcessError:
                self._buried.pop(group)

    # ---- starting ---------------------------------------------------------------------------------------------

    def _place_of(self, rank: int) -> RankPlace:
        """This rank's place on this node; a rank of a lost node gets the lowest free place."""
        found = self._places.get(rank)
        if found is not None:
            return found
        row = self._ranks.rows.get(rank)
        if row is None:
            raise ValueError("its place in the job is not known on this node")
        taken = {child.local_rank for child in self._children.values() if child.code is None}
        free = [slot for slot in range(self._ranks.spec.local_world_size) if slot not in taken]
        if not free:
            raise ValueError("this node has no place left")
        self._places[rank] = RankPlace(free[0], rank, row[2], self._ranks.world_size, row[3])
        return self._places[rank]

    def _count_restarts(self, seat: Spawn) -> None:
        """Update the number of times that all ranks were started again together. It is the same on every node."""
        if seat.epoch == self._epoch or (seat.newcomer and self._epoch >= 0):
            return
        board = self._ranks.board
        epoch, restarts = 0, self._restarts
        if self._epoch < 0:
            epoch, restarts = board.look(RESTARTS) or (epoch, restarts)
        if not seat.newcomer and seat.epoch > epoch:
            epoch, restarts = seat.epoch, restarts + 1
            board.try_to_tell(RESTARTS, [epoch, restarts])
        self._epoch, self._restarts = epoch, restarts

    def _start(
        self, seat: Spawn, place: RankPlace, environment: dict[str, str], streams: dict[str, int]
    ) -> tuple[int, subprocess.Popen[bytes] | None]:
        arguments = macros.substitute(list(self._command.arguments), str(place.local_rank))
        if self._command.kind == PROGRAM:
            command = [sys.executable, "-m", "taskd.launch.child", str(os.getpid()), PROGRAM]
            return self._popen([*command, self._command.target, *arguments], place, environment, streams, ())
        named = dict(streams)
        kept = list(self.records(seat.rank)) if seat.newcomer else []
        named.update(zip(("record", "setup", "shards"), kept, strict=False))
        request = self._request(seat, place, environment, arguments, named)
        descriptors = [request, *named.values()]
        try:
            if self._standby is not None and self._ranks.spec.numa_options is None:
                try:
                    return self._standby.fork(environment, descriptors), None
                except NotReady as why:
                    _logger.warning("rank %d is started without the standby, which takes seconds: %s", seat.rank, why)
            numbers = ",".join(map(str, descriptors))
            command = [self._command.interpreter, "-u", "-m", "taskd.worker.boot", numbers]
            return self._popen(command, place, environment, {}, descriptors)
        finally:
            os.close(request)

    def _popen(
        self,
        command: list[str],
        place: RankPlace,
        environment: dict[str, str],
        streams: dict[str, int],
        descriptors: Sequence[int],
    ) -> tuple[int, subprocess.Popen[bytes]]:
        wrapped = _maybe_wrap_command_args_with_numa_binding(
            tuple(command), gpu_index=place.local_rank, numa_options=self._ranks.spec.numa_options
        )
        process = subprocess.Popen(
            wrapped,
            env=environment,
            stdout=streams.get("stdout"),
            stderr=streams.get("stderr"),
            pass_fds=descriptors,
            start_new_session=True,
        )
        return process.pid, process

    def _request(
        self,
        seat: Spawn,
        place: RankPlace,
        environment: dict[str, str],
        arguments: list[str],
        named: dict[str, int],
    ) -> int:
        """Write what boot needs to know to a memory file; the caller closes its descriptor."""
        request = {
            "environment": environment,
            "kind": self._command.kind,
            "target": self._command.target,
            "arguments": arguments,
            "parent": os.getpid(),
            "descriptors": {name: at for at, name in enumerate(named, start=1)},
            "guarded": self._guarded,
            "job": self._job,
            "node": self._node,
            "rank": seat.rank,
            "world_size": place.world_size,
            "local_rank": place.local_rank,
            "incarnation": seat.incarnation,
            "epoch": seat.epoch,
            "newcomer": seat.newcomer,
            "run": self.run_name,
            "generation": self._restarts,
            "copies": [[place.host, place.records_port] for place in self.copies],
            "copies_key": self.copies_key.hex(),
        }
        descriptor = os.memfd_create("taskd-request", os.MFD_CLOEXEC)
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(json.dumps(request).encode())
        return descriptor


def _name_of(pid: int) -> str:
    """The name that `ps` shows for a process that has ended and is not reaped yet."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "a process"


def _signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to this worker, and to the processes that it has started."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:  # it has not yet become a group of its own
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
