"""The end of a training process after its work is done. No thread of gloo makes it abort. If its interpreter
crashes all the same after the process has left in good order, the job does not fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from taskd import _native
from taskd.agent import deaths
from taskd.agent.deaths import Deaths
from taskd.agent.workers import Worker, Workers
from taskd.core.events import Gone
from taskd.worker import gloo_threads
from tests import verdicts
from tests.launched import ROOT, Launched
from tests.patience import PATIENCE_S

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1"]
LATE = """
import os, time
import torch, torch.distributed as dist
from taskd.api.taskd_worker_api import init_taskd_worker, start_taskd_worker

dist.init_process_group("gloo")
rank = dist.get_rank()
assert init_taskd_worker(rank) is True
start_taskd_worker()
kept = dist.group.WORLD  # as a DDP module keeps it: destroying the group does not end its threads
store = dist.distributed_c10d._get_default_store()
if rank == 1:
    store.wait(["late"])
future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
if rank == 0:
    # The thread that tells its waiters needs the interpreter once more, later than everything that follows here.
    future.then(lambda _: time.sleep(0.3))
    store.set("late", "")
future.wait()
os.write(1, f"done {rank}\\n".encode())
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("recover", ["off", "on"])
def test_a_thread_of_gloo_that_is_late_does_not_abort_the_process(
    tmp_path: Path, run_dir: Path, free_port: Callable[[], int], recover: str
) -> None:
    """There is no manager here. This does not change how a script ends."""
    (tmp_path / "late.py").write_text(LATE)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "PROCESS_RECOVER": recover,
        "TASKD_RUN_DIR": str(run_dir),
        "TASKD_JOB_ID": f"late-{os.getpid()}",
        "TASKD_MANAGER_HOST": "127.0.0.1",
        "TASKD_MANAGER_PORT": str(free_port()),
        "TASKD_WORKER_REGISTER_WAIT_MS": "100",
        "TASKD_AGENT_LINGER_MS": "100",
    }
    ended = subprocess.run(
        [*TORCHRUN, f"--master-port={free_port()}", "late.py"],
        env=environment,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
    )
    verdicts.exit_codes([ended.returncode], 0, ended.stdout)
    assert ended.stdout.count("done") == 2, ended.stdout


# ---- what the launcher makes of it --------------------------------------------------------------------------------

CRASH = """
import os, sys
import torch, torch.distributed as dist

class Crash:
    def __del__(self, end=os.abort): end()

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
os.write(1, f"done {dist.get_rank()}\\n".encode())
dist.destroy_process_group()
if os.environ["RANK"] == "1":
    if "early" in sys.argv:
        os.abort()
    sys.crash = Crash()  # goes with the very last modules
    if "code" in sys.argv:
        sys.exit(3)
"""
EXCUSED = "rank 1 had done its work and left in good order when SIGABRT ended its interpreter"


@pytest.fixture
def crash(tmp_path: Path, free_port: Callable[[], int]) -> Callable[..., Launched]:
    (tmp_path / "crash.py").write_text(CRASH)

    def start(*arguments: str, **variables: str) -> Launched:
        words = ["--nproc-per-node", "2", "--max-restarts", "0", "crash.py", *arguments]
        return Launched(tmp_path, free_port(), *words, env=variables, warm=True)

    return start


@pytest.mark.slow
@pytest.mark.parametrize("recover", ["off", "on"])
def test_a_crash_after_an_orderly_end_is_no_failure(crash: Callable[..., Launched], recover: str) -> None:
    with crash(PROCESS_RECOVER=recover) as launched:
        launched.end()
    assert sorted(launched.said("done")) == ["0", "1"]
    assert launched.text.count(EXCUSED) == 1, launched.text


@pytest.mark.slow
@pytest.mark.parametrize("how", ["early", "code"])
def test_a_crash_without_an_orderly_end_is_one(crash: Callable[..., Launched], how: str) -> None:
    """The crash came before the script had ended, or the exit code of the script says that it has failed."""
    with crash(how) as launched:
        launched.end(1)
    assert EXCUSED not in launched.text


# ---- what the agent says of an exit code --------------------------------------------------------------------------


