"""The common fixtures of all tests: a clean environment, a time limit, and a check that nothing was left behind.

taskd is about processes that outlive others. So a test that leaves a process running has found a bug. Every process
that a test starts inherits this run's mark in its environment, also after many forks and under another parent. After
each test three things fail it, by name: new living processes with the mark, new files in /dev/shm, and sockets
"@taskd/..." that this process still holds.

It starts no process of taskd; fixtures of one room are in that room's own conftest.
"""

from __future__ import annotations

import collections
import faulthandler
import gc
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from taskd.bench import hosts
from tests import forked, stacks, starve, tiers
from tests.patience import HANG_S, LEAVING_S, NAME, PATIENCE_S

ROOT = Path(__file__).resolve().parent.parent
# If a test holds the interpreter's lock, our signal handler cannot run. Then the run ends this many seconds later.
LAST_RESORT_S = 60
# Examples are drawn in the same way on every machine: always the same ones, and without a limit on their speed.
hypothesis.settings.register_profile(
    "gate", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("gate")
PORTS = range(12000, 30000)
# Up to so many processes can look for a free port at the same moment and never find the same one.
PROCESSES = 8
# In the environment of every process that descends from this run, and of no other process.
MARK_NAME = "PYTEST_RUN_MARK"
MARK_VALUE = f"{os.getpid()}-{time.monotonic_ns()}"

# Variables of the user's shell, or of a job that runs the tests. They would change what the tests do.
FOREIGN_NAMES = {
    "MINDX_TASK_ID",
    "PROCESS_RECOVER",
    "ELASTIC_PROCESS_RECOVER_ENABLE",
    "HIGH_AVAILABILITY",
    "ENABLE_RESTART_FAULT_PROCESS",
    "HCCL_OP_RETRY_ENABLE",
    "HCCL_OP_RETRY_PARAMS",
    "HCCL_CONNECT_TIMEOUT",
    "MASTER_ADDR",
    "MASTER_PORT",
    "POD_IP",
    "GLOO_SOCKET_IFNAME",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "LOCAL_RANK",
    "GROUP_RANK",
    "PYTHONUNBUFFERED",
    "PYTHONDONTWRITEBYTECODE",
    "MAKEFLAGS",
    "MAKELEVEL",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=tiers.TIERS, help="run only this tier's tests (tests/tiers.py); else all")
    parser.addoption("--starve", action="store_true", help="half a core for all tests together, and random pauses")
    parser.addoption("--failures", metavar="FILE", help="write the texts of all failures here, by test, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    os.environ[MARK_NAME] = MARK_VALUE
    for name in list(os.environ):
        if name.startswith("TASKD_") or name in FOREIGN_NAMES:
            del os.environ[name]
    os.environ[NAME] = str(PATIENCE_S)  # for programs and scripts of the tests
    os.environ["PYTHONPYCACHEPREFIX"] = str(ROOT / "build" / "pycache")  # else each manager would be compiled anew
    # If a shell starts us in the background, we and all our processes ignore Ctrl-C (SIGINT), which some tests send.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Under nohup we ignore SIGHUP, which some tests send. Child processes must not inherit that; here it has no effect.
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    # The true standard error: pytest replaces descriptor 2 during a test, and what it captured dies with the process.
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        config.stash[TRUE_STDERR] = os.dup(2)
    if config.option.starve and runs_tests(config):
        config.stash[STARVATION] = starve.Starvation(lambda: ours_among(all_pids()))


TRUE_STDERR = pytest.StashKey[int]()
STARVATION = pytest.StashKey[starve.Starvation]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tier's tests and put the quick ones first, so that failures show early. Find each skip reason once."""
    if tier := config.option.tier:
        chosen = tiers.of_tier(tier, map(example, items))
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
        items[:] = [item for item in items if item.nodeid in chosen]
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
    for marker, reason_of in (("root", hosts.why_not), ("gpu", why_no_device)):
        marked = [item for item in items if item.get_closest_marker(marker)]
        reason = reason_of() if marked else None
        for item in marked:
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True, scope="module")
def out_of_sight() -> None:
    """Take what is there so far out of the sight of the garbage collector. The product goes through all objects of its
    process now and then, and here are a million that no job has."""
    gc.collect()
    gc.freeze()


def example(item: pytest.Item) -> tiers.Test:
    """Return what decides whether the gate runs this test."""
    marker = item.get_closest_marker("one_in")
    return tiers.Test(item.nodeid, 1 if marker is None else marker.args[0], item.get_closest_marker("slow") is not None)


# ---- three processes, and what failed in them


def number_of_process() -> int:
    """Return the number of this pytest-xdist process, or 0 if there is only this one."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])


def runs_tests(config: pytest.Config) -> bool:
    """Return False in the process that only distributes tests to others."""
    return hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Schedule the files: tests/tiers.py fixes which process runs which file."""
    from xdist.scheduler import LoadScopeScheduling

    class Fixed(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if not hasattr(self, "place"):
                files = {name.partition("::")[0] for name in self.collection}
                self.place = tiers.split(files, config.option.numprocesses)
            return str(self.place[nodeid.partition("::")[0]])

        def remove_node(self, node: Any) -> str | None:
            """Do not give the test during which a process died to the next process."""
            undone = (unit for unit in self.assigned_work[node].values() if not all(unit.values()))
            if (unit := next(undone, None)) is None:
                return super().remove_node(node)
            died_in = next(name for name, is_done in unit.items() if not is_done)
            unit[died_in] = True
            super().remove_node(node)
            return died_in

    return Fixed(config, log)


SLOW_FILES = 80
failures: dict[str, str] = {}
seconds_of_files: dict[str, float] = collections.Counter()
seconds_of_processes: dict[str, float] = collections.Counter()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    seconds_of_files[report.nodeid.partition("::")[0]] += report.duration
    seconds_of_processes[getattr(report, "worker_id", "")] += report.duration
    if report.failed:
        failures[report.nodeid] = failures.get(report.nodeid, "") + report.longreprtext


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in tiers.is_old(seconds_of_processes, seconds_of_files):
        terminalreporter.write_line(line)
    if terminalreporter.config.option.durations:
        terminalreporter.section("slowest files")
        longest = sorted(seconds_of_files, key=lambda file: -seconds_of_files[file])[:SLOW_FILES]
        for file in longest:
            terminalreporter.write_line(f"{seconds_of_files[file]:.2f}s {file}")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        failures[report.nodeid] = report.longreprtext


def pytest_unconfigure(config: pytest.Config) -> None:
    if starvation := config.stash.get(STARVATION, None):
        starvation.end()
    if config.option.failures and not hasattr(config, "workerinput"):
        Path(config.option.failures).write_text(json.dumps(failures))


def why_no_device() -> str | None:
    if Path("/dev/nvidiactl").exists() or any(Path("/dev").glob("davinci[0-9]*")):
        return None
    return "needs a GPU or an NPU; this machine has neither"


# ---- a time limit for each test


class Limit:
    """Stops the code inside it after `seconds`, and shows where every thread was."""

    def __init__(self, item: pytest.Item) -> None:
        marker = item.get_closest_marker("limit")
        self.seconds = marker.args[0] if marker else HANG_S
        self.stderr = item.config.stash[TRUE_STDERR]

    def __enter__(self) -> None:
        self.before = signal.signal(signal.SIGALRM, self.on_alarm)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)
        faulthandler.dump_traceback_later(self.seconds + LAST_RESORT_S, exit=True, file=self.stderr)

    def __exit__(self, *_: object) -> None:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)

    def on_alarm(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        shown = stacks.of({os.getpid(): "this test", **ours_among(all_pids())})
        pytest.fail(f"longer than its limit of {self.seconds:.0f} s; every process:\n{shown}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    with Limit(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    with Limit(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    with Limit(item):
        return (yield)


# ---- nothing is left behind


def all_pids() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def ours_among(pids: set[int]) -> dict[int, str]:
    """Return those of these processes that live and descend from this run: pid -> command line."""
    mark = f"{MARK_NAME}={MARK_VALUE}".encode()
    found = {}
    for pid in pids - {os.getpid()} - forked.pids():
        try:
            if mark not in Path(f"/proc/{pid}/environ").read_bytes():
                continue
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
        except OSError:
            continue  # it has ended since, or belongs to another user
        # multiprocessing's own helper lives as long as the interpreter does.
        if state not in "ZX" and "multiprocessing.resource_tracker" not in command:
            found[pid] = command
    return found


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:  # an orphan: another process reaps it
        while ours_among({pid}):
            time.sleep(0.02)


def shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "taskd" in name}


def own_sockets() -> set[str]:
    """Return the names of abstract sockets "@taskd/..." that this process holds open."""
    inodes = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue  # the descriptor that listed the folder
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    rows = (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:])
    return {row[7] for row in rows if len(row) > 7 and row[7].startswith("@taskd/") and row[6] in inodes}


