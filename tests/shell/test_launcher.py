"""taskd-run without faults: workers find the same as under torchrun, and a job ends in the same way.

Where it matters, the same script runs under both launchers, and the test compares what it found.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.launched import Launched
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.slow

Start = Callable[..., Any]
MAY_DIFFER = {
    "TORCHELASTIC_RUN_ID",  # a new one for each run
    "TORCHELASTIC_ERROR_FILE",
    "MASTER_PORT",
    "TORCHELASTIC_MAX_RESTARTS",  # counts the lives of each rank; 3 unless the user sets it
    "PYTHONPATH",
}
"""The variables that may differ from torchrun's, and why."""
DUMP = """
import json, os, signal, sys, threading, multiprocessing, random
import numpy, torch
found = {
    "environment": dict(os.environ), "argv": sys.argv, "path": sys.path[0], "name": __name__, "file": __file__,
    "spec": getattr(__spec__, "name", None), "package": __package__, "cwd": os.getcwd(),
    "main": sys.modules["__main__"].__dict__ is globals(), "stdin": os.fstat(0).st_rdev,
    "unbuffered": sys.stdout.write_through, "session": os.getsid(0) == os.getpid(),
    "threads": threading.active_count(), "int": str(signal.getsignal(signal.SIGINT)),
    "term": str(signal.getsignal(signal.SIGTERM)), "process": multiprocessing.current_process().name,
}
os.write(1, ("found " + json.dumps(found) + "\\n").encode())
os.write(1, f"drawn {torch.rand(1).item()} {random.random()} {numpy.random.rand()} {torch.initial_seed()}\\n".encode())
"""


@pytest.fixture
def start(tmp_path: Path, free_port: Callable[[], int]) -> Start:
    """Run taskd-run with these words in the test's folder."""

    @contextmanager
    def run(*words: str, nodes: Any = ((),), **variables: str | None) -> Iterator[Launched]:
        quiet = {"TASKD_STD_LOG_LEVEL": "warning", **variables}
        with Launched(tmp_path, free_port(), *words, nodes=nodes, env=quiet) as launched:
            yield launched

    return run


def torchrun(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
    )


def found_by_rank(lines: list[str]) -> dict[str, dict[str, Any]]:
    rows = [json.loads(line.removeprefix("found ")) for line in lines if line.startswith("found ")]
    return {row["environment"]["RANK"]: row for row in rows}


@pytest.mark.parametrize("options", [["dump.py"], ["-m", "dump"], ["--run-path", "{folder}/dump.py"]])
def test_a_worker_finds_what_it_finds_under_torchrun(start: Start, tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "dump.py").write_text(DUMP)
    script = [word.format(folder=tmp_path) for word in options]
    words = ["--nproc-per-node", "2", "--role", "trainer", *script, "--lr", "0.1", "a b"]
    reference = torchrun(tmp_path, *words)
    assert reference.returncode == 0, reference.stdout
    with start(*words) as launched:
        launched.end()
    theirs, ours = found_by_rank(reference.stdout.splitlines()), found_by_rank(launched.lines)
    assert set(theirs) == set(ours) == {"0", "1"}
    for rank, row in theirs.items():
        own = ours[rank]
        names = set(row["environment"]) | set(own["environment"])
        taskds = {name for name in names if name.startswith("TASKD_")}  # only one of the two launchers gets them
        for name in names - MAY_DIFFER - taskds:
            assert own["environment"].get(name) == row["environment"].get(name), name
        own["threads"] -= 2  # taskd's link to its agent, and its watch for broken collectives
        for name in set(row) - {"environment"}:
            if options[0] == "--run-path" and name in ("argv", "path", "process", "session", "unbuffered", "threads"):
                continue  # torchrun makes such workers with multiprocessing
            assert own[name] == row[name], name
    drawn = launched.said("drawn")
    assert len({word for line in drawn for word in line.split()}) == 8, "generators are the same in two workers"
    python = [line for line in reference.stdout.splitlines() if line.startswith("drawn ")]
    assert len({word for line in python for word in line.split()[1:]}) == 8, "under python they are the same"


def test_exit_codes_and_tracebacks_are_pythons(start: Start, tmp_path: Path) -> None:
    (tmp_path / "fail.py").write_text("import sys\ndef inner():\n    raise KeyError('lost')\ninner()\n")
    with start("--nproc-per-node", "2", "fail.py") as launched:
        launched.end(1)
    assert "exitcode  : 1" in launched.text and "fail.py FAILED" in launched.text
    assert not re.search("taskd/(agent|launch|worker)", launched.text), launched.text
    assert "runpy" not in launched.text
    assert launched.text.count("raise KeyError('lost')") == 2, "each rank has said it, and none was started again"
    assert "every rank failed in its set-up" in launched.text
    (tmp_path / "leave.py").write_text("import os, sys\nsys.exit(0 if os.environ['RANK'] == '0' else 'no luck')\n")
    with start("--nproc-per-node", "2", "--max-restarts", "0", "leave.py") as launched:
        launched.end(1)
    assert "no luck" in launched.text


