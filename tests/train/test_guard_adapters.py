"""Tests the guard around a stream-ordered backend: it is chosen by torch's name and passes operations through. Its
operations are given up, and its inner group is aborted and rebuilt.

Two real ranks run workers/guard_adapters.py, which has the scenarios and what each one proves. The behaviour of a real
device is tested in tests/comm/test_nccl_gpu.py.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.train.guarded import WORKERS, Ranks

SIZE = 2


def scenarios(mark: str) -> list[str]:
    tree = ast.parse((WORKERS / "guard_adapters.py").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [node.name for node in functions if mark in {ast.unparse(one) for one in node.decorator_list}]


def run(folder: Path, backend: str) -> dict[str, list[str]]:
    with Ranks("guard_adapters", SIZE, folder, backend) as ranks:
        said = ranks.results()
    return {said_of[0]["scenario"]: [one["outcome"] for one in said_of] for said_of in zip(*said, strict=True)}


@pytest.fixture(scope="module")
def over_nccl(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return run(tmp_path_factory.mktemp("nccl"), "nccl")


@pytest.mark.parametrize("name", scenarios("scenario"))
def test_before_nccl(over_nccl: dict[str, list[str]], name: str) -> None:
    assert over_nccl[name] == ["ok"] * SIZE


def test_before_hccl(tmp_path: Path) -> None:
    names = scenarios("scenario_of_hccl")
    assert run(tmp_path, "hccl") == {name: ["ok"] * SIZE for name in names}
