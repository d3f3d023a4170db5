"""Tests AgentStore as torch uses it: it answers like torch's own stores, and groups work after any rank has died."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from taskd import _c10d
from taskd.core import limits
from tests.patience import PATIENCE_S
from tests.shell.manager_process import ROOT, HandAgent, wait_for
from tests.shell.store_plane import StorePlane
from tests.train.guarded import Ranks

SHORT = timedelta(milliseconds=250)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorePlane]:
    """Start one manager and relay for the tests that do not disturb them. Each test has its own prefix."""
    with StorePlane(tmp_path_factory.mktemp("store") / "run", 31000 + os.getpid() % 900, "shared") as plane:
        yield plane


def store_of(plane: StorePlane, timeout: timedelta = timedelta(seconds=PATIENCE_S)) -> Any:
    return _c10d.AgentStore(plane.name.encode(), timeout)


@pytest.fixture
def agent_store(place: StorePlane) -> Any:
    return dist.PrefixStore(secrets.token_hex(4), store_of(place))


def tried(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except Exception as error:
        return type(error).__name__


CASES: dict[str, Callable[[Any], list[Any]]] = {
    "set and get": lambda s: [s.set("a", "1"), s.get("a"), s.set("a", "2"), s.get("a")],
    "bytes": lambda s: [
        s.set("b", "\0\x7f\n"),
        s.get("b"),
        s.set("empty", ""),
        s.get("empty"),
        s.set("", "x"),
        s.get(""),
    ],
    "add": lambda s: [s.add("n", 5), s.add("n", -7), s.get("n"), s.add("n", 0), s.set("n", "12abc"), s.add("n", 1)],
    "add to bounds": lambda s: [s.add("n", 2**63 - 1), s.get("n"), s.add("m", -(2**63)), s.get("m")],
    "compare_set": lambda s: [
        s.compare_set("c", "x", "y"),
        s.check(["c"]),
        s.compare_set("c", "", "1"),
        s.compare_set("c", "2", "3"),
        s.compare_set("c", "1", "4"),
        s.get("c"),
        s.set("e", ""),
        s.compare_set("e", "", "5"),
        s.get("e"),
    ],
    "delete": lambda s: [s.set("d", "1"), s.delete_key("d"), s.delete_key("d"), s.check(["d"])],
    "check": lambda s: [s.check([]), s.set("a", "1"), s.check(["a"]), s.check(["a", "z"]), s.check(["z"])],
    "append": lambda s: [s.append("p", "x"), s.append("p", "y"), s.get("p")],
    "multi": lambda s: [s.multi_set(["m1", "m2"], ["1", "2"]), s.multi_get(["m2", "m1", "m2"]), s.has_extended_api()],
    "wait for what is there": lambda s: [s.set("a", "1"), s.wait(["a"]), s.wait(["a", "a"], SHORT)],
    "get what never comes": lambda s: [s.set_timeout(SHORT), tried(lambda: s.get("no"))],
    "wait for what never comes": lambda s: [s.set("a", "1"), tried(lambda: s.wait(["a", "no"], SHORT))],
    "multi_get what never comes": lambda s: [
        s.set("a", "1"),
        s.set_timeout(SHORT),
        tried(lambda: s.multi_get(["a", "no"])),
    ],
    "barrier": lambda s: [s.barrier("bar", 1, timedelta(seconds=5))],
    "prefix": lambda s: [
        dist.PrefixStore("x", dist.PrefixStore("y", s)).set("k", "1"),
        dist.PrefixStore("y", s).get("x/k") if s.check(["y/x/k"]) else s.get("x/y/k"),
    ],
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("other", ["HashStore", "TCPStore"])
def test_it_answers_as_torchs_own_stores_do(agent_store: Any, case: str, other: str) -> None:
    if other == "TCPStore":
        model = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    else:
        model = dist.HashStore()
    assert CASES[case](agent_store) == CASES[case](model)


def test_keys_are_counted_and_listed(run_dir: Path, free_port: Callable[[], int]) -> None:
    with StorePlane(run_dir, free_port()) as plane:
        store, model = store_of(plane), dist.HashStore()
        for one in (store, model):
            one.set("a", "1")
            one.add("b", 1)
            one.delete_key("a")
            one.append("c", "")
        assert store.num_keys() == model.num_keys() == 2
        assert sorted(store.list_keys()) == sorted(model.list_keys()) == ["b", "c"]


def test_waits_end_when_the_key_comes_from_elsewhere(agent_store: Any) -> None:
    other = agent_store.clone()
    timer = threading.Timer(0.2, lambda: other.multi_set(["late1", "late2"], ["1", "2"]))
    timer.start()
    assert agent_store.multi_get(["late1", "late2"]) == [b"1", b"2"]
    timer.join()


def test_a_timeout_says_which_keys_and_the_store_goes_on(agent_store: Any) -> None:
    with pytest.raises(dist.DistStoreError, match=r"wait timeout after 250ms, keys: \w+/no, \w+/neither"):
        agent_store.wait(["no", "neither"], SHORT)
    agent_store.set("a", "1")
    assert agent_store.get("a") == b"1"


def test_errors_are_sentences_and_the_store_goes_on(agent_store: Any, place: StorePlane) -> None:
    largest = "g" + secrets.token_bytes(limits.MAX_STORE_VALUE // 2).hex()[1:]  # the value is not a number
    agent_store.set("large", largest)
    assert agent_store.get("large") == largest.encode()
    for action, why in (
        (lambda: agent_store.set("large", largest + "x"), "a value has 1048577 bytes, 1048576 at most"),
        (lambda: agent_store.append("large", "x"), "would have 1048577 bytes"),
        (lambda: agent_store.multi_set([str(n) for n in range(9)], [largest] * 9), "9437.* at most: ask for less"),
        (lambda: agent_store.add("large", 1), "holds no number"),
        (lambda: agent_store.set("k" * 1025, ""), "bytes, 1024 at most"),
    ):
        with pytest.raises(dist.DistStoreError, match=why):
            action()
    with pytest.raises(ValueError, match="2 keys for 1 values"):
        agent_store.multi_set(["a", "b"], ["1"])
    assert agent_store.get("large") == largest.encode()
    with pytest.raises(dist.DistStoreError, match="this node's agent cannot be reached for the store"):
        _c10d.AgentStore(place.name.encode() + b"x", SHORT)
    with pytest.raises(dist.DistStoreError, match="too long"):
        _c10d.AgentStore(b"\0" * 200, SHORT)


def test_threads_share_one_and_each_gets_its_own_answers(agent_store: Any) -> None:
    def count(me: int) -> None:
        for turn in range(50):
            agent_store.set(f"{me}/{turn}", str(me * turn))
            assert agent_store.get(f"{me}/{turn}") == str(me * turn).encode()
            agent_store.add("all", 1)

    threads = [threading.Thread(target=count, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert agent_store.add("all", 0) == 200


def run_child(code: str, *args: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", code, *args],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


FORKER = """
import os, sys
from datetime import timedelta
import torch
from taskd import _c10d
store = _c10d.AgentStore(b"\\0" + sys.argv[1].encode(), timedelta(seconds=300))
store.set("fork/a", "1")
children = []
for number in range(4):
    pid = os.fork()
    if not pid:
        for _ in range(25):
            store.add("fork/n", 1)
        os._exit(0 if store.get("fork/a") == b"1" else 1)
    children.append(pid)