def leftovers(before: tuple[set[int], set[str], set[str]]) -> list[str]:
    """Return sentences about what is new since `before`. Waits for processes that are ending, then kills the others."""
    pids, shm, sockets = before
    deadline = time.monotonic() + LEAVING_S
    while new := ours_among(all_pids() - pids):
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)  # not our children, so there is nothing to wait on
    for pid in new:
        end(pid)
    return [
        *(f"process {pid} was still running, and was killed: {command}" for pid, command in new.items()),
        *(f"/dev/shm/{name} was left behind" for name in sorted(shared_memory() - shm)),
        *(f"the socket {name} is still open in the test's own process" for name in sorted(own_sockets() - sockets)),
    ]


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves a process, a file in /dev/shm or one of our sockets behind."""
    before = all_pids(), shared_memory(), own_sockets()
    yield
    found = leftovers(before)
    if found:
        pytest.fail("left behind:\n  " + "\n  ".join(found), pytrace=False)


left_by_others: list[str] = []


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    left_by_others.extend(getattr(node, "workeroutput", {}).get("left", []))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Check what fixtures of a module or session left behind. No test can be blamed for it, so the whole run fails."""
    found = left_by_others
    if runs_tests(session.config):
        forked.close()
        found = leftovers((set(), set(), set()))
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left"] = found
    elif found:
        print("\nleft behind by the whole run:\n  " + "\n  ".join(found), file=sys.stderr)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


