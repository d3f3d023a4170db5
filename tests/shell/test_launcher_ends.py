"""The ends of launchers, workers and standbys: no process stays behind, and the job ends or goes on as it should.

Every test uses the fixture nothing_left_behind, which fails the test if a process of the job lives on.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import PrefixStore, TCPStore

from taskd.launch.ranks import ENDED
from tests.launched import ROOT, Launched, children, wait_until
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.slow

Start = Callable[..., Any]
WAIT = """
import os, signal, sys, time
def ended(number, frame):
    os.write(1, f"told {os.environ['RANK']} {number}\\n".encode())
    sys.exit(0)
if "handler" in sys.argv:
    signal.signal(signal.SIGTERM, ended)
if "child" in sys.argv and os.fork() == 0:
    time.sleep(300)
os.write(1, f"up {os.environ['RANK']} {os.getpid()}\\n".encode())
time.sleep(300)
"""
BEGAN = """
import atexit, os, sys, time
from torch.distributed import DistBackendError
from taskd.worker import presence
pid, raised = sys.argv[1:]
def outlive():
    open(raised, "w").close()
    while os.path.exists(f"/proc/{open(pid).read()}"):
        time.sleep(0.01)
if os.environ["RANK"] == "1":
    while not os.path.exists(pid):
        time.sleep(0.01)
    assert presence.current().wait(PATIENCE), "its launcher hears it"
    atexit.register(outlive)
    raise ValueError("no such file")
with open(pid + ".new", "w") as file:
    file.write(str(os.getpid()))
os.rename(pid + ".new", pid)
while not os.path.exists(raised):
    time.sleep(0.01)
raise DistBackendError("rank 1 is gone")
"""
"""Rank 1 fails first, and its process is the last one to end. Rank 0 fails because rank 1 has failed."""
TALKS = """
import os, signal, torch, torch.distributed as dist, taskd
dist.init_process_group("gloo")
if dist.get_rank():
    signal.signal(signal.SIGINT, lambda *_: None)
model = torch.nn.Linear(2, 2)
session = taskd.session()
session.register(model=model)
try:
    for step in session.steps(range(1 << 30)):
        with step:
            dist.all_reduce(torch.ones(1 << 16))
        if step.number == 10:
            os.write(1, f"up {os.environ['RANK']} {os.getpid()}\\n".encode())
except BaseException as error:
    os.write(1, f"ended {os.environ['RANK']} {type(error).__name__}\\n".encode())
    os._exit(1)
"""
LIVES = """
import os, sys, time
marks = sys.argv[1]
life = len([name for name in os.listdir(marks) if name.startswith(os.environ["RANK"])])
open(f"{marks}/{os.environ['RANK']}-{life}", "w").close()
os.write(1, f"life {os.environ['RANK']} {life} {os.environ['TORCHELASTIC_RESTART_COUNT']}\\n".encode())
import torch, torch.distributed as dist
dist.init_process_group("gloo")
go, step = torch.zeros(1), 0
while step < 5 or not go.item():
    step += 1
    go = torch.tensor([float("hold" not in sys.argv or os.path.exists("go"))])
    dist.all_reduce(go)
    if step == 2 and life < int(sys.argv[2]) and os.environ["RANK"] == "1":
        os._exit(7)
    time.sleep(0.05)
os.write(1, f"done {os.environ['RANK']}\\n".encode())
dist.destroy_process_group()
"""


@pytest.fixture
def start(tmp_path: Path, free_port: Callable[[], int]) -> Start:
    """Run taskd-run with these words in the test's folder, which holds wait.py, lives.py and talks.py."""
    (tmp_path / "wait.py").write_text(WAIT)
    (tmp_path / "lives.py").write_text(LIVES)
    (tmp_path / "talks.py").write_text(TALKS)
    (tmp_path / "marks").mkdir()

    @contextmanager
    def run(*words: str, nodes: Any = ((),), warm: bool = True, **variables: str | None) -> Iterator[Launched]:
        with Launched(tmp_path, free_port(), *words, nodes=nodes, env=variables, warm=warm) as launched:
            yield launched

    return run


