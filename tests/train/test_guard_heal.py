"""A rank is killed in the middle of a step. The others keep their process and their DDP, and the weights are the same.

There are three real ranks and a real SIGKILL. workers/guard_heal.py makes the repair by hand. The repair of a session
is tested elsewhere.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.train.guarded import Ranks
from tests.verdicts import same_bits

SIZE, VICTIM = 3, 2


def run(folder: Path, port: int, kill_step: int, inner: str) -> list[dict[str, Any]]:
    folder.mkdir()
    with Ranks("guard_heal", SIZE, folder, str(port), str(kill_step), env={"TASKD_INNER": inner}) as ranks:
        if kill_step >= 0:
            victim = ranks.processes[VICTIM]
            said = victim.communicate(timeout=PATIENCE_S)[0]
            assert victim.returncode == -signal.SIGKILL, said
            ranks.start(VICTIM, "newcomer")
        return [said_of[0] for said_of in ranks.results()]


@pytest.mark.parametrize("inner", ["gloo", "rail"])
def test_weights_are_identical_after_a_kill(tmp_path: Path, free_port: Callable[[], int], inner: str) -> None:
    calm = run(tmp_path / "calm", free_port(), -1, inner)
    healed = run(tmp_path / "healed", free_port(), 4, inner)
    same_bits([said["hash"] for said in [*calm, *healed]], [calm[0]["hash"]] * (len(calm) + len(healed)), str(healed))
    assert [said["epoch"] for said in healed] == [1] * SIZE
    # The groups have the same names in a survivor and in the newcomer, though they were made at different times.
    assert [said["groups"] for said in healed] == [["0@0-2", "0@0,2"], ["0@0-2"], ["0@0-2", "0@0,2"]]
