"""Jobs that torchrun starts. With PROCESS_RECOVER=on they heal as under taskd-run, and nothing else has to change."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taskd.compat.torchrun import SAYS, _why_not
from tests.launched import Launched, children
from tests.patience import PATIENCE_S
from tests.source import ROOT

CONSOLE = (str(Path(sys.executable).with_name("torchrun")),)
MODULE = ("-m", "torch.distributed.run")
OLD = ("-m", "torch.distributed.launch", "--use-env")
IMPATIENT = """
import sys
from taskd.launch import manager
from taskd.run import main
manager.MEET_SECONDS = 0.5
sys.exit(main())
"""
"""taskd-run, which does not wait for long for a manager that is configured."""
NOBODY = "192.0.2.1"
"""No host has this address."""
TRAINS = (str(ROOT / "samples" / "train_ddp.py"), "--steps", "200", "--log-every", "10", "--width", "16")
Start = Callable[..., Launched]
_calm: list[str] = []

pytestmark = pytest.mark.slow


@pytest.fixture
def start(tmp_path: Path, free_port: Callable[[], int]) -> Start:
    """Return a function that starts the training on two ranks. Each node of `nodes` has these words of its own."""

    def begin(
        program: Sequence[str],
        *nodes: Sequence[str],
        port: int = 0,
        within: Sequence[Sequence[str]] = (),
        warm: bool = False,
        **env: str | None,
    ) -> Launched:
        folder = tmp_path / f"run{len([*tmp_path.iterdir()])}"
        folder.mkdir()
        nodes = nodes or (("--nproc-per-node=2", "--master-port", str(free_port())),)
        where = {"nodes": nodes, "program": program, "within": within, "warm": warm}
        return Launched(folder, port or free_port(), *TRAINS, env=env, **where)

    return begin


@pytest.fixture
def calm(start: Start) -> list[str]:
    """Return the weights of the undisturbed run. It runs once for all tests of this file."""
    if not _calm:
        with start(("-m", "taskd.run"), warm=True) as job:
            job.end()
        _calm.extend(job.said("weights"))
    return _calm


def kill(job: Launched) -> None:
    """Kill rank 1 once it trains. Its pid is asked for before, which may take longer than the whole training."""
    pid = job.pid(1)
    job.wait_for_line("step 10:")
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("program", [CONSOLE, MODULE, OLD], ids=["torchrun", "module", "launch"])
def test_it_heals(start: Start, calm: list[str], program: Sequence[str]) -> None:
    with start(program, PROCESS_RECOVER="on") as job:
        kill(job)
        job.end()
    assert job.said("weights") == calm and job.text.count("healed in") == 1, job.text
    assert job.text.count(SAYS) == 1, job.text


def test_on_two_nodes(start: Start, calm: list[str], free_port: Callable[[], int]) -> None:
    port = free_port()
    nodes = [
        ["--nnodes=2", "--nproc-per-node=1", f"--node-rank={node}", "--master-addr=127.0.0.1", f"--master-port={port}"]
        for node in (0, 1)
    ]
    with start(CONSOLE, *nodes, PROCESS_RECOVER="on") as job:
        kill(job)
        job.end()
    assert job.said("weights") == calm and job.text.count("healed in") == 1, job.text


def test_with_the_manager_of_the_guide(start: Start, calm: list[str], free_port: Callable[[], int]) -> None:
    """The script of the guide starts manager.py in the background, and then torchrun."""
    port, task = free_port(), f"guide-{os.getpid()}"
    env = {"MINDX_TASK_ID": task, "TASKD_JOB_ID": None, "PROCESS_RECOVER": "on", "TASKD_MANAGER_PORT": str(port)}
    own = {name: value for name, value in {**os.environ, "PYTHONPATH": str(ROOT), **env}.items() if value is not None}
    words = [sys.executable, str(ROOT / "samples" / "manager.py")]
    with subprocess.Popen(words, env=own | {"NODE_NUMS": "1", "PROC_PER_NODE": "2"}, stderr=subprocess.PIPE) as manager:
        try:
            with start(CONSOLE, port=port, **env) as job:
                kill(job)
                job.end()
            assert manager.wait(PATIENCE_S) == 0  # the one that was first has ended with the job, the other one at once
        finally:
            manager.kill()
    assert job.said("weights") == calm, job.text


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Create two network namespaces with a cable between them: 10.77.0.1 and 10.77.0.2."""
    names = f"taskd-torchrun-{os.getpid()}-a", f"taskd-torchrun-{os.getpid()}-b"
    for name in names:
        subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        cable = ["ip", "-n", names[0], "link", "add", "one", "type", "veth", "peer", "name", "one", "netns", names[1]]
        subprocess.run(cable, check=True)
        for at, name in enumerate(names, 1):
            subprocess.run(["ip", "-n", name, "address", "add", f"10.77.0.{at}/24", "dev", "one"], check=True)
            for interface in ("lo", "one"):
                subprocess.run(["ip", "-n", name, "link", "set", interface, "up"], check=True)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=True)