def workers_up(launched: Launched, count: int) -> list[int]:
    wait_until(lambda: len(launched.said("up")) == count, "all workers up")
    return [int(line.split()[1]) for line in launched.said("up")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_reaches_the_workers(start: Start, number: signal.Signals) -> None:
    more = ["handler"] if number == signal.SIGTERM else []
    with start("--nproc-per-node", "2", "wait.py", *more, warm=False) as launched:
        workers_up(launched, 2)
        launched.launchers[0].send_signal(number)
        launched.end(1)
    if number == signal.SIGTERM:
        assert sorted(launched.said("told")) == ["0 15", "1 15"]
    assert f"the job was ended by {number.name}" in launched.text
    assert "Traceback" not in launched.text.replace("KeyboardInterrupt", "") or number == signal.SIGINT


def test_ranks_that_communicate_end_with_their_launcher(start: Start) -> None:
    """A rank that goes on after its signal stays in a collective, which nothing will repair."""
    with start("--nproc-per-node", "2", "talks.py", warm=False, TASKD_RECOVER_UNREPAIRED_MS="600000") as launched:
        workers_up(launched, 2)
        launched.launchers[0].send_signal(signal.SIGINT)
        launched.end(1)
    assert sorted(launched.said("ended")) == ["0 KeyboardInterrupt", "1 DistBackendError"], launched.text


@pytest.mark.parametrize("recover", ["on", "off"])
def test_the_root_cause_is_the_rank_that_began_it(start: Start, tmp_path: Path, recover: str) -> None:
    """The order of the ends does not matter: the rank that failed first may take the longest to end."""
    (tmp_path / "began.py").write_text(BEGAN.replace("PATIENCE", str(PATIENCE_S)))
    with start("--nproc-per-node", "2", "began.py", "pid", "raised", PROCESS_RECOVER=recover) as launched:
        launched.end(1)
    shown = launched.text[launched.text.index("Root Cause") :]
    assert "rank      : 1 (local_rank: 1)" in shown and "exitcode  : 1 " in shown, launched.text
    if recover == "on":
        first = "the job ends: rank 1 (exit code 1: ValueError: no such file) on node node-0 and rank 0 (exit code 1: "
        assert first in launched.text, launched.text


def test_a_killed_launcher_takes_everybody_along(start: Start) -> None:
    with start("--nproc-per-node", "2", "wait.py", "child", warm=False) as launched:
        pids = workers_up(launched, 2)
        launcher = launched.launchers[0].pid
        everybody = {*pids, *children(launcher)}
        assert len(everybody) >= 4, "two workers, the standby, the manager"
        os.kill(launcher, signal.SIGKILL)
        launched.launchers[0].wait()
        wait_until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids), "the workers' end")
        # A process that a worker itself has forked belongs to the user. Here it must not outlive the test.
        for name in filter(str.isdigit, os.listdir("/proc")):
            if _group_of(int(name)) in pids:
                os.kill(int(name), signal.SIGKILL)


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def test_a_dead_standby_is_replaced(start: Start) -> None:
    with start("--nproc-per-node", "2", "lives.py", "marks", "1", warm=False) as launched:
        standby = wait_until(lambda: _standby(launched.launchers[0].pid), "a standby")
        os.kill(standby, signal.SIGKILL)
        launched.end()
    assert "this node's standby is started again" in launched.text
    assert sorted(launched.said("done")) == ["0", "1"]


def _standby(launcher: int) -> int:
    for pid in children(launcher):
        if b"standby_process" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    return 0


def test_a_script_without_steps_starts_over(start: Start) -> None:
    """The script has no step to go back to. All ranks start again, as under torchrun, and their groups meet anew."""
    with start("--nproc-per-node", "2", "lives.py", "marks", "2") as launched:
        launched.end()
    assert sorted(launched.said("done")) == ["0", "1"]
    assert sorted(launched.said("life")) == [f"{rank} {life} {life}" for rank in (0, 1) for life in (0, 1, 2)]


def test_restarts_are_counted_for_each_rank(start: Start) -> None:
    with start("--nproc-per-node", "2", "--max-restarts", "1", "lives.py", "marks", "9") as launched:
        launched.end(1)
    assert "exitcode  : 7" in launched.text, launched.text
    assert len([line for line in launched.said("life") if line.startswith("1 ")]) == 2


