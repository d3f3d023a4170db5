"""Runs the tests that measure no time beside those that do, in two more processes of low priority.

Most tests wait half of their time, for sockets, deaths and deadlines; others compute. `pytest --beside` (which `make
test` says) starts helpers, other pytests that are nice: whoever measures time still has the processors when it needs
them. The helpers take one file of COMPUTE after the other, and what they report is shown here as if it had run here.
When this process has run its own files it takes from the other end of that list, so that all end together on any
machine.

Without --beside everything runs in one process, one test after the other. It knows nothing of what a test does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

COMPUTE = (
    "tests/rail/test_sessions.py",
    "tests/rail/test_collectives.py",
    "tests/train/test_guard_sanitizers.py",
    "tests/native/test_sanitizers.py",
    "tests/sim/",
    "tests/rail/test_fuzz.py",
    "tests/train/test_guard_storm.py::test_reconfigurations",
    "tests/train/test_heal.py",
    "tests/train/test_heal_bad_input.py",
    "tests/trust/",
    "tests/shell/test_launcher",
    "tests/train/test_rail_backend.py::test_drawn",
    "tests/core/",
    "tests/property/",
    "tests/scripts/",
    "tests/test_packaging.py",
)
"""How the names of those begin that promise nothing about time and wait for nothing that could be late."""
NICE = 5
"""A third of the others' weight: enough that whoever waits for a minute does not wait in vain."""
HELPERS = 2
"""With this process they are one more than the processors of a small machine, since nobody computes all the time."""
PORTS = range(12000, 30000)
LOOKS_EVERY_S = 0.2
LEAVING_S = 30.0
File = list[pytest.Item]
_number = 0
"""Of this process: 0 runs what is not in COMPUTE, the helpers follow."""


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("taskd")
    group.addoption("--beside", action="store_true", help="run what measures no time beside the rest, at low priority")
    group.addoption("--beside-in", metavar="FOLDER", help="how --beside starts its helper")


def configure(config: pytest.Config, environment: Mapping[str, str]) -> None:
    """`environment` is what the helper is started with."""
    if config.option.beside_in:
        config.pluginmanager.register(Helper(config, Path(config.option.beside_in)))
    elif config.option.beside and len(os.sched_getaffinity(0)) > 1:
        config.pluginmanager.register(Beside(config, environment))


def place(item: pytest.Item) -> int:
    """Where COMPUTE names this test; behind its end if it does not."""
    names = (number for number, begin in enumerate(COMPUTE) if item.nodeid.startswith(begin))
    return next(names, len(COMPUTE))


