"""The manager's two drop-in functions: what they return, what they say, and a user's own manager.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.shell.manager_process import HandAgent, ManagerProcess, wait_for

USERS_OWN = """
import os
from taskd.api import init_taskd_manager, start_taskd_manager
config = {"job_id": os.getenv("MINDX_TASK_ID"), "node_nums": 2, "proc_per_node": 2}
print("init", init_taskd_manager(config), flush=True)
print("start", start_taskd_manager(), flush=True)
"""
GOOD = {"job_id": "job", "node_nums": 2, "proc_per_node": 2}


class UsersManager(ManagerProcess):
    """A user's manager.py instead of `python -m taskd.manager`."""

    def start(self, ready: bool = True) -> UsersManager:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USERS_OWN],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.log.open("ab"),
        )
        if ready:
            wait_for(self.note, "the user's manager is ready")
        return self

    def output(self) -> str:
        assert self.process is not None and self.process.stdout is not None
        return self.process.stdout.read().decode()


def test_a_users_manager_removes_what_ended_runs_have_left(run_dir: Path, free_port: Callable[[], int]) -> None:
    """No launcher of taskd's is there to do it."""
    old = run_dir / "an-older-job"
    old.mkdir(mode=0o700, parents=True)
    run_dir.chmod(0o700)
    for name in ("manager.lock", "journal.db", "key"):
        (old / name).touch()
        os.utime(old / name, (1, 1))
    manager = UsersManager(run_dir, free_port(), MINDX_TASK_ID="job").start()
    assert manager.end() == 0
    assert not old.exists() and (run_dir / "job").exists()


def environment(**variables: str) -> dict[str, str]:
    names = {"TASKD_JOB_ID": "", "TASKD_JOB_NODE_NUMS": "", "TASKD_JOB_PROC_PER_NODE": "", **variables}
    return {name: value for name, value in names.items() if value}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_users_manager_serves_and_ends_on_a_signal(
    run_dir: Path, free_port: Callable[[], int], number: signal.Signals
) -> None:
    manager = UsersManager(run_dir, free_port(), MINDX_TASK_ID="job")
    for name in ("TASKD_JOB_ID", "TASKD_JOB_NODE_NUMS", "TASKD_JOB_PROC_PER_NODE"):
        del manager.environment[name]
    manager.start()
    with HandAgent(manager, "a", (0, 1)) as agent:
        agent.join()
        assert len(manager.status()["ranks"]) == 4
        assert manager.process is not None
        manager.process.send_signal(number)
        assert manager.process.wait(PATIENCE_S) == 0
    assert manager.output() == "init True\nstart True\n"
    assert not (run_dir / "job" / "manager.json").exists()


def test_without_a_job_id_it_is_the_configured_job(run_dir: Path, free_port: Callable[[], int]) -> None:
    manager = UsersManager(run_dir, free_port(), job="default")
    del manager.environment["TASKD_JOB_ID"]
    manager.start()
    assert manager.status()["job"] == "default"
    manager.end()
    assert manager.output() == "init True\nstart True\n"
    assert "job_id is not set (MINDX_TASK_ID?): this is job default" in manager.said()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (None, "a dict with job_id, node_nums and proc_per_node is wanted, not NoneType"),
        ([1], "not list"),
        ({}, "lacks job_id, node_nums, proc_per_node"),
        ({"job_id": "job", "node_nums": 2}, "lacks proc_per_node"),
        ({**GOOD, "node_nums": "2"}, "node_nums is '2', a whole number is wanted"),
        ({**GOOD, "node_nums": 2.0}, "node_nums is 2.0"),
        ({**GOOD, "node_nums": True}, "node_nums is True"),
        ({**GOOD, "node_nums": None}, "node_nums is None"),
        ({**GOOD, "node_nums": 0}, "node_nums is 0, at least 1 is wanted"),
        ({**GOOD, "proc_per_node": -8}, "proc_per_node is -8, at least 1 is wanted"),
        ({**GOOD, "node_nums": 10**9}, "a job has at most"),
        ({**GOOD, "job_id": "../../etc"}, "job.id"),
        ({**GOOD, "job_id": 7}, "job.id"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_false(run_python: Callable[..., Any], given: Any, says: str) -> None:
    done = run_python(
        "from taskd.api.taskd_manager_api import *\n"
        f"assert init_taskd_manager({given!r}) is False\n"
        "assert start_taskd_manager() is False\n"
    )
    first, second = done.stderr.splitlines()
    assert says in first and first.startswith("taskd[manager]: ")
    assert "init_taskd_manager has not been called before, or returned False" in second


def test_unknown_keys_are_tolerated_with_a_warning(run_python: Callable[..., Any]) -> None:
    done = run_python(
        "from taskd.api import init_taskd_manager\n"
        f"assert init_taskd_manager({{**{GOOD!r}, 'colour': 1, 'plugin_dir': '/x', 'cluster_infos': []}}) is True\n"
        "assert init_taskd_manager() is False\n"
    )
    assert "does not know colour" in done.stderr and "plugin_dir does nothing" in done.stderr
    assert len(done.stderr.splitlines()) == 3


@pytest.mark.parametrize("how", ["key", "variable"])
def test_switched_off_there_is_no_manager_and_no_harm(run_python: Callable[..., Any], run_dir: Path, how: str) -> None:
    given = {**GOOD, "taskd_enable": "off"} if how == "key" else GOOD
    done = run_python(
        "from taskd.api import init_taskd_manager, start_taskd_manager\n"
        f"assert init_taskd_manager({given!r}) is True\n"
        "assert start_taskd_manager() is True\n",
        env={"TASKD_PROCESS_ENABLE": "off"} if how == "variable" else {},
    )
    assert "switched off" in done.stderr and len(done.stderr.splitlines()) == 1
    assert not run_dir.exists()


def test_a_port_that_is_taken_is_false_and_one_sentence(
    run_python: Callable[..., Any], run_dir: Path, free_port: Callable[[], int]
) -> None:
    holder = ManagerProcess(run_dir, free_port(), job="first").start()
    assert holder.process is not None
    done = run_python(
        "from taskd.api import init_taskd_manager, start_taskd_manager\n"
        f"assert init_taskd_manager({GOOD!r}) is True\n"
        "assert start_taskd_manager() is False\n",
        env={"TASKD_MANAGER_PORT": str(holder.port), "TASKD_MANAGER_BIND": "127.0.0.1"},
    )
    (line,) = done.stderr.splitlines()
    assert f"port {holder.port} is taken by the manager of job first (pid {holder.process.pid})" in line
    assert holder.end() == 0


def test_the_package_knows_ten_names_and_loads_none(run_python: Callable[..., Any]) -> None:
    done = run_python(
        "import sys, taskd.api\n"
        "print(len(dir(taskd.api)), [m for m in sys.modules if m.startswith('taskd.api.')])\n"
        "import importlib.util\n"
        "for name in dir(taskd.api): assert importlib.util.find_spec('taskd.api.' + taskd.api._HOMES[name]), name\n"
        "try: taskd.api.nonsense\n"
        "except AttributeError as error: print(error)\n"
    )
    assert done.stdout.splitlines() == ["10 []", "module 'taskd.api' has no attribute 'nonsense'"]


def test_the_manager_imports_neither_torch_nor_numpy(run_python: Callable[..., Any]) -> None:
    done = run_python(
        "import sys, taskd.manager.__main__; print([m for m in ('torch', 'numpy', 'yaml') if m in sys.modules])"
    )
    assert done.stdout.strip() == "[]"