class Ending:
    """A process that ends in its own way, the agent's record of it, and what the agent asks of the launcher."""

    def __init__(self, code: str, launcher: bool = False) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
        self.workers = Workers()
        found = self.workers.meet(self.process.pid)
        assert found is not None
        self.worker: Worker = found
        self.workers.seat(found, 3, 1)
        self.excused: list[int] = []
        self.deaths = Deaths(self.workers, *((lambda _pid: None, self.excused.append) if launcher else (None, None)))

    def end(self) -> None:
        """Let the process end; return when it is a zombie."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)

    def gone(self) -> Gone:
        self.deaths.ended(self.worker)
        (gone,) = self.deaths.found(2)
        self.process.wait()
        self.deaths.forget()
        self.workers.close()
        return gone


ABORT = "import os, sys; sys.stdin.read(); os.abort()"
GOOD = "import sys; sys.stdin.read()"


def test_a_code_that_is_not_proven_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ending = Ending(GOOD)
    ending.end()
    unproven = SimpleNamespace(state="exiting", exit_code=None)
    with monkeypatch.context() as patched:
        patched.setattr(_native, "exit_state", lambda _pid, _start: unproven)
        ending.deaths.doubt(ending.worker, 1)
        assert ending.deaths.found(1) == [] and ending.deaths.next_check_ns() is not None
    assert ending.gone() == Gone(3, 1, 0, "")


@pytest.mark.parametrize(("leaving", "code"), [(False, 255), (True, 0)])
def test_a_code_that_the_parent_took_is_said_to_be_taken(
    monkeypatch: pytest.MonkeyPatch, leaving: bool, code: int
) -> None:
    monkeypatch.setattr(deaths, "reaped_code", lambda _pidfd: None)  # before Linux 6.15
    ending = Ending(GOOD)
    ending.end()
    ending.process.wait()
    ending.worker.leaving = leaving
    assert ending.gone() == Gone(3, 1, code, "its exit code was taken by its parent before it could be read")


@pytest.mark.parametrize("launcher", [False, True])
def test_a_crash_of_one_that_has_left(launcher: bool) -> None:
    """Its last message is heard, although nothing has read it when its end is seen. A side agent says what it sees,
    because the launcher above it judges by itself."""
    ending = Ending(ABORT, launcher)
    ending.end()
    ending.deaths.hear = lambda worker: setattr(worker, "leaving", True)
    gone = ending.gone()
    assert gone.exit_code == (0 if launcher else -signal.SIGABRT)
    assert ("left in good order, and SIGABRT ended" in gone.reason) is launcher
    assert ending.excused == ([ending.process.pid] if launcher else [])


def test_one_that_goes_on_without_taskd_is_not_excused() -> None:
    """This process has also said that it leaves, but its script goes on and may fail."""
    ending = Ending(GOOD, launcher=True)
    ending.worker.leaving = True
    ending.deaths._report(ending.worker, 0, "it has left the job and goes on without taskd")
    assert ending.deaths.found(2)[0].exit_code == 0 and not ending.excused
    ending.end()
    ending.deaths.ended(ending.worker)
    ending.process.wait()
    ending.deaths.forget()
    ending.workers.close()


@pytest.mark.parametrize(("leaving", "code"), [(True, 0), (False, -signal.SIGKILL)])
def test_a_kill_of_one_that_has_left_is_none(leaving: bool, code: int) -> None:
    """Its script and its exit handlers had already ended."""
    ending = Ending("import os, sys; sys.stdin.read(); os.kill(os.getpid(), 9)", launcher=True)
    ending.end()
    ending.worker.leaving = leaving
    assert ending.gone().exit_code == code


# ---- which threads are waited for ---------------------------------------------------------------------------------


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], threading.Thread]:
    """Start a thread that counts as one of gloo's."""
    monkeypatch.setattr(gloo_threads, "NAME", "made-up")
    ready = threading.Event()

    def start(work: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("made-up")
            ready.set()
            work()

        thread = threading.Thread(target=run)
        thread.start()
        assert ready.wait(PATIENCE_S)
        return thread

    return start


def test_no_thread_of_gloo_is_no_wait() -> None:
    assert gloo_threads.wait(0)


def test_a_thread_that_works_is_waited_for_and_one_that_is_gone_is_not(named) -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            pass

    thread = named(work)
    assert not gloo_threads.wait(0.2)  # expires: it works on
    stop.set()
    thread.join()
    assert gloo_threads.wait(PATIENCE_S)  # the kernel removes the thread a moment after join()


def test_a_thread_that_waits_for_a_peer_is_left_alone(named) -> None:
    """It is like an operation that nobody waited for: its time limit is far longer than that of the wait."""
    over = threading.Event()
    thread = named(lambda: over.wait(PATIENCE_S))
    try:
        assert gloo_threads.wait(PATIENCE_S)
    finally:
        over.set()
        thread.join()
