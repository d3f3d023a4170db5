"""What a launcher leaves behind and what it says about it: helper processes, files, kills for memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.launcher.api import LaunchConfig

from taskd import _native
from taskd.agent.memory_kills import NEAR_NS, MemoryKills
from taskd.launch.ranks import with_address
from taskd.memory import own_folders
from taskd.wire.leftovers import KEEP_RUNS, clear_away
from tests.launched import ROOT, Launched
from tests.patience import PATIENCE_S

HELPERS = """
import os, subprocess, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
weight = torch.zeros(200_000_000, dtype=torch.uint8) + 1  # takes a while to be taken apart
quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
helper = subprocess.Popen(["cat", sys.argv[1]], **quiet)
forked = os.fork()
if forked == 0:
    for fd in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), fd)
    open(sys.argv[1]).read()
    os._exit(0)
os.write(1, f"helpers {helper.pid} {forked}\\n".encode())
dist.barrier()
dist.destroy_process_group()
"""
HUNGRY = """
import os, sys, pathlib
import torch, torch.distributed as dist
dist.init_process_group("gloo")
limit = pathlib.Path(sys.argv[1]) / "memory.limit_in_bytes"
used = pathlib.Path(sys.argv[1]) / "memory.usage_in_bytes"
if dist.get_rank() == 1:
    pathlib.Path("/proc/self/oom_score_adj").write_text("1000")
    limit.write_text(str(int(used.read_text()) + (64 << 20)))
    held = torch.ones(1 << 30, dtype=torch.uint8)
dist.barrier()
"""


@pytest.mark.slow
def test_what_outlives_a_rank_in_good_order_is_left_alone(tmp_path: Path, free_port: Callable[[], int]) -> None:
    (tmp_path / "script.py").write_text(HELPERS)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with Launched(tmp_path, free_port(), "--nproc-per-node", "2", "script.py", str(pipe), warm=True) as job:
        job.end()
        helpers = [int(word) for line in job.said("helpers") for word in line.split()]
        with pipe.open("w"):  # the helpers must still live here, and may end when the pipe closes
            states = [_native.exit_state(pid, _native.process_start_time(pid)).state for pid in helpers]
        assert states == ["alive"] * 4, job.text


@pytest.mark.slow
def test_of_a_run_that_is_over_the_journal_is_left(tmp_path: Path, free_port: Callable[[], int]) -> None:
    (tmp_path / "script.py").write_text("pass\n")
    run_dir = tmp_path / "runs"
    old = run_dir / "an-older-job"
    old.mkdir(parents=True, mode=0o700)
    run_dir.chmod(0o700)
    for name in ("manager.lock", "journal.db", "key"):
        (old / name).touch()
        os.utime(old / name, (1, 1))
    with Launched(tmp_path, free_port(), "script.py", env={"TASKD_RUN_DIR": str(run_dir)}, warm=True) as job:
        job.end()
    left = {path.name for path in (run_dir / job.job).iterdir()}
    assert "journal.db" in left and not left & {"key", "store.db", "manager.json"}, left
    assert not old.exists()


def test_which_runs_are_kept(tmp_path: Path) -> None:
    def ended(name: str, days_ago: float, *more: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for file in ("manager.lock", "journal.db", *more):
            (folder / file).touch()
            os.utime(folder / file, (now - days_ago * 86_400,) * 2)
        return folder

    now = time.time()
    ended("own", 30)
    ended("late", 1)
    ended("old", 8)
    ended("with-another-file", 8, "checkpoint.pt")
    (tmp_path / "of-somebody-else").mkdir()
    for number in range(KEEP_RUNS):
        ended(f"newer-{number}", 0.1)
    gone = clear_away(tmp_path, "own", now)
    assert sorted(gone) == ["late", "old"]  # "late" goes because there are enough newer runs
    assert (tmp_path / "own").exists() and (tmp_path / "of-somebody-else").exists()
    assert [path.name for path in (tmp_path / "with-another-file").iterdir()] == ["checkpoint.pt"]


def test_the_folder_of_a_manager_that_lives_is_kept(tmp_path: Path) -> None:
    import fcntl

    folder = tmp_path / "job"
    folder.mkdir()
    for name in ("manager.lock", "key"):
        (folder / name).touch()
        os.utime(folder / name, (1, 1))
    with (folder / "manager.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert clear_away(tmp_path, "other") == []
    assert {path.name for path in folder.iterdir()} == {"manager.lock", "key"}
    assert clear_away(tmp_path, "other") == ["job"]


# ---- memory


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (
            {"memory.events": "oom 3\noom_kill 2\n", "memory.max": "2684354560\n", "memory.peak": "2576980377\n"},
            "2.5 GiB",
        ),
        ({"memory.oom_control": "under_oom 0\noom_kill 2\n", "memory.limit_in_bytes": "536870912\n"}, "512 MiB"),
        ({"memory.events": "oom_kill 2\n", "memory.max": "max\n"}, "the machine had no more"),
    ],
)
def test_a_counter_that_rises_tells_a_kill_for_memory(tmp_path: Path, files: dict[str, str], says: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    kills = MemoryKills((tmp_path / "nowhere", tmp_path))
    assert kills.why(10) == ""
    counter = next(path for path in tmp_path.iterdir() if "oom_kill" in path.read_text())
    counter.write_text(counter.read_text().replace("oom_kill 2", "oom_kill 3"))
    assert says in kills.why(20) and says in kills.why(20 + NEAR_NS)
    assert kills.why(21 + NEAR_NS) == ""


def test_without_a_control_group_nothing_is_said(tmp_path: Path) -> None:
    assert MemoryKills(()).why(10) == "" and MemoryKills((tmp_path,)).why(10) == ""
    listing = tmp_path / "cgroup"
    listing.write_text("4:cpu,cpuacct:/a\n3:memory:/b/c\n0::/d\n")
    root = Path("/r")
    assert own_folders(listing, root)[:2] == (root / "memory/b/c", root / "memory")
    assert root / "d" in own_folders(listing, root)


@pytest.fixture
def group(tmp_path: Path) -> Any:
    """A control group for memory, below that of this process."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    path = next((line.split(":", 2)[2] for line in lines if line.split(":")[1] == "memory"), None)
    folder = Path("/sys/fs/cgroup/memory", (path or "").lstrip("/"), f"taskd-test-{os.getpid()}")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group for memory (version 1) can be made here: {error.strerror}")
    yield folder
    (folder / "memory.force_empty").write_text("1")
    folder.rmdir()