def run(file: File) -> Iterator[None]:
    """Run the tests of one file, pausing after each."""
    for item, following in zip(file, [*file[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        yield


def taken(folder: Path, number: int) -> bool:
    """Take the file of this number; False if the other process has it."""
    try:
        (folder / f"taken-{number}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def ports() -> range:
    """Of these, tests of this process take: two that look for a free one at the same moment never find the same."""
    each = len(PORTS) // (1 + HELPERS)
    return PORTS[_number * each : (_number + 1) * each]


class Helper:
    """Another process: takes files from the beginning of the list, and writes down every report."""

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        global _number
        _number = int(folder.name)
        self.config, self.folder = config, folder.parent
        self.told = (folder / "reports").open("a")
        os.nice(NICE)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        known = {item.nodeid: item for item in session.items}
        for number, names in enumerate(json.loads((self.folder / "files").read_text())):
            if taken(self.folder, number):
                for _ in run([known[name] for name in names]):
                    pass
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        plain = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.told.write(json.dumps(plain, default=str) + "\n")
        self.told.flush()


class Started:
    """A helper, as the process sees it that has started it."""

    def __init__(self, folder: Path, root: Path, environment: Mapping[str, str], paths: list[str]) -> None:
        """`folder` is its own, named by its number."""
        folder.mkdir()
        (folder / "reports").touch()
        self.told = (folder / "reports").open()
        self.begun = ""
        self.said = (folder / "said").open("w+")
        own = ["-o", f"cache_dir={folder}/cache", "--beside-in", str(folder)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *own, *paths],
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self.said,
            stderr=subprocess.STDOUT,
        )

    def lines(self) -> list[str]:
        """What it has reported since this was asked last."""
        *lines, self.begun = (self.begun + self.told.read()).split("\n")
        return lines

    def ended(self, more: str = "") -> str:
        """How it has ended, and what it said last."""
        said = Path(self.said.name).read_text(errors="replace")[-4000:]
        return f"the helper of --beside ended with {self.process.returncode}{more}:\n{said}"

    def end(self) -> None:
        """As Ctrl-C would, so that its tests put away what they started."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(LEAVING_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.said.close()
        self.told.close()


class Beside:
    """This process: runs what is not in COMPUTE, then what no helper has taken, and shows the helpers' reports."""

    def __init__(self, config: pytest.Config, environment: Mapping[str, str]) -> None:
        self.config, self.environment = config, environment
        self.files: dict[int, File] = {}
        """Of COMPUTE, by number: what this process has not run, and not shown yet."""
        self.helpers: list[Started] = []
        self.reports: dict[str, list[pytest.TestReport]] = defaultdict(list)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        files = [list(items) for _, items in groupby(session.items, lambda item: (item.path, place(item)))]
        compute = sorted((file for file in files if place(file[0]) < len(COMPUTE)), key=lambda file: place(file[0]))
        own = [file for file in files if place(file[0]) == len(COMPUTE)]
        if not compute or not own or session.testsfailed or self.config.option.collectonly:
            return None
        self.files = dict(enumerate(compute))
        paths = sorted({str(file[0].path) for file in compute})
        with tempfile.TemporaryDirectory(prefix="pytest-beside-") as name:
            folder = Path(name)
            (folder / "files").write_text(json.dumps([[item.nodeid for item in file] for file in compute]))
            try:
                for number in range(1, HELPERS + 1):
                    root = self.config.rootpath
                    self.helpers.append(Started(folder / str(number), root, self.environment, paths))
                for file in own:
                    self.run(session, file)
                for number in reversed(range(len(compute))):
                    if taken(folder, number):
                        self.run(session, self.files.pop(number))
                self.wait(session)
            finally:
                for helper in self.helpers:
                    helper.end()
        return True

    # ---- this process' own tests

    def run(self, session: pytest.Session, file: File) -> None:
        for _ in run(file):
            self.stop_if_told(session)
        self.show()
        self.stop_if_told(session)

    def stop_if_told(self, session: pytest.Session) -> None:
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)

    # ---- the helpers

    def wait(self, session: pytest.Session) -> None:
        """Until the helpers have run what they took; what one left undone fails, with what that one said."""
        for helper in self.helpers:
            while helper.process.poll() is None:
                self.show()
                self.stop_if_told(session)
                try:
                    helper.process.wait(LOOKS_EVERY_S)
                except subprocess.TimeoutExpired:
                    continue
        self.show()
        failed = [helper for helper in self.helpers if helper.process.returncode]
        blamed = (failed or self.helpers)[0]
        for item in [item for file in self.files.values() for item in file]:
            if not self.is_done(item):
                text = blamed.ended(" before this was done")
                report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")  # type: ignore[arg-type]
                self.reports[item.nodeid].append(report)
            self.show_item(item)
        if failed and not session.testsfailed:
            session.testsfailed += 1
            print(f"\n{blamed.ended()}", file=sys.stderr)

    # ---- their reports

    def show(self) -> None:
        """Report all files that the helpers have run to their end since the last look."""
        for line in [line for helper in self.helpers for line in helper.lines()]:
            report = self.report(json.loads(line))
            self.reports[report.nodeid].append(report)
        for number, file in list(self.files.items()):
            if self.is_done(file[-1]):
                for item in self.files.pop(number):
                    self.show_item(item)

    def is_done(self, item: pytest.Item) -> bool:
        return any(report.when == "teardown" for report in self.reports[item.nodeid])

    def report(self, plain: dict[str, Any]) -> pytest.TestReport:
        report: pytest.TestReport = self.config.hook.pytest_report_from_serializable(config=self.config, data=plain)
        if isinstance(report.longrepr, list):  # why it was skipped
            report.longrepr = tuple(report.longrepr)
        return report

    def show_item(self, item: pytest.Item) -> None:
        hook = self.config.hook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self.reports.pop(item.nodeid):
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
