"""Tests the guard's modes, one scenario each. Errors are held, announced or let go; guards are parked, drained or
reconfigured.

Two real ranks run workers/guard_modes.py, which has the scenarios and what each one proves. Real connections are cut.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.train.guarded import WORKERS, Ranks

SIZE = 2


def scenarios() -> list[str]:
    tree = ast.parse((WORKERS / "guard_modes.py").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [node.name for node in functions if "scenario" in {ast.unparse(mark) for mark in node.decorator_list}]


@pytest.fixture(scope="module", params=["gloo", "rail"])
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    # Normally a rail that is cut is dialled again. Here it must stay lost, so retries are off.
    with Ranks("guard_modes", SIZE, folder, env={"TASKD_INNER": request.param, "TASKD_RETRY": "off"}) as ranks:
        said = ranks.results()
    return {said_of[0]["scenario"]: [one["outcome"] for one in said_of] for said_of in zip(*said, strict=True)}


@pytest.mark.parametrize("name", scenarios())
def test_mode(outcomes: dict[str, list[str]], name: str) -> None:
    assert outcomes[name] == ["ok"] * SIZE
