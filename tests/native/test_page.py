"""The beat page across processes: one stores and another reads, whatever the interpreter, a fork or a stranger does."""

from __future__ import annotations

import ast
import os
import signal
import threading
import time

import pytest

from taskd import _native
from tests.patience import PATIENCE_S


def test_page_arrives_over_a_socket(start_worker):
    worker = start_worker(rank=6)
    page = worker.page
    assert (page.rank, page.incarnation, page.pid) == (6, 3, worker.pid)
    assert page.start_time == _native.process_start_time(worker.pid)
    assert page.life == "beating" and not page.closed and not page.beating
    before_ns = time.monotonic_ns()
    assert worker.ask(f"store 2 {2**40} 3 4 {2**50}") == "done"
    beat = page.read()
    assert beat[4:] == (2, 2**40, 3, 0, 4, 2**50, True)
    assert before_ns <= beat.progress_ns <= time.monotonic_ns()
    assert beat.beat_period_ns == 10_000_000
    with pytest.raises(RuntimeError, match="Only the process that created a page"):
        page.start_beat(1_000_000)


def test_beat_goes_on_while_the_gil_is_held(start_worker):
    worker = start_worker()
    count = worker.page.read().beat_count
    assert worker.ask("hold 3.0") == "done"  # 300 beats are due in this time
    assert worker.page.read().beat_count > count + 6
    assert worker.page.read().progress_ns == 0  # alive without progress: two separate facts


def test_stopped_process_does_not_beat(start_worker, eventually):
    worker = start_worker()
    os.kill(worker.pid, signal.SIGSTOP)
    eventually(lambda: time.monotonic_ns() - worker.page.read().beat_ns > 10 * 10_000_000)
    assert worker.page.life == "beating"
    count = worker.page.read().beat_count
    os.kill(worker.pid, signal.SIGCONT)
    eventually(lambda: worker.page.read().beat_count > count)


def test_partial_stores_leave_the_rest():
    page = _native.Page.create(rank=0, incarnation=0)
    assert page.read()[3:] == (0, 0, 0, 0, 0, 0, 0, True)
    assert page.store(epoch=1, step=2, phase=3, group=4, sequence=5)
    first_ns = page.read().progress_ns
    assert page.store_flags(9) and page.store_epoch(7)
    assert page.read()[3:] == (first_ns, 7, 2, 3, 9, 4, 5, True)
    assert page.store_phase(8) and page.read()[4:] == (7, 2, 8, 9, 4, 5, True)
    assert page.read().progress_ns > first_ns
    assert page.store_step(-3, 1) and page.read()[4:] == (7, -3, 1, 9, 4, 5, True)
    assert page.store_sequence(6, 2**64 - 1) and page.read()[4:] == (7, -3, 1, 9, 6, 2**64 - 1, True)
    for wrong in (lambda: page.store_phase(65536), lambda: page.store(-1, 0, 0), lambda: page.store_step(2**63, 0)):
        with pytest.raises(TypeError):
            wrong()


def test_group_slots():
    page = _native.Page.create(rank=0, incarnation=0)
    assert page.read_groups() == []
    last = _native.GROUP_SLOTS - 1
    before_ns = time.monotonic_ns()
    assert page.enter_group(0, group=11, epoch=2, sequence=1, kind=3, bytes=1 << 40)
    assert page.enter_group(last, group=12, epoch=2, sequence=8, kind=4)
    assert page.leave_group(last, sequence=8)
    first, second = _native.Page.attach(page.fd).read_groups()
    assert (first.slot, first.group, first.epoch, first.sequence, first.kind) == (0, 11, 2, 1, 3)
    assert first.bytes == 1 << 40 and first.left_sequence == 0 and first.left_ns == 0
    assert (second.slot, second.sequence, second.left_sequence) == (last, 8, 8)
    assert before_ns <= second.entered_ns <= second.left_ns <= time.monotonic_ns()
    assert page.clear_group(0) and [beat.slot for beat in page.read_groups()] == [last]
    with pytest.raises(ValueError, match="group slots 0 to 59, not 60"):
        page.leave_group(60, sequence=1)