@pytest.mark.slow
def test_a_rank_that_is_killed_for_its_memory(tmp_path: Path, free_port: Callable[[], int], group: Path) -> None:
    (tmp_path / "script.py").write_text(HUNGRY)
    into = f"echo $$ > {group}/cgroup.procs && exec {sys.executable} -m taskd.run --max-restarts 0 --nproc-per-node 2"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TASKD_MANAGER_PORT": str(free_port())}
    environment |= {"TASKD_RUN_DIR": str(tmp_path / "runs"), "TASKD_JOB_ID": f"hungry-{os.getpid()}"}
    done = subprocess.run(
        ["sh", "-c", f"{into} script.py {group}"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 1
    assert "rank 1 died (SIGKILL: killed for its memory: the limit of its control group is" in done.stderr, done.stderr


# ---- a host without a name


def config_of(backend: str, endpoint: str, address: str | None = None) -> LaunchConfig:
    return LaunchConfig(2, 2, 1, rdzv_backend=backend, rdzv_endpoint=endpoint, run_id="a", local_addr=address)


def test_a_name_that_leads_nowhere_gives_way_to_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_address(config_of("c10d", "127.0.0.1:29400", "10.1.1.1")).local_addr == "10.1.1.1"
    monkeypatch.setattr("socket.getfqdn", lambda: "localhost")
    assert with_address(config_of("c10d", "127.0.0.1:29400")).local_addr is None
    monkeypatch.setattr("socket.getfqdn", lambda: "nowhere.invalid")
    assert with_address(config_of("static", "127.0.0.1:29400")).local_addr is None
    assert with_address(config_of("c10d", "127.0.0.1:29400")).local_addr == "127.0.0.1"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a host another name")
@pytest.mark.parametrize("words", [("--rdzv-backend", "c10d", "--rdzv-endpoint"), ()])
def test_a_job_starts_on_a_host_without_a_name(
    tmp_path: Path, free_port: Callable[[], int], words: tuple[str, ...]
) -> None:
    script = 'import torch.distributed as dist\ndist.init_process_group("gloo")\ndist.barrier()\nprint("met")\n'
    (tmp_path / "script.py").write_text(script)
    named = " ".join([*words, f"127.0.0.1:{free_port()}"]) if words else ""
    run = f"exec {sys.executable} -m taskd.run --nproc-per-node 2 {named} script.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TASKD_MANAGER_PORT": str(free_port())}
    environment |= {"TASKD_RUN_DIR": str(tmp_path / "runs"), "TASKD_JOB_ID": f"nameless-{os.getpid()}"}
    done = subprocess.run(
        ["unshare", "--uts", "sh", "-c", f"hostname nowhere-at-all && {run}"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0 and done.stdout.count("met") == 2, done.stderr