def test_a_manager_that_dies_is_replaced(start: Start) -> None:
    with start("--nproc-per-node", "2", "wait.py") as launched:
        workers_up(launched, 2)
        launched.wait_for_line("all 2 ranks are here")
        facts = launched.ask("status")
        os.kill(facts["manager"]["pid"], signal.SIGKILL)
        launched.wait_for_line("is started again")
        again = wait_until(lambda: launched.ask("status"), "another manager")
        assert again["manager"]["pid"] != facts["manager"]["pid"]
        wait_until(lambda: len(launched.pids()) == 2, "both ranks known to it")
        launched.launchers[0].send_signal(signal.SIGTERM)
        launched.end(1)


def test_a_manager_that_hangs_is_replaced(start: Start) -> None:
    """Its connections and its process stay. Only its own loop shows that it does nothing."""
    with start("--nproc-per-node", "2", "wait.py") as launched:
        workers_up(launched, 2)
        launched.wait_for_line("all 2 ranks are here")
        hangs = launched.ask("status")["manager"]["pid"]
        os.kill(hangs, signal.SIGSTOP)
        launched.wait_for_line(f"(process {hangs}) has done nothing for")
        launched.wait_for_line("is started again")
        wait_until(lambda: len(launched.pids()) == 2, "both ranks known to another manager")
        assert launched.ask("status")["manager"]["pid"] != hangs
        launched.launchers[0].send_signal(signal.SIGTERM)
        launched.end(1)


STOPS_ITSELF = """
import os, signal
from taskd.wire import pulse
beat = pulse.Heart.beat
def once(self):
    beat(self)
    try:
        os.close(os.open({mark!r}, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGSTOP)
pulse.Heart.beat = once
"""


def test_a_manager_that_hangs_before_it_is_heard_is_replaced(start: Start, tmp_path: Path) -> None:
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "sitecustomize.py").write_text(STOPS_ITSELF.format(mark=str(tmp_path / "stopped")))
    path = f"{tmp_path / 'planted'}:{ROOT}"
    with start("--nproc-per-node", "2", "wait.py", warm=False, PYTHONPATH=path) as launched:
        workers_up(launched, 2)
        launched.wait_for_line("has done nothing for")
        launched.wait_for_line("all 2 ranks are here")
        launched.launchers[0].send_signal(signal.SIGTERM)
        launched.end(1)


def test_a_manager_that_cannot_start_ends_the_job(start: Start, free_port: Callable[[], int]) -> None:
    port = free_port()
    with (
        socket.create_server(("", port)),
        start("--nproc-per-node", "1", "wait.py", TASKD_MANAGER_PORT=str(port)) as launched,
    ):
        launched.end(1)
    assert f"port {port} is taken" in launched.text
    assert "the job has no manager: it could not start, and said why" in launched.text


BROKEN = """
import sys
if sys.argv[:1] == ["-m"]:
    from taskd.{module} import {kind} as kind
    whole, left = kind.{method}, [3]
    def broken(self, *args, **kwargs):
        if left[0] and {when}:
            left[0] -= 1
            raise KeyError("planted")
        return whole(self, *args, **kwargs)
    kind.{method} = broken
"""
TICKS = "type(args[1]).__name__ == 'Tick' and self.post.term"


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("module", "kind", "method", "when"),
    [
        ("core.agent", "Agent", "step", TICKS),
        ("agent.pages", "Pages", "read", "True"),
        ("agent.desk", "Desk", "receive", "True"),
        ("agent.upstream", "Upstream", "events", "True"),
        ("agent.deaths", "Deaths", "found", "True"),
        ("agent.store", "StoreRelay", "_turn", "True"),
    ],
)
def test_a_mistake_of_ours_is_not_the_end_of_a_node(
    module: str, kind: str, method: str, when: str, start: Start, tmp_path: Path
) -> None:
    """A part of the launcher raises an error three times. Then a rank dies, and the job goes on."""
    (tmp_path / "planted").mkdir()
    planted = BROKEN.format(module=module, kind=kind, method=method, when=when)
    (tmp_path / "planted" / "sitecustomize.py").write_text(planted)
    path = f"{tmp_path / 'planted'}:{ROOT}"
    with start("--nproc-per-node", "2", "lives.py", "marks", "1", "hold", warm=False, PYTHONPATH=path) as launched:
        wait_until(lambda: launched.text.count("KeyError: 'planted'") == 3, "three errors")
        (tmp_path / "go").touch()
        launched.end()
    assert launched.text.count("a mistake of taskd's;") == 3
    assert sorted(launched.said("done")) == ["0", "1"]


