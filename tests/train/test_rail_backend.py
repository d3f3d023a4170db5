"""Tests the rail backend by itself. Each operation, drawn by seed, equals gloo and a plain reduction in rank order.

Real processes use two rails of loopback addresses. They run workers/rail_ops.py (operations drawn by seed),
workers/rail_bad_input.py (wrong use, aborts, signals, forks), workers/rail_leave.py (the end of a process) and
workers/guard_apis.py (what frameworks do, without a guard). Faults of rails are tested in tests/rail.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.train.guarded import WORKERS, Ranks
from tests.train.test_guard_apis import cases, run

RAILS = {"TASKD_RAILS": "a=127.0.0.2,b=127.0.0.3"}
ROUNDS = 60


@pytest.mark.parametrize(("size", "seed"), [(2, 1), (2, 2), (4, 3), (4, 4)])
def test_drawn_operations_equal_the_reference(tmp_path: Path, size: int, seed: int) -> None:
    with Ranks("rail_ops", size, tmp_path, str(seed), str(ROUNDS), env=RAILS) as ranks:
        assert [said[-1] for said in ranks.results()] == [{"rounds": ROUNDS}] * size


def bad_input_cases() -> list[str]:
    tree = ast.parse((WORKERS / "rail_bad_input.py").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [node.name for node in functions if "case" in {ast.unparse(mark) for mark in node.decorator_list}]


@pytest.mark.parametrize("name", bad_input_cases())
def test_what_goes_wrong_is_said(tmp_path: Path, name: str) -> None:
    size = 3
    with Ranks("rail_bad_input", size, tmp_path, name, env=RAILS) as ranks:
        said = ranks.results()
    assert [[one["outcome"] for one in of_rank] for of_rank in said] == [["ok"]] * size


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return run(tmp_path_factory.mktemp("rail"), "rail", env=RAILS)


@pytest.mark.parametrize("name", [*cases("case"), "the end"])
def test_api_without_a_guard(outcomes: dict[str, list[str]], name: str) -> None:
    if name in cases("guarded"):
        pytest.skip("this case is about guards, or needs what torch offers for gloo alone")
    assert outcomes[name] == ["ok"] * 2


@pytest.mark.slow
def test_compiled_collectives_without_a_guard(tmp_path: Path) -> None:
    names = cases("compiled_case")
    env = {**RAILS, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    assert run(tmp_path, "rail", *names, env=env) == {name: ["ok"] * 2 for name in [*names, "the end"]}


@pytest.mark.parametrize("how", ["leave", "vanish"])
def test_what_a_rank_gave_outlives_its_process(tmp_path: Path, how: str) -> None:
    """Rails that are merely lost would be waited for longer than the test lasts."""
    env = {**RAILS, "TASKD_RETRY": "MaxCnt:10, HoldTime:60000, IntervalTime:60000"}
    with Ranks("rail_leave", 3, tmp_path, how, env=env) as ranks:
        none, *others = ranks.results()
    assert none == []
    for rank, (said,) in enumerate(others, start=1):
        assert said["told"] == [0.0] and said["message"] == [float(rank)] * 3 and said["sender"] == 0
        assert "rank 0" in said["all_reduce"] and "it has left" in said["all_reduce"]
        assert "rank 0" in said["recv"] and "it has left" in said["recv"]


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"TASKD_RAILS": "a=127.0.0.2,b=nowhere9"}, "nowhere9"),
        ({"TASKD_RAILS": "a=10.255.255.1"}, "10.255.255.1"),
        ({"TASKD_RAILS": "a=,b"}, "TASKD_RAILS"),
        ({"TASKD_RAILS": "a=127.0.0.2", "TASKD_RAIL_PORTS": "23456-23456"}, "TASKD_RAIL_PORTS"),  # one port is too few
    ],
)
def test_a_rail_that_cannot_be_is_named_with_the_cure(tmp_path: Path, env: dict[str, str], words: str) -> None:
    with Ranks("rail_ops", 2, tmp_path, "1", "1", env=env) as ranks:
        said = [process.communicate(timeout=PATIENCE_S)[0] for process in ranks.processes.values()]
    assert all(words in text for text in said), said
