"""The death watch with real deaths: which process ended, how soon, with what code, and what only looks like a death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from taskd import _native
from tests.patience import PATIENCE_S
from tests.ready import readable

CONFIRM_NS = int(PATIENCE_S * 1e9)


def test_a_kill_is_known_with_its_moment(start_worker, watch, next_deaths):
    for key in range(3):
        worker = start_worker()
        watch.add(worker.page, key)
        assert worker.ask("grow 200") == "done"  # its end takes a while, because much memory is freed
        killed_ns = time.monotonic_ns()
        os.kill(worker.pid, signal.SIGKILL)
        (death,) = next_deaths(watch)
        assert (death.key, death.kind) == (key, "dead") and death.at_ns >= killed_ns
        assert worker.page.life == "dead" and not worker.page.closed


@pytest.mark.parametrize(("how", "code"), [("SIGKILL", -9), ("SIGTERM", -15), ("exit 7", 7), ("exit 0", 0)])
def test_exit_code_is_confirmed(start_worker, watch, next_deaths, how, code):
    worker = start_worker()
    assert worker.ask("grow 50") == "done"
    watch.add(worker.page, 1)
    if how.startswith("SIG"):
        os.kill(worker.pid, getattr(signal, how))
    else:
        worker.tell(how)
    (death,) = next_deaths(watch)
    assert death.kind == "dead"
    start_time = worker.page.start_time
    assert _native.confirm_exit(worker.pid, start_time, CONFIRM_NS) == ("exiting", code)
    assert worker.process.wait() == code
    assert _native.exit_state(worker.pid, start_time) == ("gone", None)


def test_orderly_end_is_left(start_worker, watch, next_deaths):
    worker = start_worker()
    watch.add(worker.page, 1)
    assert worker.ask("leave") == "done"
    assert [(death.key, death.kind) for death in next_deaths(watch)] == [(1, "left")]
    assert worker.page.closed
    assert _native.exit_state(worker.pid, worker.page.start_time) == ("alive", None)
    # The page's life is over, whatever happens to the process now.
    os.kill(worker.pid, signal.SIGKILL)
    worker.process.wait()
    assert worker.page.life == "left" and next_deaths(watch, 0.05) == []


def test_exec_is_evidence_and_no_death(start_worker, watch, next_deaths):
    worker = start_worker()
    watch.add(worker.page, 1)
    worker.tell("exec")
    assert [death.kind for death in next_deaths(watch)] == ["dead"]
    begin_ns = time.monotonic_ns()
    assert _native.confirm_exit(worker.pid, worker.page.start_time, 50_000_000) == ("alive", None)
    assert time.monotonic_ns() - begin_ns >= 50_000_000


def test_page_without_a_beat_is_waited_for(start_worker, watch, next_deaths):
    worker = start_worker(beat=False)
    watch.add(worker.page, 1)
    assert next_deaths(watch, 0.05) == [] and worker.page.life == "new"
    assert worker.ask("beat 10000000") == "done"
    assert next_deaths(watch, 0.05) == []
    os.kill(worker.pid, signal.SIGKILL)
    assert [death.kind for death in next_deaths(watch)] == ["dead"]


def test_agent_that_comes_later_sees_the_same(start_worker, watch, next_deaths):
    worker = start_worker()
    watch.add(worker.page, 1)
    other = _native.DeathWatch()
    other.add(worker.page, 2)
    os.kill(worker.pid, signal.SIGKILL)
    assert [death.key for death in next_deaths(watch)] == [1]
    assert [death.key for death in next_deaths(other)] == [2]
    other.close()
    later = _native.DeathWatch()
    later.add(_native.Page.attach(worker.page.fd), 3)
    assert [(death.key, death.kind) for death in next_deaths(later)] == [(3, "dead")]
    later.close()


def test_core_dump_counts_as_exiting(start_worker, tmp_path):
    if Path("/proc/sys/kernel/core_pattern").read_text().startswith("|"):
        pytest.skip("the kernel pipes core dumps to a program here, which may end before anybody looks")
    worker = start_worker()
    assert worker.ask("grow 300") == "done"
    worker.tell(f"abort {tmp_path}")
    state = _native.confirm_exit(worker.pid, worker.page.start_time, CONFIRM_NS)
    assert state == ("exiting", -signal.SIGABRT)
    assert worker.process.wait() == -signal.SIGABRT
    for core in tmp_path.iterdir():
        core.unlink()


def test_sixty_four_pages(watch, next_deaths, native_threads):
    pages = [_native.Page.create(rank=rank, incarnation=1) for rank in range(64)]
    for page in pages:
        page.start_beat(100_000_000)
        watch.add(page, page.rank)
    native_threads("taskd-beat", 64)
    native_threads("taskd-watch", 64)
    for page in pages[::2]:
        page.stop_beat()
    deaths: list[_native.Death] = []
    while len(deaths) < 32:
        deaths += next_deaths(watch)
    assert sorted((death.key, death.kind) for death in deaths) == [(rank, "left") for rank in range(0, 64, 2)]
    for rank in range(64):
        watch.remove(rank)
    native_threads("taskd-watch", 0)
    for page in pages[1::2]:
        page.stop_beat()
    assert next_deaths(watch, 0.01) == []
    native_threads("taskd-beat", 0)


def test_keys_and_closing(watch):
    page = _native.Page.create(rank=0, incarnation=0)
    page.start_beat(1_000_000)
    watch.add(page, 1)
    with pytest.raises(ValueError, match="Key 1 is watched already"):
        watch.add(page, 1)
    with pytest.raises(ValueError, match="Key 2 is not watched"):
        watch.remove(2)
    page.stop_beat()
    assert readable([watch.fd], PATIENCE_S)
    watch.remove(1)
    assert watch.take() == []
    watch.close()
    watch.close()
    assert watch.fd == -1 and watch.take() == []
    with pytest.raises(RuntimeError, match="closed"):
        watch.add(page, 1)


def test_forked_child_has_no_watch(watch):
    page = _native.Page.create(rank=0, incarnation=0)
    page.start_beat(1_000_000)
    watch.add(page, 1)
    child = os.fork()
    if child == 0:
        try:
            refused = False
            try:
                watch.take()
            except RuntimeError:
                refused = True
            del watch
            os._exit(0 if refused else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    page.stop_beat()
    assert readable([watch.fd], PATIENCE_S) and watch.take()[0].kind == "left"


def test_process_states(eventually):
    own = os.getpid()
    start_time = _native.process_start_time(own)
    assert _native.exit_state(own, start_time) == ("alive", None)
    assert _native.exit_state(own, start_time + 1) == ("gone", None)
    with pytest.raises(ProcessLookupError, match="cannot read the start time of process 999999999"):
        _native.process_start_time(999_999_999)
    leave = threading.Event()
    thread = threading.Thread(target=leave.wait)
    thread.start()
    try:
        assert _native.thread_count() >= 2
        eventually(lambda: _native.thread_count() == len(os.listdir("/proc/self/task")))
    finally:
        leave.set()
        thread.join()


def test_parent_death_signal_and_subreaper():
    """When its parent ends, a grandchild goes to the subreaper and gets the signal that it asked for."""
    code = "\n".join(
        [
            "import os, signal, sys, time",
            "from taskd import _native",
            "_native.set_child_subreaper()",
            "parent = os.fork()",
            "if parent == 0:",
            "    ready, say = os.pipe()",
            "    if os.fork() == 0:",
            "        _native.set_parent_death_signal(signal.SIGUSR2)",
            "        os.write(say, b'x')",
            "        time.sleep(60)",
            "    os.read(ready, 1)",
            "    os._exit(3)",
            "ends = dict(os.wait() for _ in range(2))",
            "assert os.waitstatus_to_exitcode(ends.pop(parent)) == 3",
            "assert [os.waitstatus_to_exitcode(end) for end in ends.values()] == [-signal.SIGUSR2]",
        ]
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(root)}, check=True, timeout=PATIENCE_S
    )
    with pytest.raises(OSError, match="parent-death signal"):
        _native.set_parent_death_signal(9999)
