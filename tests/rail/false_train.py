"""The training of the benchmarks, in which rank FALSE_RANK falsely says that it has put a rail back.

It does so as long as there is a file FALSE_WHILE. The state of its engine is true; only the order does not reach it.
"""

from __future__ import annotations

import os
import runpy
from pathlib import Path

from taskd.bench import job
from taskd.comm import rail_engine

honest = rail_engine.set_in_use


def set_in_use(name: str, in_use: bool) -> None:
    is_false = os.environ["RANK"] == os.environ["FALSE_RANK"] and Path(os.environ["FALSE_WHILE"]).exists()
    if not (in_use and is_false):
        honest(name, in_use)


rail_engine.set_in_use = set_in_use
runpy.run_path(str(job.TRAIN), run_name="__main__")