for _ in range(25):
    store.add("fork/n", 1)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
assert store.add("fork/n", 0) == 125
"""


def test_a_forked_child_has_its_own_connection(place: StorePlane) -> None:
    child = run_child(FORKER, place.name[1:])
    assert child.wait(PATIENCE_S) == 0, child.communicate()


CLOSER = """
import os, stat, sys
from datetime import timedelta
import torch
from taskd import _c10d

def sockets():
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found.add(int(name))
        except OSError:
            pass  # the folder itself was listed, too
    return found

before = sockets()
store = _c10d.AgentStore(b"\\0" + sys.argv[1].encode(), timedelta(seconds=300))
(number,) = sockets() - before
pid = os.fork()
if not pid:
    reads, writes = os.pipe()
    os.dup2(writes, number)
    os.close(writes)
    store.set("closer/a", "1")
    os.write(number, b"x")
    os._exit(0 if os.read(reads, 1) == b"x" else 1)
assert os.waitpid(pid, 0)[1] == 0
assert store.get("closer/a") == b"1"
"""


def test_a_child_closes_nothing_that_got_the_number_of_the_line(place: StorePlane) -> None:
    child = run_child(CLOSER, place.name[1:])
    assert child.wait(PATIENCE_S) == 0, child.communicate()


WAITER = """
import signal, sys
from datetime import timedelta
import torch
from taskd import _c10d
store = _c10d.AgentStore(b"\\0" + sys.argv[1].encode(), timedelta(seconds=300))
def handle(*_):
    try:
        store.get("inside")
    except Exception as error:
        print(error, flush=True)
    raise KeyboardInterrupt