def test_two_launchers_of_one_name(start: Start) -> None:
    with start("--nproc-per-node", "1", "wait.py", TASKD_NODE="same") as launched:
        workers_up(launched, 1)
        second = launched.launch("--nproc-per-node", "1", "wait.py")
        assert second.wait(PATIENCE_S) == 1
        assert "another name by TASKD_NODE" in launched.text
        launched.launchers[0].send_signal(signal.SIGTERM)
        launched.launchers[0].wait(PATIENCE_S)


def test_a_spare_waits_and_ends_with_the_job(start: Start, free_port: Callable[[], int]) -> None:
    words = ["--nnodes", "1:2", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-id", "spares"]
    words += ["--rdzv-endpoint", f"localhost:{free_port()}", "lives.py", "marks", "0", "hold"]
    with start(*words, nodes=[[], []]) as launched:
        launched.wait_for_line("is a spare")
        (launched.folder / "go").touch()
        launched.end()
    assert sorted(launched.said("done")) == ["0", "1"]


SLOW = """
import os, sys, time
if "taskd.launch.standby_process" in sys.orig_argv and "SLOW" in os.environ:
    while not os.path.exists("go"):
        time.sleep(0.02)  # a slow disk
"""


def test_a_spare_counts_before_it_can_start_workers(start: Start, tmp_path: Path, free_port: Callable[[], int]) -> None:
    """A spare's standby is still importing when ranks lose their node. They get their seats, and wait for it there."""
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "sitecustomize.py").write_text(SLOW)
    path = f"{tmp_path / 'planted'}:{ROOT}"
    words = ["--nnodes", "2:3", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "spares"]
    words += ["--rdzv-endpoint", f"localhost:{free_port()}", "lives.py", "marks", "0", "hold"]
    with start(*words, nodes=[[], []], warm=False, PYTHONPATH=path) as launched:
        launched.wait_for_line("all 2 ranks are here")
        launched.environment["SLOW"] = "1"
        launched.launch(*words)
        launched.wait_for_line("node spare-1 is here")
        nodes = {row["node"]: row["pid"] for row in launched.ask("status")["nodes"]}
        os.kill(nodes["node-1"], signal.SIGKILL)
        launched.wait_for_line("so all start again: respawn")
        assert "waits for a node with room" not in launched.text and len(launched.said("life 1")) == 1
        (tmp_path / "go").touch()
        codes = launched.end(code=None)
    assert sorted(codes) == [-signal.SIGKILL, 0, 0], launched.text
    assert sorted(launched.said("done")) == ["0", "1"] and "without the standby" not in launched.text


SPOILED = """
import os, sys
class Late:
    def __del__(self, abort=os.abort):
        abort()
if "taskd.run" in sys.orig_argv:
    sys.late = Late()  # goes when the interpreter is taken down
"""


def test_no_library_spoils_the_end_of_a_launcher(start: Start, tmp_path: Path) -> None:
    """A thread of torch may abort when the interpreter ends in the middle of its work. The job had ended well."""
    (tmp_path / "sitecustomize.py").write_text(SPOILED)
    search = os.pathsep.join([str(tmp_path), str(ROOT)])
    with start("--nproc-per-node", "2", "lives.py", "marks", "0", warm=False, PYTHONPATH=search) as launched:
        launched.end()
    assert sorted(launched.said("done")) == ["0", "1"]


