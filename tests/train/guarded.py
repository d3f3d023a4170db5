"""Starts the ranks of a guard test as real processes and reads what each of them says.

A rank is `python tests/train/workers/NAME.py RANK SIZE FOLDER ARGS...`. It reports JSON lines on standard output. The
store is a file in FOLDER or a TCP store that the test runs. This module judges nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import stacks
from tests.forked import Forked, start
from tests.patience import PATIENCE_S
from tests.ready import readable

ROOT = Path(__file__).resolve().parent.parent.parent
WORKERS = Path(__file__).parent / "workers"


class Ranks:
    """The processes of one test. A context manager: at its end, processes that still run are killed."""

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

    def results(self, ranks: Sequence[int] | None = None) -> list[list[dict[str, Any]]]:
        """Wait until all ranks have ended, and return their reports. Fails the test with their output if one failed."""
        chosen = list(range(self.size) if ranks is None else ranks)
        slow = self._end(chosen)
        said = {rank: slow.get(rank, "") + self.processes[rank].communicate()[0] for rank in chosen}
        codes = {rank: self.processes[rank].returncode for rank in chosen}
        if any(codes.values()):
            text = "\n".join(f"--- rank {rank}, exit code {codes[rank]}\n{said[rank]}" for rank in chosen)
            pytest.fail(text, pytrace=False)
        return [reports(said[rank]) for rank in chosen]

    def _end(self, chosen: Sequence[int]) -> dict[int, str]:
        """Wait until these ranks have ended. If one fails, kill the others. Returns by rank why it was killed."""
        run = {self.processes[rank].status: rank for rank in chosen if self.processes[rank].poll() is None}
        listen = {self.processes[rank].stdout.fileno(): rank for rank in run.values()}
        killed: dict[int, str] = {}
        deadline = time.monotonic() + PATIENCE_S
        while run and time.monotonic() < deadline + PATIENCE_S:
            ready = readable([*run, *listen], deadline - time.monotonic())
            for one in ready:
                if one in run:
                    self.processes[run.pop(one)].poll()
                elif not self.processes[listen[one]].hear():
                    del listen[one]
            failed = [rank for rank in chosen if self.processes[rank].returncode]
            if run and not killed and (failed or not ready):
                killed = {rank: self._where(rank, failed) for rank in run.values()}
                for rank in killed:
                    self.processes[rank].kill()
                deadline = time.monotonic() + PATIENCE_S
        return killed

    def _where(self, rank: int, failed: Sequence[int]) -> str:
        """Return why this rank is killed and, if no other rank has `failed`, where it stands."""
        if failed:
            return f"(killed, since rank {failed[0]} had failed)\n"
        shown = stacks.of({self.processes[rank].pid: self.worker}, "--native")
        return f"(killed after {PATIENCE_S:.0f} s)\n{shown}\n"


def reports(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]
