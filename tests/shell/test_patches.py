"""The patches: each one applies once to the file that it is for, and the patched file still runs."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES = ["import taskd.python.adaptor.patch", "import mindx_elastic.api"]


@pytest.fixture
def torchrun(tmp_path: Path) -> Path:
    """A copy of torch's launcher."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    return Path(shutil.copy(Path(spec.origin).parent / "distributed" / "run.py", tmp_path / "run.py"))


def test_the_torchrun_patch_applies_once(torchrun: Path, run_python) -> None:  # type: ignore[no-untyped-def]
    before = torchrun.read_text()
    for _ in range(2):
        subprocess.run(["sed", "-i", "-f", str(ROOT / "patches" / "torchrun.sed"), str(torchrun)], check=True)
    after = torchrun.read_text()
    assert after.count(LINES[0]) == 1
    assert after.replace(LINES[0] + "\n", "") == before
    assert "usage" in run_python(torchrun, "--help").stdout


@pytest.mark.parametrize("line", LINES)
def test_the_lines_that_users_apply_still_work(torchrun: Path, line: str, run_python) -> None:  # type: ignore[no-untyped-def]
    # The users' own command anchors at `import logging`, which torch 2.13 no longer has. Only the line counts.
    subprocess.run(["sed", "-i", f"/^import os$/i {line}", str(torchrun)], check=True)
    assert line in torchrun.read_text()
    assert "usage" in run_python(torchrun, "--help").stdout
