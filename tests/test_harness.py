"""What the tests stand on: the helpers of --beside lose no outcome, and a forked script is like a started one."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked
from tests.patience import BUILD_S
from tests.source import ROOT

pytestmark = pytest.mark.limit(BUILD_S)

CONFTEST = """
import os
from tests import beside
def pytest_addoption(parser): beside.add_options(parser)
def pytest_configure(config): beside.configure(config, dict(os.environ))
"""
SETTINGS = """
[tool.pytest.ini_options]
testpaths = ["tests"]
pythonpath = ["."]
addopts = ["-ra", "--import-mode=importlib"]
"""
COMPUTES = """
import os, pytest
from tests import beside
def test_passes(): assert os.nice(0) == min(19, int(os.environ["NICE"]) + beside.NICE)
def test_fails(): assert {1: object()} == {2: object()}, "its reason"
def test_skips(): pytest.skip("its excuse")
@pytest.fixture
def broken():
    yield
    raise ValueError("its teardown")
def test_teardown(broken): pass
"""
DIES = """
import os
def test_before(): pass
def test_dies(): os._exit(9)
def test_after(): pass
"""
WAITS = """
import os, pathlib, time
def test_waits():
    while not list(pathlib.Path(os.environ["SEEN"]).iterdir()): time.sleep(0.01)
    assert os.nice(0) == int(os.environ["NICE"])
"""
SEES = """
import os, pathlib
def test_is_beside(): (pathlib.Path(os.environ["SEEN"]) / "it").touch()
"""
MEETS = """
import os, pathlib, time
def test_meets():
    seen = pathlib.Path(os.environ["SEEN"])
    (seen.parent / __name__).touch()
    while not len(list(seen.parent.glob("*test_?_meets"))) == 2: time.sleep(0.01)
    (seen / "it").touch()
"""


def run(folder: Path, code: int = 1, **files: str) -> str:
    """What pytest says of a project with these files in tests/core, and one test of its own that waits for them."""
    (folder / "tests" / "core").mkdir(parents=True)
    (folder / "seen").mkdir()
    shutil.copy(ROOT / "tests" / "beside.py", folder / "tests")
    (folder / "tests" / "conftest.py").write_text(CONFTEST)
    (folder / "tests" / "test_waits.py").write_text(WAITS)
    for name, text in {"test_a_sees": SEES, **files}.items():
        (folder / "tests" / "core" / f"{name}.py").write_text(text)
    (folder / "pyproject.toml").write_text(SETTINGS)
    # In a CI, which pytest knows by these variables, it says every failure's whole text a second time in its summary.
    ours = {name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--beside"],
        cwd=folder,
        env={**ours, "SEEN": str(folder / "seen"), "NICE": str(os.nice(0))},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


needs_two = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor: nothing runs beside anything")


@needs_two
def test_every_outcome_of_the_helper_is_reported(tmp_path: Path) -> None:
    said = run(tmp_path, test_b_computes=COMPUTES)
    assert "1 failed, 4 passed, 1 skipped, 1 error" in said, said
    assert "its reason" in said and "its teardown" in said and re.search(r"SKIPPED .*its excuse", said), said


@needs_two
def test_two_helpers_run_at_once(tmp_path: Path) -> None:
    """Two files wait for each other, and this process' own test for both."""
    said = run(tmp_path, code=0, test_a_sees="", test_b_meets=MEETS, test_c_meets=MEETS)
    assert "3 passed" in said, said


@needs_two
def test_a_helper_that_dies_fails_what_it_left_undone(tmp_path: Path) -> None:
    said = run(tmp_path, test_b_dies=DIES)
    assert "2 failed, 3 passed" in said, said
    assert re.findall(r"FAILED \S+::(\w+)", said) == ["test_dies", "test_after"]
    assert said.count("the helper of --beside ended with 9 before this was done") == 2, said


SCRIPT = """
import logging, os, signal, sys
import torch
if sys.argv[1] == "tells":
    sys.exit(f"level {logging.getLogger('taskd').level}")
print(sys.argv[1:], os.getcwd(), os.environ["ONLY"], "HOME" in os.environ, __name__, hash("text"), flush=True)
if sys.argv[1] == "dies":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "waits":
    signal.pause()
import atexit
atexit.register(print, "the very end")
sys.exit(3)
"""


def test_a_forked_script_is_like_a_started_one(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {"ONLY": "this", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def start(number: int, *words: str) -> forked.Forked:
        return forked.start([str(script), *words], environment, tmp_path, number)

    ends, other, dies, waits = start(0, "ends", "1"), start(1, "ends", "1"), start(0, "dies"), start(0, "waits")
    said, _ = ends.communicate(60)
    assert said.startswith(f"['ends', '1'] {tmp_path} this False __main__ "), said
    assert said.endswith("the very end\n") and ends.returncode == 3
    assert other.communicate(60)[0] != said, "two ranks order their sets in one way"
    assert dies.wait(60) == -signal.SIGKILL and dies.poll() == -signal.SIGKILL
    with pytest.raises(subprocess.TimeoutExpired):
        waits.communicate(0.01)
    assert waits.poll() is None
    waits.kill()
    assert waits.communicate(60)[0].startswith("['waits']") and waits.returncode == -signal.SIGKILL
    dies.communicate()
    for level in ("INFO", "WARNING"):
        environment["TASKD_STD_LOG_LEVEL"] = level
        assert start(0, "tells").communicate(60)[0] == f"level {getattr(logging, level)}\n"
