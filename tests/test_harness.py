"""Tests of the test tools: the gate's verdicts, hangs that cost only one test, scripts that are forked, not started."""

from __future__ import annotations

import logging
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked, starve, tiers, verdicts
from tests.patience import BUILD_S, PATIENCE_S
from tests.source import ROOT

pytestmark = pytest.mark.limit(BUILD_S)

SETTINGS = """
[tool.pytest.ini_options]
testpaths = ["its"]
pythonpath = ["."]
addopts = ["-ra", "--import-mode=importlib"]
markers = ["limit(seconds)", "slow", "root", "gpu"]
"""
ONCE = """
import pathlib, pytest
def once(name, text="by chance"):
    seen = pathlib.Path("seen-" + name)
    if not seen.exists():
        seen.touch()
        pytest.fail(text)
"""


def gate(folder: Path, tests: str, code: int, *words: str) -> list[str]:
    """Return what tools/gate.py says about a project with these tests."""
    (folder / "its").mkdir()
    (folder / "its" / "conftest.py").write_text("from tests.conftest import *\n")
    (folder / "its" / "test_it.py").write_text(ONCE + tests)
    (folder / "pyproject.toml").write_text(SETTINGS)
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "gate.py"), "gate", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TEST_PATIENCE_S": "10"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return (done.stdout + done.stderr).splitlines() if words else done.stdout.splitlines()


def test_what_passes_alone_is_unsteady_and_green(tmp_path: Path) -> None:
    said = gate(tmp_path, "def test_a(): once('a')\ndef test_b(): pass\n", 0)
    assert said[-2].startswith("unsteady: its/test_it.py::test_a  (passed alone; load "), said
    assert said[-1].startswith("gate: green after 0:"), said


def test_what_fails_alone_is_red(tmp_path: Path) -> None:
    said = gate(tmp_path, "def test_a(): assert False\ndef test_b(): once('b')\n", 1)
    assert said[-3] == "red: its/test_it.py::test_a failed alone, too", said
    assert said[-2].startswith("unsteady: its/test_it.py::test_b"), said


COMPARES = """
class torch:
    def equal(one, other):
        seen = pathlib.Path("seen").exists()
        pathlib.Path("seen").touch()
        return seen
def test_a():
    assert torch.equal([1], [2])
"""
TELLS = """
def test_a(): once("a", "    assert torch.equal([1], [2])\\n           ^^^^^^^\\nAssertionError: they differ")
"""
LEAVES = """
import subprocess
@pytest.fixture(scope="module")
def one(): subprocess.Popen(["sleep", "1000"])
def test_a(one): pass
"""


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        ("\n".join(f"def test_{n}(): once('{n}')" for n in range(6)), "6 tests failed at once, and 5 at most"),
        ("def test_a(): once('a', 'wrong bits: 1 and not 2')", "test_a has found wrong bits"),
        (COMPARES, "test_a has found wrong bits"),
        (TELLS, "test_a has found wrong bits"),
        ("def test_a(): once('a', 'wrong exit code: [1]')", "test_a has found a wrong exit code"),
        ("def test_a(): once('a', '==7==ERROR: AddressSanitizer: x')", "test_a has found a sanitizer's finding"),
        (LEAVES, "it failed outside of any test"),
    ],
    ids=["many", "bits", "unequal", "unequal in a script", "exit code", "sanitizer", "left behind"],
)
def test_what_no_second_run_takes_back(tmp_path: Path, tests: str, reason: str) -> None:
    said = gate(tmp_path, tests, 1)
    assert said[-2].startswith("red: ") and reason in said[-2], said


def test_a_hang_is_no_false_alarm_where_the_tests_stop_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = "taskd[manager]: no progress for 1.6 s: no rank waits in an operation with others; process 7 of rank 1 on"
    stopped, busy = f"{waits} node-0 is stopped by a signal (SIGCONT lets it go on)", f"{waits} node-0 runs"
    for text in (stopped, busy):
        with pytest.raises(pytest.fail.Exception, match="a false alarm"):
            verdicts.no_hang(text)
    monkeypatch.setattr(starve, "begun", True)
    verdicts.no_hang(stopped)
    with pytest.raises(pytest.fail.Exception, match="a false alarm"):
        verdicts.no_hang(busy)


def test_what_others_left_is_told_and_not_judged(tmp_path: Path) -> None:
    stray = subprocess.Popen(["sleep", "1000"], env={"PYTEST_RUN_MARK": "4194305-1"})  # no process has this pid
    try:
        said = gate(tmp_path, "def test_a(): pass\n", 0)
    finally:
        stray.kill()
        stray.wait()
    assert f"gate: process {stray.pid} was left behind by tests that were killed; end it: sleep 1000 " in said, said


