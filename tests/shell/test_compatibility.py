"""docs/compatibility.md: it has every name of the original once. A name does what it says, or says it does nothing."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import taskd.api
from taskd import compat, config
from taskd.api import taskd_agent_api, taskd_manager_api, taskd_proxy_api
from taskd.compat import framework
from taskd.config import effects, values
from taskd.config.tree import STRATEGIES
from taskd.policy.reader import KEYS, RULE_KEYS
from tests.shell import contract
from tests.source import ROOT

VARIABLES = {  # for each variable an example value and the setting that it changes
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
    "HCCL_CONNECT_TIMEOUT": ("200", "pause.limit_ms"),
}
NOTHING = "Nothing"
OF_IDENTITY = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK"}
SAYS = {  # for each name that does nothing, how its warning begins
    "mindx_elastic.api": "this import asks for the launcher of the original and does nothing",
    "taskd.python.adaptor.patch": "this import asks for the launcher of the original and does nothing",
    "plugin_dir": "plugin_dir does nothing",
    "cluster_infos": "cluster_infos does nothing",
    "elastic-training": "elastic-training (environment HIGH_AVAILABILITY) does nothing",
    "upper_limit_of_disk_in_mb": "upper_limit_of_disk_in_mb=7 does nothing",
    "MONITOR": "what is registered as MONITOR is never called",
    "RESTART": "what is registered as RESTART is never called",
    "START_WORKER_LIST": "what is registered as START_WORKER_LIST is never called",
}
STARTS = """
import taskd.compat, mindx_elastic.api, taskd.python.adaptor.patch
from taskd.api import init_taskd_manager, init_taskd_worker, register_func
words = {"job_id": "a", "node_nums": 1, "proc_per_node": 1, "plugin_dir": "/x", "cluster_infos": [1]}
for _ in range(2):
    init_taskd_manager(words)
    init_taskd_worker(0, 7)
    for operator in ("MONITOR", "RESTART", "START_WORKER_LIST", "KILL_WORKER", "START_ALL_WORKER"):
        register_func(operator, print)
"""


def rows() -> dict[str, str]:
    """Return the rows of the page's tables: each name, and what the page says of it."""
    found: dict[str, str] = {}
    for name, said in re.findall(r"^\| `([^`]+)` \| (.+) \|$", (ROOT / "docs/compatibility.md").read_text(), re.M):
        assert name not in found, f"{name} stands there twice"
        found[name] = said
    return found


def calls() -> list[str]:
    return [name for name in framework.__all__ if not inspect.isclass(getattr(framework, name))]


def taken() -> set[str]:
    """Return every name of others that the code accepts, read from the code."""
    keys = {*taskd_manager_api.KEYS, *taskd_agent_api.KEYS, *taskd_proxy_api.KEYS}
    arguments = inspect.signature(taskd.api.init_taskd_worker).parameters
    of_settings = {name for leaf in config.leaves().values() for name in (*leaf.variables, *leaf.meta["hints"])}
    variables = {name for name in {*of_settings, *values.COMPOSITES} if not name.startswith("TASKD_")}
    modules = {name for name, home in compat.MODULES.items() if home != compat.PACKAGE}
    words = {*taskd_agent_api.OPERATORS, *STRATEGIES}
    names = {*taskd.api.__all__, *calls(), *keys, *arguments, *variables, *OF_IDENTITY, *modules, *words}
    return names | (contract.POLICY & {*KEYS, *RULE_KEYS})


def test_every_name_is_there_and_no_other() -> None:
    """The page has all names of the original, even if taskd lacks them, and all other foreign names that taskd has."""
    found = rows().keys()
    assert not contract.ALL - found, "names of the original of which the page says nothing"
    assert not taken() - found, "names that taskd takes and of which the page says nothing"
    assert not found - contract.ALL - taken(), "names that nobody has"


def test_what_the_original_calls_is_there() -> None:
    reachable = {*taskd.api.__all__, *calls(), *compat.MODULES}
    assert not (contract.FUNCTIONS | contract.HOOKS | contract.IMPORTS) - reachable
    assert taken() >= contract.KEYS | contract.OPERATORS | contract.STRATEGIES
    assert contract.VARIABLES - taken() == {name for name in contract.VARIABLES if name.startswith("TASKD_")}


def test_what_is_said_not_to_be_read_is_not() -> None:
    unread = {name for name, said in rows().items() if re.match(r"Is not|There is no|No event", said)}
    assert unread and not unread & taken()
    assert not unread & ({name for name, said in rows().items() if said.startswith(NOTHING)} | {*SAYS})


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


def test_what_does_nothing_is_known() -> None:
    assert {name for name, said in rows().items() if said.startswith(f"{NOTHING}")} == {*SAYS}


def test_a_start_says_it_once(run_python: Callable[..., Any]) -> None:
    environ = {"HIGH_AVAILABILITY": "dump,elastic-training"}
    lines = run_python(STARTS, env=environ).stderr.splitlines()
    for said in SAYS.values():
        assert sum(said in line for line in lines) == 1, (said, lines)
    others = [line for line in lines if not any(said in line for said in SAYS.values())]
    assert len(others) == 1 and "elastic-training, dump (environment HIGH_AVAILABILITY) replaces no rank" in others[0]


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