def test_the_cause_is_shown_as_by_torchrun(start: Start, tmp_path: Path) -> None:
    """`record` writes the error file, and the launcher shows the traceback in it."""
    (tmp_path / "recorded.py").write_text(
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\ndef main():\n    raise ValueError('the very cause')\nmain()\n"
    )
    (tmp_path / "tmp").mkdir()
    with start("--nproc-per-node", "1", "--max-restarts", "0", "recorded.py", TMPDIR=str(tmp_path / "tmp")) as launched:
        launched.end(1)
    assert list((tmp_path / "tmp").glob("torchelastic_*/*/attempt_0/0/error.json")), "what is shown can be read again"
    assert "Root Cause (first observed failure)" in launched.text
    shown = launched.text[launched.text.index("Root Cause") :]
    assert "ValueError: the very cause" in shown and "error.json" in shown


def test_log_files(start: Start, tmp_path: Path) -> None:
    (tmp_path / "talk.py").write_text(
        "import os, sys\nprint('out', os.environ['RANK'])\nprint('err', os.environ['RANK'], file=sys.stderr)\n"
    )
    with start("--nproc-per-node", "2", "--log-dir", "logs", "-r", "1", "-t", "2", "talk.py") as launched:
        launched.end()
    files = {path.name + path.parent.name: path.read_text() for path in (tmp_path / "logs").rglob("*.log")}
    assert files["stdout.log0"] == "out 0\n" and files["stdout.log1"] == "out 1\n"
    assert files["stderr.log0"] == "err 0\n"
    assert "out 0" not in launched.text, "it was redirected"
    assert "[default0]:err 0" in launched.text and "[default1]:err 1" in launched.text
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with start("--nproc-per-node", "2", "--local-ranks-filter", "1", "talk.py", TMPDIR=str(temporary)) as launched:
        launched.end()
    assert "out 1" in launched.text and "out 0" not in launched.text
    assert not list(temporary.glob("torchelastic_*")), "the folder that nothing was written into has gone"


def test_spawned_loader_workers_find_the_script(start: Start, tmp_path: Path) -> None:
    (tmp_path / "load.py").write_text(
        "import torch\nfrom torch.utils.data import DataLoader, Dataset\n"
        "class Squares(Dataset):\n"
        "    def __len__(self): return 6\n"
        "    def __getitem__(self, at): return at * at\n"
        "def collate(items): return sum(items)\n"
        "if __name__ == '__main__':\n"
        "    for way in ('fork', 'spawn'):\n"
        "        loader = DataLoader(Squares(), batch_size=2, num_workers=1, multiprocessing_context=way,\n"
        "                            collate_fn=collate)\n"
        "        print(f'{way} {list(loader)}\\n', end='', flush=True)\n"
    )
    with start("--nproc-per-node", "1", "load.py") as launched:
        launched.end()
    assert launched.said("fork") == launched.said("spawn") == ["[1, 13, 41]"]


def test_a_program_that_is_no_script(start: Start, tmp_path: Path) -> None:
    program = tmp_path / "program.sh"
    program.write_text("#!/bin/sh\necho rank $RANK of $WORLD_SIZE got $1\n")
    program.chmod(0o755)
    with start("--nproc-per-node", "2", "--no-python", str(program), "it") as launched:
        launched.end()
    assert sorted(launched.said("rank")) == ["0 of 2 got it", "1 of 2 got it"]
    with start("--nproc-per-node", "1", "--max-restarts", "0", "--no-python", "/bin/false") as launched:
        launched.end(1)


def test_switched_off_it_is_torchrun(start: Start, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        "import os\nif os.environ['RANK'] == '1': os._exit(4)\nimport time; time.sleep(60)"
    )
    with start("--nproc-per-node", "2", "one.py", TASKD_PROCESS_ENABLE="off") as launched:
        launched.end(1)
    assert "this is plain torchrun" in launched.text and "exitcode  : 4" in launched.text
    with start("--nproc-per-node", "2", "one.py", PROCESS_RECOVER="off") as launched:
        launched.end(1)
    assert "runs unguarded" in launched.text and "exitcode  : 4" in launched.text
    assert launched.text.count("exitcode") == 1, "the other one was ended, it did not fail"


def test_modules_are_preloaded(start: Start, tmp_path: Path) -> None:
    (tmp_path / "heavy.py").write_text("import os\nloaded_by = os.getpid()\n")
    (tmp_path / "use.py").write_text(
        "import os, heavy\nprint(f'same {heavy.loaded_by == os.getpid()}\\n', end='', flush=True)\n"
    )
    for options, same in (((), "True"), (("--preload", "heavy"), "False")):
        with start("--nproc-per-node", "1", *options, "use.py") as launched:
            launched.end()
        assert launched.said("same") == [same]


@pytest.mark.parametrize("way", ["static", "c10d"])
def test_two_nodes(start: Start, tmp_path: Path, free_port: Callable[[], int], way: str) -> None:
    (tmp_path / "sum.py").write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "t = torch.tensor([dist.get_rank() + 1.0])\n"
        "dist.all_reduce(t)\n"
        "os.write(1, f\"sum {t.item()} {os.environ['GROUP_RANK']} {os.environ['LOCAL_RANK']}\\n\".encode())\n"
        "dist.destroy_process_group()\n"
    )
    port = free_port()
    words = ["--nnodes", "2", "--nproc-per-node", "2"]
    nodes: list[list[str]] = [[], []]
    if way == "static":
        words += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
        nodes = [["--node-rank", "0"], ["--node-rank", "1"]]
    else:
        words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "two"]
    with start(*words, "sum.py", nodes=nodes, TASKD_STD_LOG_LEVEL="info") as launched:
        launched.end()
    assert sorted(launched.said("sum")) == ["10.0 0 0", "10.0 0 1", "10.0 1 0", "10.0 1 1"]
    assert "all 4 ranks are here" in launched.text