HANGS = """
import subprocess, sys, threading
def waits_for_nothing(): threading.Event().wait()
@pytest.mark.limit(3)
def test_hangs():
    code = "import threading\\ndef also_waits(): threading.Event().wait()\\nalso_waits()"
    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        waits_for_nothing()
    finally:
        child.kill()
        child.wait()
def test_later(): pass
"""


def test_a_hang_fails_its_own_test_and_shows_every_process(tmp_path: Path) -> None:
    said = gate(tmp_path, HANGS, 1)
    text = "\n".join(said)
    assert "1 failed, 1 passed" in text and "longer than its limit of 3 s" in text, text
    assert "waits_for_nothing" in text and "also_waits" in text, text
    assert said[-2] == "red: its/test_it.py::test_hangs failed alone, too", said


DIES = """
import os
def test_before(): pass
def test_dies(): os._exit(9)
def test_after(): pass
"""


def test_a_process_that_dies_fails_one_test(tmp_path: Path) -> None:
    said = gate(tmp_path, DIES, 1, "-n", "2")
    text = "\n".join(said)
    assert "1 failed, 2 passed" in text and "crashed while running 'its/test_it.py::test_dies'" in text, text


def test_a_test_has_one_tier_and_a_file_one_process() -> None:
    assert tiers.tier_of("tests/core/test_table.py::test_x") == "gate"
    assert tiers.tier_of("tests/timing/test_pace.py::test_x") == "timing"
    many = [tiers.Test(f"a.py::test_x[{at}]", 3) for at in range(7)] + [tiers.Test("a.py::test_y")]
    more = [tiers.Test("tests/test_packaging.py::test_x"), tiers.Test("tests/timing/test_pace.py::test_x")]
    by_tier = [tiers.of_tier(tier, many + more) for tier in tiers.TIERS]
    assert [len(names) for names in by_tier] == [4, 5, 1]
    assert set.union(*by_tier) == {test.name for test in many + more}
    assert tiers.few_of_many(many) == {"a.py::test_x[0]", "a.py::test_x[3]", "a.py::test_x[6]", "a.py::test_y"}
    kills = [tiers.Test(f"tests/trust/test_a.py::test_{x}[{at}]", is_slow=True) for x in "xyz" for at in range(3)]
    assert tiers.few_of_many(kills) == {"tests/trust/test_a.py::test_x[1]"}
    quick = [tiers.Test(f"tests/trust/test_a.py::test_{x}") for x in "xyz"]
    assert tiers.few_of_many(quick) == {one.name for one in quick}
    files = ["a", "b", *tiers.SECONDS]
    assert tiers.split(files, 2) == tiers.split(reversed(files), 2)
    assert set(tiers.split(files, 2).values()) == {0, 1}
    assert not tiers.is_old({"gw0": 100.0, "gw1": 90.0}, {"a": 190.0})
    first, *more = tiers.is_old({"gw1": 100.0, "gw0": 50.0}, {"a": 6.0, "b": 2.0})
    assert "took 50 and 100 s" in first and [line.strip() for line in more] == ["a: 1, 2", "b: 1, 0"]
    gone = [name for name in tiers.SECONDS if not (ROOT / name).exists()]
    gone += [name for name in tiers.FULL if not (ROOT / name.partition("::")[0]).exists()]
    assert not gone, f"tests/tiers.py names files that are gone: {gone}"


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
    said, _ = ends.communicate(PATIENCE_S)
    assert said.startswith(f"['ends', '1'] {tmp_path} this False __main__ "), said
    assert said.endswith("the very end\n") and ends.returncode == 3
    assert other.communicate(PATIENCE_S)[0] != said, "two ranks order their sets in one way"
    assert dies.wait(PATIENCE_S) == -signal.SIGKILL and dies.poll() == -signal.SIGKILL
    with pytest.raises(subprocess.TimeoutExpired):
        waits.communicate(0.01)  # expires: it waits for a signal
    assert waits.poll() is None
    waits.kill()
    assert waits.communicate(PATIENCE_S)[0].startswith("['waits']") and waits.returncode == -signal.SIGKILL
    dies.communicate()
    for level in ("INFO", "WARNING"):
        environment["TASKD_STD_LOG_LEVEL"] = level
        assert start(0, "tells").communicate(PATIENCE_S)[0] == f"level {getattr(logging, level)}\n"


def test_every_planted_fault_has_its_line() -> None:
    """If such a line has changed since, the fault could no longer be planted, and this would stay unnoticed."""
    for fault in runpy.run_path(str(ROOT / "tools" / "planted.py"))["FAULTS"]:
        found = (ROOT / fault.file).read_text().count(fault.line + "\n")
        assert found == 1, f"{fault.file} has this line {found} times: {fault.line}"