def test_a_node_that_comes_after_the_end(start: Start, free_port: Callable[[], int]) -> None:
    """The first node keeps the board of a static rendezvous a moment longer than the job lasts."""
    port = free_port()
    first = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    board = PrefixStore("taskd/none", PrefixStore("none", first))
    board.set(ENDED, "true")
    words = ["--nnodes", "1:2", "--node-rank", "1", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    with start(*words, "wait.py") as launched:
        launched.end(1)
    assert "of this rendezvous has ended" in launched.text and "Traceback" not in launched.text, launched.text
    assert not launched.said("up")


def test_the_first_node_is_not_there(start: Start, free_port: Callable[[], int]) -> None:
    """It was never there, or has gone. The launcher says so soon, and ends within the given time."""
    place = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    words = ["--nnodes", "2", "--node-rank", "1", *place, "--rdzv-conf", "timeout=3", "wait.py"]
    with start(*words) as launched:
        launched.end(1)
    assert "waiting for the first node's launcher" in launched.text, launched.text
    assert "was not to be found at 127.0.0.1" in launched.text and "Traceback" not in launched.text, launched.text


def test_the_first_node_goes_while_nodes_meet(start: Start, free_port: Callable[[], int]) -> None:
    port = free_port()
    first = [TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)]
    words = ["--nnodes", "2", "--node-rank", "1", "--master-addr", "127.0.0.1", "--master-port", str(port), "wait.py"]
    with start(*words) as launched:
        wait_until(lambda: first[0].check(["none/taskd/none/came/1"]), "the second node")
        first.clear()  # the store ends with its last reference
        launched.end(1)
    assert "did not meet at 127.0.0.1" in launched.text and "Traceback" not in launched.text, launched.text


def test_a_failure_that_nobody_repairs_is_raised(start: Start, tmp_path: Path) -> None:
    """Nothing repairs the loss of a peer that left in good order, so a collective must not wait for it for ever."""
    (tmp_path / "early.py").write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "dist.barrier()\n"  # both have met: otherwise rank 0 may fail while it makes its group
        "if dist.get_rank() == 1: os._exit(0)\n"
        "dist.all_reduce(torch.ones(1))\n"
    )
    with start("--nproc-per-node", "2", "early.py", TASKD_RECOVER_UNREPAIRED_MS="1000") as launched:
        launched.end(1)
    assert "nobody repairs it" in launched.text, launched.text
    assert "DistBackendError: allreduce #2 in group 0@0-1 failed" in launched.text, launched.text
    assert "taskd has made no repair for it" in launched.text and "run it under" not in launched.text, launched.text


LEAVE_KEYS = """
import os, time, torch, torch.distributed as dist
dist.init_process_group('gloo')
store = dist.distributed_c10d._get_default_store()
key = f'left behind by {dist.get_rank()}'
os.write(1, f'found {store.check([key])}\\n'.encode())
store.set(key, 'x')
os.write(1, b'set\\n')
while not os.path.exists('go'): time.sleep(0.05)
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
"""


def run_again(launched: Launched) -> None:
    """Kill the launcher, whose ranks have left keys in the store. The next run of the job goes to its end."""
    launched.launchers[0].kill()
    launched.launchers[0].wait()
    (launched.folder / "go").touch()
    launched.launch("--nproc-per-node", "2", "keys.py")
    launched.end(code=None)
    assert launched.said("found") == ["False"] * 4, launched.text


def test_a_run_after_one_that_was_killed_with_its_manager(start: Start, tmp_path: Path) -> None:
    """The next run finds the journal and the store of the run before, but its groups see nothing of that run."""
    (tmp_path / "keys.py").write_text(LEAVE_KEYS)
    with start("--nproc-per-node", "2", "keys.py") as launched:
        wait_until(lambda: len(launched.said("set")) == 2, "keys in the store")
        manager = wait_until(lambda: launched.ask("status"), "the manager")["manager"]["pid"]
        os.kill(manager, signal.SIGKILL)
        run_again(launched)


def test_a_run_after_one_that_its_manager_outlived(start: Start, tmp_path: Path) -> None:
    """The user's own manager serves both runs from one store. Only the name of the run keeps them apart."""
    (tmp_path / "keys.py").write_text(LEAVE_KEYS)
    with start("--nproc-per-node", "2", "keys.py", TASKD_MANAGER_HOST="127.0.0.1") as launched:
        environment = {**launched.environment, "TASKD_JOB_PROC_PER_NODE": "2"}
        command = [sys.executable, "-m", "taskd.manager"]
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as manager:
            try:
                wait_until(lambda: len(launched.said("set")) == 2, "keys in the store")
                wait_until(lambda: launched.ask("status"), "the manager")
                run_again(launched)
            finally:
                manager.kill()
