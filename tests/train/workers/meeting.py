"""A file store that no fault of a group affects, and a barrier over it. It does not use groups."""

from __future__ import annotations

import time
from pathlib import Path

import torch.distributed as dist

from tests.patience import PATIENCE_S


class Meeting:
    def __init__(self, folder: Path, size: int) -> None:
        self.store = dist.FileStore(str(folder / "meeting"), size)
        self.size = size
        self.turn = 0

    def __call__(self) -> None:
        self.turn += 1
        self.store.add(f"turn{self.turn}", 1)
        deadline = time.monotonic() + PATIENCE_S
        while self.store.add(f"turn{self.turn}", 0) < self.size:
            assert time.monotonic() < deadline, "the other rank does not come"
            time.sleep(0.005)