def test_order_wakes_the_worker(start_worker):
    worker = start_worker()
    assert worker.page.read_order() is None
    worker.tell("order 0")
    given_ns = time.monotonic_ns()
    assert worker.page.order(kind=3, epoch=9) == 1
    fields, _, woken_ns = worker.answer().rpartition(" ")
    sequence, kind, epoch, at_ns = ast.literal_eval(fields)
    assert (sequence, kind, epoch) == (1, 3, 9) and given_ns <= at_ns <= int(woken_ns)
    assert worker.page.order(kind=4, epoch=10) == 2
    assert worker.ask("order 1").startswith("(2, 4, 10, ")


def test_waiting_for_an_order_serves_signals_and_other_threads():
    page = _native.Page.create(rank=0, incarnation=0)
    assert page.wait_order(0, 1_000_000) is None
    served: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: served.append(number))
    try:
        main_thread = threading.main_thread().ident
        assert main_thread is not None

        def disturb() -> None:
            signal.pthread_kill(main_thread, signal.SIGUSR1)
            while not served:
                time.sleep(0.001)
            page.order(kind=1, epoch=1)

        thread = threading.Thread(target=disturb)
        thread.start()
        order = page.wait_order(0, int(PATIENCE_S * 1e9))
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert served == [signal.SIGUSR1] and order is not None and order.sequence == 1


def test_forked_child_can_reach_nothing(start_worker):
    worker = start_worker()
    worker.ask("store 1 2 3 4 5")
    worker.page.order(kind=1, epoch=1)
    report = ast.literal_eval(worker.ask("fork"))
    assert report["pages"] == [] and report["sockets"] == [] and report["guarded"] == "/dev/null"
    assert report["stored"] and not report["beating"] and report["fresh"] == "beating"
    assert worker.page.read()[4:] == (1, 2, 3, 0, 4, 5, True)
    assert worker.page.read_order().kind == 1
    assert worker.page.life == "beating"
    assert worker.ask("store 1 3 3 4 5") == "done" and worker.page.read().step == 3


def test_dropping_the_page_does_not_stop_its_beat(start_worker, eventually):
    worker = start_worker()
    assert worker.ask("drop") == "done"
    count = worker.page.read().beat_count
    eventually(lambda: worker.page.read().beat_count > count + 5)
    assert worker.page.life == "beating"


def test_stop_is_the_orderly_end(native_threads):
    page = _native.Page.create(rank=0, incarnation=0)
    with pytest.raises(RuntimeError, match="start_beat"):
        page.stop_beat()
    with pytest.raises(ValueError, match="positive"):
        page.start_beat(0)
    page.start_beat(3_600_000_000_000)
    assert page.beating
    native_threads("taskd-beat", 1)
    with pytest.raises(RuntimeError, match="one life"):
        page.start_beat(1)
    page.stop_beat()
    assert page.closed and page.life == "left" and not page.beating
    native_threads("taskd-beat", 0)


def test_wrong_descriptors_are_refused_with_a_sentence(tmp_path):
    plain = tmp_path / "plain"
    plain.write_bytes(b"\0" * _native.PAGE_BYTES)
    with plain.open("r+b") as file, pytest.raises(ValueError, match="not a beat page: it is no memory file"):
        _native.Page.attach(file.fileno())
    with pytest.raises(ValueError, match="number 4000 is not open"):
        _native.Page.attach(4000)
    unsealed = os.memfd_create("x", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(unsealed, _native.PAGE_BYTES)
    with pytest.raises(ValueError, match="size is not sealed"):
        _native.Page.attach(unsealed)
    os.close(unsealed)
    with pytest.raises(ValueError, match="A rank is 0 or more"):
        _native.Page.create(rank=-1, incarnation=0)


def test_descriptors_come_back():
    page = _native.Page.create(rank=0, incarnation=0)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        attached = _native.Page.attach(page.fd)
        assert attached.fd != page.fd and not os.get_inheritable(attached.fd)
    del attached
    assert len(os.listdir("/proc/self/fd")) == before


def test_scan_reads_64_pages():
    pages = [_native.Page.create(rank=rank, incarnation=1) for rank in range(64)]
    for page in pages:
        page.store(epoch=1, step=page.rank * 10, phase=1)
    seen = [_native.Page.attach(page.fd) for page in pages]
    assert [beat.step for beat in _native.scan(seen)] == [rank * 10 for rank in range(64)]
    assert _native.scan([]) == []


def test_the_cost_of_a_store_can_be_measured():
    assert _native.bench_store(200_000) > 0
