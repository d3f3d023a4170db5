"""Ranks without a launcher: plain processes that meet in a file store and say what they found in one JSON line each.

Used by the benchmarks of the guard alone, where a launcher, an agent and a manager would only be in the way. Whatever
still runs at the end is ended, and everything ends with the process that started it. It measures nothing itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any


class Broken(RuntimeError):
    """A rank did not end well; the text is what it said last."""


def run(module: str, size: int, *words: object, timeout_s: float) -> list[dict[str, Any]]:
    """What `python -m module RANK SIZE FOLDER WORDS...` said on every rank. Raises Broken."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="taskd-bench-") as folder:
        # Children of a process that is killed are told so by the system: nothing may outlive its benchmark.
        command = [sys.executable, "-m", "taskd.agent.launch_child", str(os.getpid()), "module", module]
        processes = [
            subprocess.Popen(
                [*command, str(rank), str(size), folder, *map(str, words)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]
        try:
            said = [process.communicate(timeout=timeout_s)[0] for process in processes]
        except subprocess.TimeoutExpired:
            raise Broken(f"{module} did not end within {timeout_s:g} s") from None
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
    codes = [process.returncode for process in processes]
    if any(codes):
        raise Broken(f"the ranks of {module} ended with {codes}: {' '.join(said)[-2000:]}")
    return [json.loads(text.splitlines()[-1]) for text in said]
