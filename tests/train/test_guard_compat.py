"""Tests guarded groups in every shape: meshes, groups made after a fault, groups that are destroyed and set up again,
compiled code, two backends.

Four real ranks run workers/guard_compat.py, which has the scenarios and what each one proves.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.train.guarded import WORKERS, Ranks

pytestmark = pytest.mark.slow

SIZE = 4


def scenarios() -> list[str]:
    tree = ast.parse((WORKERS / "guard_compat.py").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [node.name for node in functions if "scenario" in {ast.unparse(mark) for mark in node.decorator_list}]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder: Path = tmp_path_factory.mktemp("compat")
    with Ranks("guard_compat", SIZE, folder) as ranks:
        said = ranks.results()
    return {said_of[0]["scenario"]: [one["outcome"] for one in said_of] for said_of in zip(*said, strict=True)}


@pytest.mark.parametrize("name", scenarios())
def test_shape(outcomes: dict[str, list[str]], name: str) -> None:
    assert outcomes[name] == ["ok"] * SIZE