@pytest.mark.parametrize("given", [None, "10.77.0.1"], ids=["not given", "given"])
def test_two_hosts_with_the_manager_of_the_guide(
    start: Start, calm: list[str], hosts: tuple[str, str], given: str | None
) -> None:
    """The other host must learn how it reaches the manager."""
    task = f"guide-{os.getpid()}"
    env = {"MINDX_TASK_ID": task, "TASKD_JOB_ID": None, "PROCESS_RECOVER": "on", "TASKD_MANAGER_HOST": given}
    env |= {"GLOO_SOCKET_IFNAME": "one", "TASKD_MANAGER_PORT": "9601"}
    own = {name: value for name, value in {**os.environ, "PYTHONPATH": str(ROOT), **env}.items() if value is not None}
    within = [["ip", "netns", "exec", host] for host in hosts]
    words = [*within[0], sys.executable, str(ROOT / "samples" / "manager.py")]
    nodes = [
        ["--nnodes=2", "--nproc-per-node=1", f"--node-rank={at}", "--master-addr=10.77.0.1", "--master-port=29500"]
        for at in (0, 1)
    ]
    with subprocess.Popen(words, env=own | {"NODE_NUMS": "2", "PROC_PER_NODE": "1"}, stderr=subprocess.PIPE) as manager:
        try:
            with start(CONSOLE, *nodes, port=9601, within=within, **env) as job:
                kill(job)
                job.end()
            said = manager.communicate(timeout=PATIENCE_S)[1].decode()
            assert manager.returncode == 0 and said.count("it was replaced, the others went on: healed in") == 1, said
        finally:
            manager.kill()
    assert job.said("weights") == calm, job.text


def test_a_manager_elsewhere_that_never_comes(start: Start, calm: list[str]) -> None:
    with start(("-c", IMPATIENT), TASKD_MANAGER_HOST=NOBODY) as job:
        job.wait_for_line("this launcher starts one in its place")
        job.environment["TASKD_MANAGER_HOST"] = "127.0.0.1"
        kill(job)
        job.end()
    assert job.said("weights") == calm and job.text.count("healed in") == 1, job.text


@pytest.mark.parametrize(
    "env",
    [{"PROCESS_RECOVER": None}, {"PROCESS_RECOVER": "off"}, {"PROCESS_RECOVER": "on", "TASKD_PROCESS_ENABLE": "off"}],
    ids=["not asked", "off", "disabled"],
)
def test_torchrun_stays_as_it_is(start: Start, env: dict[str, str | None]) -> None:
    with start(CONSOLE, TASKD_JOB_ID=None, TASKD_MANAGER_PORT=None, TASKD_STD_LOG_LEVEL=None, **env) as job:
        job.wait_for_line("step 10:")
        os.kill(children(job.launchers[0].pid)[0], signal.SIGKILL)
        job.end(1)
    assert SAYS not in job.text and "healed" not in job.text and "ChildFailedError" in job.text, job.text


def test_the_older_launcher_gives_each_worker_its_local_rank(tmp_path: Path, free_port: Callable[[], int]) -> None:
    script = tmp_path / "shows.py"
    script.write_text("import sys\nprint('given', *sys.argv[1:])\n")
    words = ["--nproc-per-node=2", str(script), "--steps"]
    with Launched(tmp_path, free_port(), *words, env={"PROCESS_RECOVER": "on"}, program=OLD[:2]) as job:
        job.end()
    assert sorted(job.said("given")) == ["--local-rank=0 --steps", "--local-rank=1 --steps"], job.text
    assert SAYS in job.text


def test_a_caller_gets_torchruns_error(run_python: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("raise SystemExit(3)\n")
    code = """
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main
try:
    main(["--nproc-per-node=1", "--max-restarts=0", "fails.py"])
except ChildFailedError as error:
    print("caught", *(failure.exitcode for failure in error.failures.values()))
"""
    done = run_python(code, env={"PROCESS_RECOVER": "on"})
    assert done.stdout.splitlines()[-1] == "caught 3" and SAYS in done.stderr, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("nnodes", "environ", "part"),
    [
        ("1", {}, ""),
        ("2:2", {"LOCAL_RANK": "0"}, ""),
        ("2:4", {}, "trains on up to 4 nodes"),
        ("1", {"TORCHELASTIC_RUN_ID": "none", "LOCAL_RANK": "0"}, "inside of a worker"),
        ("1", {"TORCHELASTIC_HEALTH_CHECK_PORT": "8080"}, "TORCHELASTIC_HEALTH_CHECK_PORT is set"),
    ],
)
def test_what_only_torchrun_can_do_is_left_to_it(nnodes: str, environ: dict[str, str], part: str) -> None:
    why = _why_not(SimpleNamespace(nnodes=nnodes), environ)
    assert part in why and bool(part) == bool(why)
