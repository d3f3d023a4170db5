"""The standby alone: the asker is the parent of its forks, it refuses a fork that would be wrong, and it comes back."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from taskd.launch.options import glance

PARTS = """
import json, os, signal, sys, threading, time
from taskd import _native
from taskd.launch import standby
from taskd.launch.standby import NotReady, Standby
_native.set_child_subreaper()
standby.ENTRY, standby.IMPORTS = "child:begin", ("json",)
def say(**facts):
    print(json.dumps(facts), flush=True)
def request(text):
    fd = os.memfd_create("request")
    os.write(fd, text.encode())
    return fd
def made(preload=(), **variables):
    one = Standby(sys.executable, {**os.environ, **variables}, os.getcwd(), preload)
    one.start()
    return one
def why(one, environment=None):
    try:
        one.fork(environment or one.environment, [request("x")])
    except NotReady as reason:
        return str(reason)
"""
CHILD = """
import json, os, sys, threading
def begin(descriptors):
    os.lseek(descriptors[0], 0, 0)
    text = os.read(descriptors[0], 100).decode()
    facts = {"text": text, "parent": os.getppid(), "pid": os.getpid(), "count": len(descriptors),
             "threads": threading.active_count(), "modules": sorted({"json", "beside"} & set(sys.modules))}
    os.write(1, (json.dumps(facts) + "\\n").encode())
    os._exit(int(text))
"""


@pytest.fixture
def play(run_python: Any, tmp_path: Any) -> Callable[..., list[dict[str, Any]]]:
    """Run code with the parts above; return the JSON lines that the code and the standby's children print."""
    (tmp_path / "child.py").write_text(CHILD)
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    (tmp_path / "broken.py").write_text("raise RuntimeError('this module is broken')\n")

    def run(code: str) -> list[dict[str, Any]]:
        path = os.pathsep.join([str(tmp_path), os.getcwd()])
        done = run_python(PARTS + code, env={"PYTHONPATH": path})
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


def test_children_are_the_askers(play: Any) -> None:
    found = play("""
one = made(preload=["beside"])
assert one.wait(300) and one.ready
for code in (0, 3, 7):
    pid = one.fork(one.environment, [request(str(code)), 1, 2])
    status = os.waitpid(pid, 0)[1]
    say(me=os.getpid(), child=pid, code=os.waitstatus_to_exitcode(status))
one.close()
""")
    for code in (0, 3, 7):
        child, asker = found.pop(0), found.pop(0)
        assert asker["code"] == code == int(child["text"])
        assert child["parent"] == asker["me"] and child["pid"] == asker["child"]
        assert child["threads"] == 1 and child["count"] == 3 and child["modules"] == ["beside", "json"]


def test_what_is_read_at_import_must_be_the_same(play: Any) -> None:
    (found,) = play("""
one = made(OMP_NUM_THREADS="1")
one.wait(300)
environment = {**one.environment, "OMP_NUM_THREADS": "4", "RANK": "3"}
say(why=why(one, environment), same=one.differs({**one.environment, "RANK": "3", "MASTER_PORT": "1"}))
one.close()
""")
    assert "OMP_NUM_THREADS" in found["why"] and "read at import" in found["why"]
    assert found["same"] == []


def test_no_fork_from_a_process_with_threads(play: Any) -> None:
    (found,) = play("""
one = made(preload=["threaded"])
one.wait(300)
say(why=why(one))
one.close()
""")
    assert found["why"].startswith("it has 2 threads")


def test_it_comes_back(play: Any) -> None:
    found = play("""
one = made()
one.wait(300)
before = one.pid
os.kill(before, signal.SIGKILL)
os.waitid(os.P_PID, before, os.WEXITED | os.WNOWAIT)
one.tend()
say(ready=one.ready, why=why(one))
assert one.wait(300)
child = one.fork(one.environment, [request("5")])
say(pid=one.pid, before=before, code=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
one.close()
""")
    assert found[0] == {"ready": False, "why": "it is still importing torch"}
    assert found[-1]["pid"] != found[-1]["before"] and found[-1]["code"] == 5


