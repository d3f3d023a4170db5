"""How long things take to start: `import taskd`, `taskd --help`, a manager that is ready.

Each one is measured several times on new processes, after one run that warms the file cache. The manager is ready when
its log says so, which is after its socket is bound and its journal is open. Nothing here needs torch.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import taskd
from taskd.bench.report import Figure, Goal, median

RUNS = 9
_IMPORT = (
    "import sys, time; sys.path.insert(0, {where!r}); begin = time.perf_counter(); "
    "import taskd, taskd.compat; print((time.perf_counter() - begin) * 1e3)"
)
_HELP = "import sys; from taskd.cli.main import main; sys.exit(main(['--help']))"


def measure() -> dict[str, Figure]:
    """All figures of this benchmark."""
    return {
        "import_ms": median(_repeat(_import_ms), "ms", Goal("<", 50)),
        "help_ms": median(_repeat(_help_ms), "ms", Goal("<", 400)),
        "manager_ready_ms": median(_repeat(_manager_ready_ms), "ms", Goal("<", 500)),
    }


def _repeat(once: Callable[[], float]) -> list[float]:
    once()
    return [once() for _ in range(RUNS)]


def _import_ms() -> float:
    # -S, because an installed taskd_compat.pth would import taskd before the clock is read.
    where = str(Path(taskd.__file__).resolve().parent.parent)
    command = [sys.executable, "-S", "-c", _IMPORT.format(where=where)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _help_ms() -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", _HELP], stdout=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - begin) * 1e3


def _manager_ready_ms() -> float:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="taskd-bench-") as directory:
        environment = os.environ | {
            "TASKD_RUN_DIR": directory,
            "TASKD_JOB_ID": "bench",
            "TASKD_MANAGER_PORT": str(port),
            "TASKD_MANAGER_HOST": "127.0.0.1",
            "TASKD_STD_LOG_LEVEL": "info",
        }
        begin = time.perf_counter()
        command = [sys.executable, "-m", "taskd.manager"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, text=True) as manager:
            assert manager.stderr is not None
            said = []
            for line in manager.stderr:
                said.append(line)
                if "ready: manager of job" in line:
                    break
            taken = (time.perf_counter() - begin) * 1e3
            manager.terminate()
            manager.stderr.read()
    if not said or "ready" not in said[-1]:
        raise RuntimeError(f"the manager did not become ready: {''.join(said)}")
    return taken
