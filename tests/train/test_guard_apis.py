"""Everything that torch.distributed offers works over guarded groups as it does over plain gloo.

Two real ranks run workers/guard_apis.py, once for each way in which a group gets its guard. Each API is a test of its
own. No test here causes a fault on purpose: the other test_guard_*.py files do.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.train.guarded import WORKERS, Ranks

SIZE = 2
RunPython = Callable[..., "subprocess.CompletedProcess[str]"]


def cases(kind: str) -> list[str]:
    """Return the names of the worker's cases. They are read from its source, so that no new case is forgotten here."""
    files = sorted(WORKERS.glob("cases_*.py"))
    functions = [
        node for file in files for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)
    ]
    return [node.name for node in functions if kind in {ast.unparse(mark) for mark in node.decorator_list}]


Outcomes = dict[str, list[str]]


def run(folder: Path, how: str, *names: str, env: dict[str, str] | None = None) -> Outcomes:
    with Ranks("guard_apis", SIZE, folder, how, *names, env=env) as ranks:
        said = ranks.results()
    return {said_of[0]["case"]: [one["outcome"] for one in said_of] for said_of in zip(*said, strict=True)}


@pytest.fixture(scope="module", params=["install", "adopt"])
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return run(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.parametrize("name", [*cases("case"), "the end"])
def test_api(outcomes: Outcomes, name: str) -> None:
    assert outcomes[name] == ["ok"] * SIZE


@pytest.mark.slow
def test_compiled_collectives(tmp_path: Path) -> None:
    names = cases("compiled_case")
    found = run(tmp_path, "install", *names, env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")})
    assert found == {name: ["ok"] * SIZE for name in [*names, "the end"]}


def test_debug_mode_of_torch(tmp_path: Path) -> None:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL wraps the guard and uses a second group before each operation."""
    names = ["all_reduce", "objects", "barriers", "ddp"]
    found = run(tmp_path, "install", *names, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    del found["the end"]  # torch's wrapper never shuts its second group down
    assert found == {name: ["ok"] * SIZE for name in names}


def test_another_torch_is_refused_in_one_sentence(run_python: RunPython) -> None:
    """`import taskd` itself still works: only `taskd._c10d` is refused."""
    said = run_python(
        "import torch, taskd, taskd.errors\n"
        "torch.__version__ = '2.12.1'\n"
        "try:\n"
        "    import taskd._c10d\n"
        "except ImportError as refused:\n"
        "    print(refused)\n"
    ).stdout
    assert said.strip() == (
        "taskd._c10d was built for torch 2.13, but torch 2.12.1 runs; reinstall taskd with "
        "`pip install --no-build-isolation` under this torch."
    )