signal.signal(signal.SIGTERM, handle)
print("waits", flush=True)
try:
    store.wait(["never"])
except KeyboardInterrupt:
    store.set("after", "1")
    print(store.get("after"), flush=True)
"""


def run_waiter(plane: StorePlane) -> subprocess.Popen[str]:
    """Start a child that waits. Returns once it waits, so that the time to load torch does not count."""
    child = run_child(WAITER, plane.name[1:])
    assert child.stdout is not None
    assert child.stdout.readline() == "waits\n"
    wait_for(lambda: plane.facts()["waits"] == 1, "the wait")
    return child


def test_signals_are_served_during_a_wait(run_dir: Path, free_port: Callable[[], int]) -> None:
    with StorePlane(run_dir, free_port()) as plane:
        child = run_waiter(plane)
        child.send_signal(signal.SIGTERM)
        said, complaint = child.communicate(timeout=PATIENCE_S)
        assert child.returncode == 0, complaint
        assert "use a clone() in handlers" in said and said.splitlines()[-1] == "b'1'"
        assert plane.facts()["waits"] == 0


def test_a_worker_that_dies_takes_its_wait_with_it(run_dir: Path, free_port: Callable[[], int]) -> None:
    with StorePlane(run_dir, free_port()) as plane:
        child = run_waiter(plane)
        child.kill()
        child.communicate()
        wait_for(lambda: plane.facts()["waits"] == 0, "the end of the wait")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_another_users_agent_is_not_believed(place: StorePlane) -> None:
    code = (
        "import os, sys\nfrom datetime import timedelta\nimport torch\nfrom taskd import _c10d\nos.setuid(65534)\n"
        "try: _c10d.AgentStore(b'\\0' + sys.argv[1].encode(), timedelta(seconds=5))\n"
        "except Exception as error: print(error)"
    )
    said, _ = run_child(code, place.name[1:]).communicate(timeout=PATIENCE_S)
    assert "another user listens" in said


def reports(ranks: Ranks, rank: int) -> list[dict[str, Any]]:
    process = ranks.processes[rank]
    said, _ = process.communicate(timeout=PATIENCE_S)
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def test_groups_are_made_after_any_rank_has_died(run_dir: Path, tmp_path: Path, free_port: Callable[[], int]) -> None:
    with StorePlane(run_dir, free_port()) as plane, Ranks("store", 3, tmp_path, plane.name[1:], "groups") as ranks:
        assert ranks.processes[0].wait(PATIENCE_S) == -signal.SIGKILL
        # The manager may die as well, before the survivors meet.
        plane.manager.kill()
        plane.manager.start()
        store_of(plane).set("dead/0", "1")
        assert reports(ranks, 0) == [{"sum": 3, "again": 30}]
        for rank in (1, 2):
            assert reports(ranks, rank) == [{"sum": 3, "again": 30}, {"survivors": 3, "keys": True}]


def test_a_meeting_of_an_epoch_that_is_over_ends_at_once(
    run_dir: Path, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    with StorePlane(run_dir, free_port()) as plane, Ranks("store", 2, tmp_path, plane.name[1:], "rebuild") as ranks:
        stdout = ranks.processes[1].stdout
        assert stdout is not None
        lines = iter(stdout.readline, "")
        said = [json.loads(line) for line in (next(lines), next(lines))]
        assert said == [{"sums": [1, 1]}, {"meeting": 2}]
        wait_for(lambda: plane.facts()["waits"] >= 2, "rank 1 at its meeting place, rank 0 elsewhere")
        keys = store_of(plane).list_keys()
        assert any("/epoch2/0@0-1/" in key for key in keys), keys
        with HandAgent(plane.manager, "left", (0, 1)) as agent:
            agent.epoch = 3
            agent.interval_ms = 100
            agent.join()
        last = json.loads(next(lines))
        assert "epoch 2 is over" in last["why"]
        keys = store_of(plane).list_keys()
        assert not any("/epoch1/" in key or "/epoch2/" in key for key in keys), keys
        store_of(plane).set("end", "")
        assert [process.wait(PATIENCE_S) for process in ranks.processes.values()] == [0, 0]
