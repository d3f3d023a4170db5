"""Ranks without a launcher: plain processes that meet in a file store and say what they found in one JSON line each.

Used by the benchmarks of the guard alone, where a launcher, an agent and a manager would only be in the way. Whatever
still runs at the end is ended, and everything ends with the process that started it. It measures nothing itself.
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
    """A rank did not end well; the text is what it said last."""


def run(module: str, size: int, *words: object, timeout_s: float) -> list[dict[str, Any]]:
    """What `python -m module RANK SIZE FOLDER WORDS...` said on every rank. Raises Broken."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="taskd-bench-") as folder:
        # Children of a process that is killed are told so by the system: nothing may outlive its benchmark.
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
    """Until all have ended well, or one has not: the others would wait for it as long as they may."""
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