def test_one_that_cannot_start_is_given_up(play: Any) -> None:
    (found,) = play("""
one = made(preload=["broken"])
say(ready=one.wait(300), fd=one.fd, why=why(one))
one.close()
""")
    assert found["ready"] is False and found["fd"] == -1
    assert "3 times before it was ready" in found["why"]


def test_it_ends_with_who_started_it(play: Any) -> None:
    (found,) = play("""
import select
one = made()
one.wait(300)
say(pid=one.pid)
os._exit(0)
""")
    assert found["pid"]  # the fixture nothing_left_behind looks for it


def test_it_ends_quietly_when_nobody_has_listened(play: Any) -> None:
    """If nobody has read its message, the end of its connection arrives as an error and not as an end."""
    (found,) = play("""
import select
one = made()
select.select([one.fd], [], [], 30)
os.close(one.fd)
say(status=os.waitpid(one.pid, 0)[1])
os._exit(0)
""")
    assert found["status"] == 0


@pytest.mark.parametrize(
    ("words", "script", "workers", "several"),
    [
        (["train.py"], "train.py", "1", False),
        (["--nproc-per-node", "4", "train.py", "--nproc-per-node", "9"], "train.py", "4", True),
        (["--nproc_per_node=8", "--standalone", "train.py"], "train.py", "8", True),
        (["--nnodes", "2", "--nproc", "gpu", "-m", "pack.age", "-x"], "pack.age", "gpu", True),
        (["-r", "3", "-t3", "--tee", "1", "--virtual-local-rank", "train.py"], "train.py", "1", False),
        (["--no-python", "--rdzv-conf", "a=1,b=2", "program", "word"], "program", "1", False),
        (["--run-path", "/x/train.py"], "/x/train.py", "1", False),
    ],
)
def test_a_glance_at_the_command_line(words: list[str], script: str, workers: str, several: bool) -> None:
    seen = glance(words, {})
    assert seen is not None
    assert (seen.script, seen.workers, seen.several) == (script, workers, several)
    assert seen.module == ("-m" in words) and seen.python == ("--no-python" not in words)


def test_a_glance_sees_preloads_variables_and_help() -> None:
    seen = glance(["--preload", "a", "--preload=b.c", "train.py", "--preload", "d"], {"PET_NPROC_PER_NODE": "3"})
    assert seen is not None and seen.preload == ("a", "b.c") and seen.workers == "3"
    assert glance(["--help"], {}) is None and glance([], {}) is None and glance(["--nnodes"], {}) is None


def test_one_that_has_done_more_takes_over(play: Any, tmp_path: Any) -> None:
    (tmp_path / "more.py").write_text("import json\ndef prepare():\n    json.prepared = True\n")
    found = play(
        """
from taskd.launch import succession
succession.COMPILER = "more:prepare"
first = made()
first.wait(300)
told = []
line = succession.Succession(first, told.append)
before = first.pid
line.want()
line.want()
while not told:
    for fd, tend in line.sources().items():
        if select.select([fd], [], [], 0.05)[0]:
            tend()
say(changed=line.current is told[0] and line.current.pid != before, gone=first.pid == 0, sources=len(line.sources()))
child = line.current.fork(line.current.environment, [request("4")])
say(code=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
line.close()
""".replace("from taskd.launch import succession", "import select\nfrom taskd.launch import succession")
    )
    assert found[0] == {"changed": True, "gone": True, "sources": 1}
    assert found[-1] == {"code": 4}


def test_the_first_one_stays_where_the_next_has_threads_or_fails(play: Any, tmp_path: Any) -> None:
    (tmp_path / "more.py").write_text(
        "def prepare():\n    import threaded\ndef fail():\n    raise RuntimeError('no')\n"
    )
    for function in ("prepare", "fail"):
        (found,) = play(f"""
import select
from taskd.launch import succession
succession.COMPILER = "more:{function}"
first = made()
first.wait(300)
line = succession.Succession(first, lambda _: say(told=True))
line.want()
while len(line.sources()) > 1:
    for fd, tend in line.sources().items():
        if select.select([fd], [], [], 0.05)[0]:
            tend()
say(kept=line.current is first, ready=first.ready)
line.close()
""")
        assert found == {"kept": True, "ready": True}