# ---- what tests ask for


@pytest.fixture(autouse=True)
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return this test's own TASKD_RUN_DIR, which child processes inherit. taskd makes it; it does not exist yet."""
    path = tmp_path / "run"
    monkeypatch.setenv("TASKD_RUN_DIR", str(path))
    return path


@pytest.fixture
def free_port() -> Callable[[], int]:
    """Finds an unused TCP port, below the range from which the kernel takes ports for outgoing connections."""
    given: set[int] = set()

    def find() -> int:
        while True:
            port = random.SystemRandom().choice(PORTS[number_of_process() % PROCESSES :: PROCESSES])
            with socket.socket() as probe:
                try:
                    probe.bind(("0.0.0.0", port))
                except OSError:
                    continue
            if port not in given:
                given.add(port)
                return port

    return find


RunPython = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run_python(tmp_path: Path) -> RunPython:
    """Runs a piece of Python, or a file, in a process of its own with this checkout importable.

    run_python(code_or_file, *args, env=None, check=True) returns the CompletedProcess with text output.
    `env` is added to the environment (None takes a name out); the working folder is the test's own. With `check` an
    exit code other than 0 fails the test and shows what the process said.
    """

    def run(
        code: str | Path, *args: str, env: dict[str, str | None] | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        merged: dict[str, str | None] = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
        what = [str(code)] if isinstance(code, Path) else ["-c", code]
        done = subprocess.run(
            [sys.executable, *what, *args],
            env={name: value for name, value in merged.items() if value is not None},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        if check and done.returncode != 0:
            pytest.fail(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}", pytrace=False)
        return done

    return run
