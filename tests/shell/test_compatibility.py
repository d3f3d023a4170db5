"""docs/compatibility.md: every name of the original is in it once, does what it says, or says that it does nothing."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import taskd.api
from taskd import compat, config
from taskd.compat import framework
from taskd.config import effects
from tests.source import ROOT

CONFIGURED = ["job_id", "node_nums", "proc_per_node", "fault_recover", "taskd_enable", "plugin_dir", "cluster_infos"]
CONNECTED = ["Framework", "UpstreamAddr", "UpstreamPort", "ServerRank", "ListenAddr", "ListenPort"]
KEYS = [*CONFIGURED, *CONNECTED, "upper_limit_of_disk_in_mb"]
VARIABLES = {  # what each sets, by an example; None: it is read elsewhere, or does nothing
    "PROCESS_RECOVER": ("on", "recover.process_recover"),
    "ELASTIC_PROCESS_RECOVER_ENABLE": ("1", "recover.process_recover"),
    "HIGH_AVAILABILITY": ("recover", "recover.strategies"),
    "ENABLE_RESTART_FAULT_PROCESS": ("on", "recover.restart_fault_process"),
    "TASKD_PROCESS_ENABLE": ("off", "enabled"),
    "MINDX_TASK_ID": ("job-7", "job.id"),
    "MASTER_ADDR": ("10.0.0.7", "manager.host"),
    "POD_IP": ("10.0.0.8", "job.address"),
    "LOCAL_WORLD_SIZE": ("7", "job.proc_per_node"),
    "TASKD_LOG_PATH": ("/tmp/x.log", "log.path"),
    "TASKD_FILE_LOG_LEVEL": ("debug", "log.file_level"),
    "TASKD_STD_LOG_LEVEL": ("error", "log.std_level"),
    "TASKD_LOG_STDOUT": ("off", "log.stdout"),
    "HCCL_OP_RETRY_ENABLE": ("L0:0, L1:1", "retry.levels"),
    "HCCL_OP_RETRY_PARAMS": ("MaxCnt:7", "retry.max_count"),
}
READ_ELSEWHERE = {"RANK", "WORLD_SIZE", "LOCAL_RANK"}  # taskd.worker.identity
LABELS = ["process-recover-enable", "fault-scheduling", "pod-rescheduling", "subHealthyStrategy", "recover-strategy"]
PORTS = ["9601", "9602", "8000", "8899"]
IMPORTS = ["mindx_elastic.api", "taskd.python.adaptor.patch"]
NOTHING = "Nothing"


def rows() -> dict[str, str]:
    """The tables: each name, and what is said of it."""
    found: dict[str, str] = {}
    for name, said in re.findall(r"^\| `([^`]+)` \| (.+) \|$", (ROOT / "docs/compatibility.md").read_text(), re.M):
        assert name not in found, f"{name} stands there twice"
        found[name] = said
    return found


def calls() -> list[str]:
    return [name for name in framework.__all__ if not inspect.isclass(getattr(framework, name))]


def test_every_name_is_there_and_no_other() -> None:
    variables = {*VARIABLES, *READ_ELSEWHERE, "HCCL_CONNECT_TIMEOUT"}
    assert rows().keys() == {*taskd.api.__all__, *KEYS, *calls(), *IMPORTS, *variables, *PORTS, *LABELS}


def test_of_each_call_it_says_what_the_call_says_of_itself() -> None:
    said = rows()
    for name in calls():
        assert said[name] == (inspect.getdoc(getattr(framework, name)) or "").splitlines()[0]


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_sets_what_it_should(name: str) -> None:
    text, path = VARIABLES[name]
    loaded = config.load(environ={name: text})
    assert config.value_at(loaded, path) != config.value_at(config.load(environ={}), path)
    assert not effects.without_effect(loaded), "it works, and says that it does nothing"
    assert not rows()[name].startswith(NOTHING)


@pytest.mark.parametrize(
    ("environ", "part"),
    [
        ({"HCCL_CONNECT_TIMEOUT": "200"}, "pause.limit_ms (environment HCCL_CONNECT_TIMEOUT) bounds nothing"),
        (
            {"HIGH_AVAILABILITY": "recover,dump"},
            "dump (environment HIGH_AVAILABILITY) does nothing: no last",
        ),
        ({"HIGH_AVAILABILITY": "recover,elastic-training"}, "elastic-training (environment HIGH_AVAILABILITY) does"),
        ({"HIGH_AVAILABILITY": "retry"}, "retry (environment HIGH_AVAILABILITY) replaces no rank, so recover-in-place"),
    ],
)
def test_what_does_nothing_says_so(environ: dict[str, str], part: str) -> None:
    (said,) = effects.without_effect(config.load(environ=environ))
    assert part in said


@pytest.mark.parametrize(
    ("named", "allowed"),
    [
        ("dump", {"recover-in-place", "recover", "dump", "exit"}),
        ("retry", {"retry", "recover-in-place", "recover", "exit"}),
        ("recover", {"recover", "exit"}),
        ("recover-in-place,dump", {"recover-in-place", "dump", "exit"}),
        ("exit", {"exit"}),
    ],
)
def test_a_list_without_repairs_does_not_switch_them_off(named: str, allowed: set[str]) -> None:
    assert {*config.load(environ={"HIGH_AVAILABILITY": named}).recover.allowed} == allowed


def test_a_start_says_it_once(run_python: Callable[..., Any]) -> None:
    code = (
        "from taskd.api import init_taskd_manager, init_taskd_worker, register_func\n"
        "words = {'job_id': 'a', 'node_nums': 1, 'proc_per_node': 1, 'plugin_dir': '/x', 'cluster_infos': [1]}\n"
        "for _ in range(2):\n    register_func('RESTART', print), register_func('KILL_WORKER', print)\n"
        "init_taskd_manager(words), init_taskd_worker(0, 7)"
    )
    lines = run_python(code, env={"HIGH_AVAILABILITY": "dump"}).stderr.splitlines()
    wanted = ["RESTART is never", "plugin_dir does", "cluster_infos does", "dump (", "replaces no rank", "=7 does"]
    assert len(lines) == len(wanted), lines
    assert all(part in line for part, line in zip(wanted, lines, strict=True)), lines


@pytest.mark.parametrize(
    ("begin", "environ", "found"),
    [
        ("", {}, "False"),
        ("import taskd", {}, "False"),
        ("import taskd.api", {}, "True"),
        ("", {"PROCESS_RECOVER": "on"}, "True"),
        ("", {"MINDX_TASK_ID": "a"}, "True"),
        ("", {"TASKD_JOB_ID": "a"}, "True"),
        ("", {"TASKD_MANAGER_SERVICE_HOST": "10.0.0.7"}, "False"),
        ("", {"TASKD_MANAGER_PORT": "tcp://10.0.0.7:9601"}, "False"),
        ("", {"TASKD_MANAGER_PORT_9601_TCP_ADDR": "10.0.0.7"}, "False"),
        ("", {"TASKD_MANAGER_PORT": "9601"}, "True"),
    ],
)
def test_who_looks_for_the_package_finds_it_where_taskd_was_asked_for(
    run_python: Callable[..., Any], begin: str, environ: dict[str, str], found: str
) -> None:
    code = f"import taskd.compat\n{begin}\nimport importlib.util\n"
    asks = "print(importlib.util.find_spec('mindio_ttp') is not None)"
    unset = "import os\nfor name in [*os.environ]:\n    if name.startswith('TASKD_'): del os.environ[name]\n"
    setting = f"os.environ.update({environ})\n"
    assert run_python(unset + setting + code + asks).stdout.strip() == found


def test_the_finder_knows_the_imports() -> None:
    assert {*IMPORTS} < {*compat.MODULES}
