"""Starts the ranks of a guard test as real processes and reads what each of them says.

A rank is `python tests/train/workers/NAME.py RANK SIZE FOLDER ARGS...`; what it reports are JSON lines on standard
output. The store is a file in FOLDER or a TCP store that the test runs. It judges nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import beside
from tests.forked import Forked, start

ROOT = Path(__file__).resolve().parent.parent.parent
WORKERS = Path(__file__).parent / "workers"


class Ranks:
    """The processes of one test. A context manager: what still runs at its end is killed."""

    def __init__(
        self, worker: str, size: int, folder: Path, *args: str, env: Mapping[str, str] | None = None, start: bool = True
    ) -> None:
        self.worker, self.size, self.folder, self.args = worker, size, folder, args
        self.env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(env or {})}
        self.processes: dict[int, Forked] = {}
        if start:
            for rank in range(size):
                self.start(rank)

    def start(self, rank: int, *more: str) -> Forked:
        words = [str(WORKERS / f"{self.worker}.py"), str(rank), str(self.size), str(self.folder), *self.args, *more]
        self.processes[rank] = start(words, self.env, self.folder, rank)
        return self.processes[rank]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.communicate()

    def results(self, timeout_s: float, ranks: Sequence[int] | None = None) -> list[list[dict[str, Any]]]:
        """The reports of each rank, once all have ended well. Fails the test, with what they said, if one has not."""
        said = {}
        chosen = range(self.size) if ranks is None else ranks
        for rank in chosen:
            try:
                said[rank] = self.processes[rank].communicate(timeout=timeout_s * beside.patience())[0]
            except subprocess.TimeoutExpired:
                self.processes[rank].kill()
                said[rank] = f"(killed after {timeout_s} s)\n" + self.processes[rank].communicate()[0]
        codes = {rank: self.processes[rank].returncode for rank in chosen}
        if any(codes.values()):
            text = "\n".join(f"--- rank {rank}, exit code {codes[rank]}\n{said[rank]}" for rank in chosen)
            pytest.fail(text, pytrace=False)
        return [reports(said[rank]) for rank in chosen]


def reports(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]
