"""The configuration tree: its options, which source wins, where a value came from, and how bad values are refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskd import config
from taskd.config import Config, Leaf
from taskd.errors import UsageError

ALL_STRATEGIES = ("retry", "recover-in-place", "recover", "elastic-training", "dump", "exit")
COMPUTED = object()
HCCL_NAMES = ("OP_RETRY_ENABLE", "OP_RETRY_PARAMS", "CONNECT_TIMEOUT")
# The set of options. A new option, another default or another name is a decision, so it must be entered here, too.
OPTIONS: dict[str, tuple[Any, str]] = {
    "enabled": (True, "TASKD_ENABLED TASKD_PROCESS_ENABLE"),
    "job.id": ("default", "TASKD_JOB_ID MINDX_TASK_ID"),
    "job.node": (COMPUTED, "TASKD_JOB_NODE TASKD_NODE"),
    "job.address": ("", "TASKD_JOB_ADDRESS"),
    "job.node_nums": (1, "TASKD_JOB_NODE_NUMS"),
    "job.proc_per_node": (1, "TASKD_JOB_PROC_PER_NODE"),
    "job.run_dir": (COMPUTED, "TASKD_JOB_RUN_DIR TASKD_RUN_DIR"),
    "manager.host": ("127.0.0.1", "TASKD_MANAGER_HOST"),
    "manager.bind": ("0.0.0.0", "TASKD_MANAGER_BIND"),
    "manager.port": (9601, "TASKD_MANAGER_PORT"),
    "manager.key": ("", "TASKD_MANAGER_KEY TASKD_KEY"),
    "manager.key_file": ("", "TASKD_MANAGER_KEY_FILE TASKD_KEY_FILE"),
    "manager.journal": (True, "TASKD_MANAGER_JOURNAL"),
    "agent.beat_interval_ms": (100, "TASKD_AGENT_BEAT_INTERVAL_MS"),
    "agent.linger_ms": (2000, "TASKD_AGENT_LINGER_MS"),
    "agent.devices": ("auto", "TASKD_AGENT_DEVICES"),
    "worker.beat_period_ms": (50, "TASKD_WORKER_BEAT_PERIOD_MS"),
    "worker.register_wait_ms": (3000, "TASKD_WORKER_REGISTER_WAIT_MS"),
    "worker.inner": ("rail", "TASKD_WORKER_INNER TASKD_INNER"),
    "proxy.host": ("127.0.0.1", "TASKD_PROXY_HOST"),
    "proxy.port": (9602, "TASKD_PROXY_PORT"),
    "recover.process_recover": (
        False,
        "TASKD_RECOVER_PROCESS_RECOVER PROCESS_RECOVER ELASTIC_PROCESS_RECOVER_ENABLE",
    ),
    "recover.strategies": (ALL_STRATEGIES, "TASKD_RECOVER_STRATEGIES HIGH_AVAILABILITY"),
    "recover.restart_fault_process": (False, "TASKD_RECOVER_RESTART_FAULT_PROCESS ENABLE_RESTART_FAULT_PROCESS"),
    "recover.max_restarts": (3, "TASKD_RECOVER_MAX_RESTARTS"),
    "recover.policy": ("", "TASKD_RECOVER_POLICY TASKD_POLICY"),
    "recover.spare_wait_ms": (20_000, "TASKD_RECOVER_SPARE_WAIT_MS"),
    "recover.unrepaired_ms": (15_000, "TASKD_RECOVER_UNREPAIRED_MS"),
    "recover.hang": ("replace", "TASKD_RECOVER_HANG"),
    "recover.term_wait_ms": (25_000, "TASKD_RECOVER_TERM_WAIT_MS"),
    "recover.never_retry": ("", "TASKD_RECOVER_NEVER_RETRY"),
    "recover.another_loss": ("start-over", "TASKD_RECOVER_ANOTHER_LOSS"),
    "recover.keep_shards": ("auto", "TASKD_RECOVER_KEEP_SHARDS"),
    "rail.rails": ("", "TASKD_RAIL_RAILS TASKD_RAILS"),
    "rail.ports": ("", "TASKD_RAIL_PORTS"),
    "retry.levels": (("L0", "L1", "L2"), "TASKD_RETRY_LEVELS"),
    "retry.max_count": (3, "TASKD_RETRY_MAX_COUNT"),
    "retry.hold_ms": (5000, "TASKD_RETRY_HOLD_MS"),
    "retry.interval_ms": (1000, "TASKD_RETRY_INTERVAL_MS"),
    "pause.limit_ms": (300_000, "TASKD_PAUSE_LIMIT_MS"),
    "log.path": ("", "TASKD_LOG_PATH"),
    "log.file_level": ("info", "TASKD_LOG_FILE_LEVEL TASKD_FILE_LOG_LEVEL"),
    "log.std_level": ("warning", "TASKD_LOG_STD_LEVEL TASKD_STD_LOG_LEVEL"),
    "log.stdout": (True, "TASKD_LOG_STDOUT"),
}


def load(environ: dict[str, str] | None = None, **overrides: Any) -> Config:
    return config.load(environ=environ or {}, **overrides)


def source_of(loaded: Config, path: str) -> str:
    return {row[0]: row[2] for row in config.explain(loaded)}[path]


def another(leaf: Leaf) -> tuple[str, Any]:
    """Return a value that is not the default: its text, and the value that the text becomes."""
    default = config.value_at(Config(), leaf.path)
    if leaf.kind == "int":
        value = leaf.meta["low"] if default != leaf.meta["low"] else leaf.meta["high"]
        return str(value), value
    if leaf.kind == "bool":
        return ("off", False) if default else ("on", True)
    if leaf.kind == "tuple[str, ...]":
        return leaf.meta["choices"][-1], (leaf.meta["choices"][-1],)
    if leaf.meta["choices"]:
        value = next(choice for choice in leaf.meta["choices"] if choice != default)
        return value, value
    others = {"manager.key": "ab" * 32, "job.run_dir": "/var/run/elsewhere", "rail.ports": "20000-20999"}
    others["recover.never_retry"] = "ValueError, script.Stop"
    text = others.get(leaf.path, "another-1")
    return text, text


def test_the_set_of_options_is_a_decision() -> None:
    found = {path: " ".join(leaf.variables) for path, leaf in config.leaves().items()}
    assert found == {path: names for path, (_, names) in OPTIONS.items()}
    for path, (default, _) in OPTIONS.items():
        if default is not COMPUTED:
            assert config.value_at(Config(), path) == default, path
    assert Config().job.run_dir == f"/tmp/taskd-{os.getuid()}"
    assert Config().job.node == os.uname().nodename


def test_every_option_has_a_sentence_and_a_unit() -> None:
    for path, leaf in config.leaves().items():
        assert leaf.doc.endswith(".") and len(leaf.doc) > 20, path
        if any(word in path for word in ("period", "interval", "wait", "limit", "linger", "hold")):
            assert path.endswith("_ms"), f"{path} is a duration without its unit"


def test_defaults_lie_within_their_own_bounds() -> None:
    loaded = load(**{path.replace(".", "_"): config.value_at(Config(), path) for path in config.leaves()})
    assert loaded == Config()


@pytest.mark.parametrize("leaf", config.leaves().values(), ids=lambda leaf: leaf.path)
def test_each_option_is_set_by_each_source(leaf: Leaf, tmp_path: Path) -> None:
    text, value = another(leaf)
    given = load({leaf.variables[0]: text})
    assert config.value_at(given, leaf.path) == value
    assert source_of(given, leaf.path) == f"environment {leaf.variables[0]}"

    file = tmp_path / "taskd.yaml"
    group, dot, name = leaf.path.rpartition(".")
    file.write_text(f"{group}:\n  {name}: '{text}'\n" if dot else f"{name}: '{text}'\n")
    given = load({"TASKD_CONFIG": str(file)})
    assert config.value_at(given, leaf.path) == value
    assert source_of(given, leaf.path) == f"file {file}"

    for overrides in ({leaf.path.replace(".", "_"): value}, {leaf.path: text}, {group: {name: value}} if dot else {}):
        given = load(**overrides)
        if overrides:
            assert config.value_at(given, leaf.path) == value
            assert source_of(given, leaf.path) == "keyword"


def test_keyword_beats_environment_beats_file_beats_hint_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "taskd.yaml"
    file.write_text("manager: {host: from-file, port: 1111}\n")
    hint = {"MASTER_ADDR": "from-hint"}
    in_file = {**hint, "TASKD_CONFIG": str(file)}
    in_environment = {**in_file, "TASKD_MANAGER_HOST": "from-environment"}
    assert load().manager.host == "127.0.0.1"
    assert load(hint).manager.host == "from-hint"
    assert source_of(load(hint), "manager.host") == "default from MASTER_ADDR"
    assert load(in_file).manager.host == "from-file"
    assert load(in_environment).manager.host == "from-environment"
    assert load(in_environment, manager_host="from-keyword").manager.host == "from-keyword"
    assert load(in_environment).manager.port == 1111


def test_none_and_empty_mean_not_given() -> None:
    assert load({"MINDX_TASK_ID": "", "TASKD_MANAGER_PORT": "  "}, job_id=None, manager=None) == Config()


def test_names_of_the_original() -> None:
    loaded = load(
        {
            "MINDX_TASK_ID": "a1b2-c3",
            "ELASTIC_PROCESS_RECOVER_ENABLE": "1",
            "HIGH_AVAILABILITY": "dump, retry,recover",
            "ENABLE_RESTART_FAULT_PROCESS": "on",
            "HCCL_OP_RETRY_ENABLE": "L0:0, L1:1, L2:1",
            "HCCL_OP_RETRY_PARAMS": "MaxCnt:5, HoldTime:6000, IntervalTime:700",
            "HCCL_CONNECT_TIMEOUT": "200",
            "POD_IP": "10.0.0.7",
            "LOCAL_WORLD_SIZE": "8",
        }
    )
    assert loaded.job.id == "a1b2-c3"
    assert loaded.recover.process_recover and loaded.recover.restart_fault_process
    assert loaded.recover.strategies == ("retry", "recover", "dump")
    assert loaded.recover.allowed == ("retry", "recover-in-place", "recover", "dump", "exit")
    assert loaded.retry == config.RetryConfig(levels=("L1", "L2"), max_count=5, hold_ms=6000, interval_ms=700)
    assert loaded.pause.limit_ms == 500_000
    assert (loaded.job.address, loaded.job.proc_per_node) == ("10.0.0.7", 8)
    assert source_of(loaded, "retry.max_count") == "environment HCCL_OP_RETRY_PARAMS"


@pytest.mark.parametrize(
    ("text", "enabled"), [("off", False), ("OFF", False), ("on", True), ("false", True), ("0", True), ("", True)]
)
def test_only_off_disables(text: str, enabled: bool) -> None:
    assert load({"TASKD_PROCESS_ENABLE": text}).enabled is enabled


@pytest.mark.parametrize(("text", "on"), [("on", True), ("On", True), ("1", True), ("off", False), ("pause", False)])
def test_only_on_recovers(text: str, on: bool) -> None:
    assert load({"PROCESS_RECOVER": text}).recover.process_recover is on
    assert load({"ENABLE_RESTART_FAULT_PROCESS": text}).recover.restart_fault_process is on


@pytest.mark.parametrize(
    ("text", "levels", "count"),
    [
        ("off", (), 3),
        ("on", ("L0", "L1", "L2"), 3),
        ("MaxCnt:7", ("L0", "L1", "L2"), 7),
        ("maxcnt: 7,L1:0", ("L0", "L2"), 7),
        ("L0:0, L1:0, L2:0", (), 3),
    ],
)
def test_retry_in_one_variable(text: str, levels: tuple[str, ...], count: int, tmp_path: Path) -> None:
    for loaded in (load({"TASKD_RETRY": text}), load(retry=text)):
        assert (loaded.retry.levels, loaded.retry.max_count) == (levels, count)
    file = tmp_path / "taskd.yaml"
    file.write_text(f"retry: {text if ':' not in text else repr(text)}\n")
    assert load(file=str(file)).retry.levels == levels


def test_the_own_variable_is_stronger_than_the_collected_one() -> None:
    environ = {"TASKD_RETRY": "MaxCnt:7", "TASKD_RETRY_MAX_COUNT": "2", "HCCL_OP_RETRY_PARAMS": "MaxCnt:9, HoldTime:1"}
    loaded = load(environ)
    assert (loaded.retry.max_count, loaded.retry.hold_ms) == (2, 1)


@pytest.mark.parametrize(("seconds", "limit_ms"), [("120", 300_000), ("2880", 7_200_000), ("7200", 7_200_000)])
def test_connect_timeout_bounds_a_pause(seconds: str, limit_ms: int) -> None:
    assert load({"HCCL_CONNECT_TIMEOUT": seconds}).pause.limit_ms == limit_ms


REFUSED = [
    ({}, {"manager_prot": 1}, ["manager_prot", "no such setting", "keyword", "did you mean manager.port?"]),
    ({}, {"manager": {"prot": 1}}, ["manager.prot", "no such setting", "did you mean manager.port?"]),
    ({}, {"manager": 7}, ["manager", "not a mapping", "host, bind, port"]),
    ({}, {"manager_port": 0}, ["manager.port", "0 is too small", "1 to 65535"]),
    ({}, {"manager_port": True}, ["manager.port", "True is not a whole number"]),
    ({}, {"manager_port": 96.5}, ["manager.port", "96.5 is not a whole number"]),
    ({}, {"manager_port": [1]}, ["manager.port", "not a whole number"]),
    ({}, {"job_id": 17}, ["job.id", "17 is not text", "quotes"]),
    ({}, {"job_id": "a/b"}, ["job.id", "'a/b'", "letters, digits"]),
    ({}, {"job_id": "a" * 65}, ["job.id", "1 to 64"]),
    ({}, {"job_run_dir": "here"}, ["job.run_dir", "'here'", "an absolute path"]),
    ({}, {"recover_strategies": ["retry", "pray"]}, ["recover.strategies", "'pray'", "elastic-training"]),
    ({}, {"recover_strategies": 5}, ["recover.strategies", "not a list of names"]),
    ({}, {"worker_inner": "tcp"}, ["worker.inner", "'tcp'", "rail, gloo"]),
    ({}, {"enabled": "perhaps"}, ["enabled", "'perhaps'", "on or off"]),
    ({"TASKD_MANAGER_PORT": "high"}, {}, ["manager.port", "'high'", "environment TASKD_MANAGER_PORT", "65535"]),
    ({"TASKD_MANAGER_PORT": "65536"}, {}, ["manager.port", "too large"]),
    ({"TASKD_MANAGER_PORT": "٣"}, {}, ["manager.port", "not a whole number"]),
    ({"HIGH_AVAILABILITY": "retry;dump"}, {}, ["recover.strategies", "environment HIGH_AVAILABILITY"]),
    ({"HCCL_OP_RETRY_PARAMS": "MaxCnt:11"}, {}, ["HCCL_OP_RETRY_PARAMS", "MaxCnt", "too large", "1 to 10"]),
    ({"HCCL_OP_RETRY_PARAMS": "MaxCount:3"}, {}, ["HCCL_OP_RETRY_PARAMS", "'MaxCount:3' is not understood"]),
    ({"HCCL_OP_RETRY_PARAMS": "L0:1"}, {}, ["HCCL_OP_RETRY_PARAMS", "'L0:1' is not understood"]),
    ({"HCCL_OP_RETRY_ENABLE": "L0:2"}, {}, ["HCCL_OP_RETRY_ENABLE", "neither 0 nor 1"]),
    ({"HCCL_OP_RETRY_ENABLE": "L3:1"}, {}, ["HCCL_OP_RETRY_ENABLE", "'L3:1' is not understood"]),
    ({"HCCL_CONNECT_TIMEOUT": "0"}, {}, ["HCCL_CONNECT_TIMEOUT", "whole number of seconds"]),
    ({"HCCL_CONNECT_TIMEOUT": "2m"}, {}, ["HCCL_CONNECT_TIMEOUT", "'2m'"]),
    ({"TASKD_RAILS": "a=eth1;b=eth2"}, {}, ["rail.rails", "environment TASKD_RAILS", "NAME=INTERFACE"]),
    ({"TASKD_RAILS": "a=eth1,,b=eth2"}, {}, ["rail.rails", "does not fit"]),
    ({"TASKD_RAIL_PORTS": "20000"}, {}, ["rail.ports", "a range like 20000-20999"]),
    ({"TASKD_RETRY": "sometimes"}, {}, ["TASKD_RETRY", "'sometimes'", "off, on"]),
]


@pytest.mark.parametrize(("environ", "overrides", "parts"), REFUSED, ids=lambda value: str(value)[:40])
def test_refusals_name_the_path_the_wrong_and_the_allowed(
    environ: dict[str, str], overrides: dict[str, Any], parts: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        load(environ, **overrides)
    for part in [*parts, "allowed: "]:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (b"- a\n- b\n", ["holds a list, not a mapping"]),
        (b"just words\n", ["holds a str, not a mapping"]),
        (b"manager: {port: 1\n", ["not valid YAML", "line"]),
        (b"a: &a [*a]\n\tb: 1", ["not valid YAML"]),
        (b"x: !!python/object/apply:os.getcwd []\n", ["not valid YAML"]),
        (b"\xff\xfe\x00", ["not UTF-8"]),
        (b"manger:\n  port: 1\n", ["manger", "no such setting", "did you mean manager?"]),
        (b"manager:\n  port: many\n", ["manager.port", "'many'", "allowed"]),
        (b"manager:\n  1: 2\n", ["manager.1", "no such setting"]),
        (b"7: 8\n", ["7", "no such setting"]),
        (b"job:\n  id: 2024\n", ["job.id", "put it in quotes"]),
        (b"manager.port: 3\n", ["manager.port", "no such setting"]),
        (b"[" * 5000, ["not valid YAML"]),
        (b"#" * (1024 * 1024 + 2), ["larger than"]),
    ],
    ids=lambda value: str(value)[:30],
)
def test_files_that_are_refused(tmp_path: Path, text: bytes, parts: list[str]) -> None:
    file = tmp_path / "taskd.yaml"
    file.write_bytes(text)
    with pytest.raises(UsageError) as caught:
        load({"TASKD_CONFIG": str(file)})
    for part in [*parts, str(file)]:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, reason in [
        (tmp_path / "none.yaml", "No such file"),
        (tmp_path, "Is a directory"),
        (tmp_path / ("n" * 300), "File name too long"),
    ]:
        with pytest.raises(
            UsageError, match=f"TASKD_CONFIG: the file .* cannot be read \\({reason}.*\\); name a readable"
        ):
            load({"TASKD_CONFIG": str(path)})


def test_a_file_of_somebody_else(run_python: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "taskd.yaml"
    file.write_text("enabled: on\n")
    file.chmod(0)
    code = (
        "import os, sys\nfrom taskd import config\n"
        "if os.geteuid() == 0: os.setresuid(65534, 65534, 65534)  # root may read every file\n"
        "try: config.load(file=sys.argv[1])\n"
        "except config.sources.UsageError as error: print(error)"
    )
    said = run_python(code, str(file)).stdout
    assert said == f"file: the file {str(file)!r} cannot be read (Permission denied); name a readable YAML file\n"


def test_files_that_say_nothing(tmp_path: Path) -> None:
    file = tmp_path / "taskd.yaml"
    for text in ("", "# only a comment\n", "manager:\njob:\n  id:\n"):
        file.write_text(text)
        assert load(file=str(file)) == Config()


def test_unknown_variables_cost_a_warning(run_python: Callable[..., Any]) -> None:
    code = "from taskd import config\nfor _ in range(3): print(config.load().manager.port)"
    environ = {
        "TASKD_MANAGR_PORT": "9",
        "TASKD_MANAGER_PORT": "tcp://10.0.0.7:9601",  # Kubernetes sets this for a Service called taskd-manager
        "TASKD_MANAGER_SERVICE_HOST": "10.0.0.7",
        "TASKD_MANAGER_PORT_9601_TCP_ADDR": "10.0.0.7",
        "_TASKD_CHILD": "1",
    }
    done = run_python(code, env=environ)
    assert done.stdout.split() == ["9601"] * 3
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert "TASKD_MANAGER_PORT=tcp://10.0.0.7:9601" in lines[0] and "enableServiceLinks" in lines[0]
    assert "TASKD_MANAGR_PORT" in lines[1] and "did you mean TASKD_MANAGER_PORT?" in lines[1]


def test_hints_that_do_not_fit_are_no_error() -> None:
    assert load({"LOCAL_WORLD_SIZE": "many", "GROUP_WORLD_SIZE": "0"}).job == Config().job


def test_the_key_is_shown_nowhere() -> None:
    secret = "5ec2e7" * 10 + "abcd"
    loaded = load(manager_key=secret)
    assert secret not in repr(loaded)
    assert ("manager.key", "(hidden)", "keyword") in config.explain(loaded)
    with pytest.raises(UsageError) as caught:
        load({"TASKD_KEY": secret[:-1]})
    assert secret[:-1] not in str(caught.value)


def test_importing_it_loads_nothing_heavy(run_python: Callable[..., Any]) -> None:
    code = "import sys\nimport taskd.config\nprint(*{'torch', 'yaml', 'zmq', 'numpy', 'logging'} & set(sys.modules))"
    assert not run_python(code).stdout.split()


LEAF = st.sampled_from(sorted(config.leaves()))
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300)
@given(LEAF, ANYTHING)
def test_any_value_is_taken_or_refused_in_a_sentence(path: str, value: Any) -> None:
    group = path.partition(".")[0]
    for overrides in ({path: value}, {group: value}):
        try:
            assert isinstance(load(**overrides), Config)
        except UsageError as error:
            assert "\n" not in str(error).rstrip()


@settings(max_examples=300)
@given(
    st.sampled_from(["TASKD_RETRY", "TASKD_KEY", *(f"HCCL_{name}" for name in HCCL_NAMES)]),
    st.text(alphabet="L012:,MaxCnt HoldTime9-é\n", max_size=30) | st.text(max_size=20),
)
def test_any_variable_is_taken_or_refused_in_a_sentence(variable: str, text: str) -> None:
    try:
        assert isinstance(load({variable: text}), Config)
    except UsageError as error:
        assert str(error)
