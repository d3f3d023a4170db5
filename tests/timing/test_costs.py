"""The costs of small operations that run often or at every start; `make test-timing` runs them on a quiet machine.

Other test folders test what the operations do. These tests only check how long they take.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskd import _native
from taskd.core.limits import MS
from taskd.core.manager import Manager
from taskd.wire.codec import decode, encode
from taskd.worker import hooks
from tests.core.builders import Node, rank_report
from tests.property.test_wire import ENVELOPE, full_report
from tests.shell.manager_process import ManagerProcess
from tests.shell.store_plane import StorePlane

Within = Callable[[str, float, float], None]
FORGET = "for name in [*sys.modules]:\n  if name.startswith('taskd'): del sys.modules[name]"
"""Python has already imported taskd.compat at its start, because of the package's .pth file."""


def best_s(action: Callable[[], object], turns: int, rounds: int = 5) -> float:
    """Return the time of one turn in the fastest round."""
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(turns):
            action()
        found.append((time.perf_counter() - begin) / turns)
    return min(found)


def test_a_store_into_the_page(within: Within) -> None:
    within("store into the page", min(_native.bench_store(200_000) for _ in range(5)) / 1e9, 100e-9)


def test_a_scan_of_64_pages(within: Within) -> None:
    pages = [_native.Page.create(rank=rank, incarnation=1) for rank in range(64)]
    seen = [_native.Page.attach(page.fd) for page in pages]
    within("scan of 64 pages", best_s(lambda: _native.scan(seen), 100), 30e-6)


def test_a_hook_without_a_worker(within: Within) -> None:
    within("hook without a worker", best_s(lambda: hooks.step_end(1), 10_000), 1e-6)


def test_a_full_report_is_read(within: Within) -> None:
    data = encode(full_report(), ENVELOPE)
    within("a full report read", best_s(lambda: decode(data), 20), 150e-6)


def test_rank_reports_in_the_core(within: Within) -> None:
    """400 nodes of 64 ranks send one beat each. 4,000 nodes have to fit into a second."""
    nodes = [Node(f"n{i}", slots=64) for i in range(400)]
    core = Manager("job", 400 * 64, 400, frozenset(), False, 0)
    for i, node in enumerate(nodes):
        core.step(0, node.hello())
        core.step(0, node.report(*(rank_report(i * 64 + j, acknowledged=False) for j in range(64)), full=True))
    said = [node.report(*(rank_report(i * 64 + j, step=9) for j in range(64))) for i, node in enumerate(nodes)]
    begin = time.perf_counter()
    for event in said:
        core.step(MS, event)
    within("25,600 rank reports in the core", time.perf_counter() - begin, 0.1)


@pytest.mark.parametrize(
    ("what", "statement", "aim_s"),
    [
        ("import of the command line", "from taskd.cli.main import main\nmain(['--help'])", 0.1),
        ("import of the configuration", "import taskd.config", 0.05),
        ("import of taskd.compat", f"{FORGET}\nstart = time.process_time()\nimport taskd, taskd.compat", 0.002),
    ],
)
def test_imports(run_python: Callable[..., Any], within: Within, what: str, statement: str, aim_s: float) -> None:
    ends = "print(time.process_time() - start, file=sys.stderr)"
    code = f"import sys, time\nstart = time.process_time()\n{statement}\n{ends}"
    found = min(float(run_python(code).stderr.split()[-1]) for _ in range(3))
    within(what, found, aim_s)


def test_the_manager_is_ready(run_dir: Path, free_port: Callable[[], int], within: Within) -> None:
    manager = ManagerProcess(run_dir, free_port())
    begin = time.perf_counter()
    manager.start()
    within("manager ready", time.perf_counter() - begin, 0.5)
    assert manager.end() == 0


def test_a_round_trip_of_the_store(run_dir: Path, free_port: Callable[[], int], within: Within) -> None:
    with StorePlane(run_dir, free_port()) as plane, plane.client() as client:
        client.set(b"k", b"v")
        within("get from the job's store", best_s(lambda: client.get(b"k"), 100), 1e-3)


def test_a_wait_ends_when_its_key_comes(run_dir: Path, free_port: Callable[[], int], within: Within) -> None:
    operations = importlib.import_module("taskd.core.types").StoreOperation
    with StorePlane(run_dir, free_port()) as plane, plane.client() as waiting, plane.client() as client:
        waiting.send(operations.GET, b"late")
        while plane.facts()["waits"] != 1:
            pass
        begin = time.perf_counter()
        client.set(b"late", b"1")
        waiting.answer()
        within("end of a wait in the store", time.perf_counter() - begin, 2e-3)
