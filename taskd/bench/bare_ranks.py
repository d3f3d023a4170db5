"""Ranks without a launcher: plain processes that meet in a file store and print their results in one JSON line each.

The benchmarks of the guard alone use it: a launcher, an agent and a manager would only disturb them. Processes that
still run at the end are killed, and all of them end with the process that started them. It measures nothing itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Broken(RuntimeError):
    """A rank failed; the text is its last output."""


def run(module: str, size: int, *words: object, timeout_s: float) -> list[dict[str, Any]]:
    """Run `python -m module RANK SIZE FOLDER WORDS...` on every rank; return their results. Raises Broken."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="taskd-bench-") as folder:
        # The kernel signals these children when their parent is killed: nothing may outlive its benchmark.
        command = [sys.executable, "-m", "taskd.launch.child", str(os.getpid()), "module", module]
        outputs = [Path(folder, f"said-{rank}") for rank in range(size)]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank, output in enumerate(outputs):
                words_of_rank = [str(rank), str(size), folder, *map(str, words)]
                with output.open("wb") as file:
                    processes.append(
                        subprocess.Popen(
                            [*command, *words_of_rank], env=environment, stdin=subprocess.DEVNULL, stdout=file
                        )
                    )
            _wait(processes, timeout_s)
        except TimeoutError:
            raise Broken(f"{module} did not end within {timeout_s:g} s") from None
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        said = [output.read_text() for output in outputs]
    codes = [process.returncode for process in processes]
    if any(codes):
        raise Broken(f"the ranks of {module} ended with {codes}: {' '.join(said)[-2000:]}")
    return [json.loads(text.splitlines()[-1]) for text in said]


def _wait(processes: Sequence[subprocess.Popen[bytes]], timeout_s: float) -> None:
    """Wait until all have ended well, or one has failed: the others would wait for it until their timeout."""
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as opened:
        for process in processes:
            ended = os.pidfd_open(process.pid)
            opened.callback(os.close, ended)
            selector.register(ended, selectors.EVENT_READ, process)
        while selector.get_map():
            found = selector.select(max(0.0, deadline - time.monotonic()))
            if not found:
                raise TimeoutError
            for key, _ in found:
                selector.unregister(key.fd)
                if key.data.wait() != 0:
                    return
