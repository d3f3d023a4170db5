"""A training that is over, and a rank that dies afterwards: in its last lines, in the end of its group, at its exit."""

import atexit
import os
import signal
from typing import Any

import torch
import torch.distributed as dist

import taskd
from tests.trust.scene import Net, Scene, average_gradients, loss_of, say

RANK_0 = ("saves", "saves, barrier", "gone")
"""The places at which rank 0 dies. At all other places rank 1 dies."""

scene = Scene()
wanted = scene.args.place


def here(place: str) -> None:
    """Die here once, if this is the place."""
    if place != wanted or scene.rank != (0 if place in RANK_0 else 1):
        return
    try:
        (scene.args.folder / "dead").mkdir()  # a folder, since taskd would take an opened file for work
    except FileExistsError:
        return
    say(f"dies {scene.rank}")
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


class Late:
    """Reads a folder at the very end of the interpreter, when the modules that were imported later are cleared."""

    def __init__(self) -> None:
        self._look = os.listdir

    def __del__(self) -> None:
        self._look(".")


torch.late = Late()  # type: ignore[attr-defined]
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
session = taskd.session()
session.register(model=model, optimizer=optimizer)
atexit.register(here, "exit")
for step in session.steps(scene.loader()):
    with step as batch:
        optimizer.zero_grad()
        loss_of(model, batch["x"]).backward()
        average_gradients(model)
        optimizer.step()

if scene.rank == 0:
    with open(scene.args.folder / "final", "w") as file:
        file.write("begin\n")
        file.flush()
        here("saves")
        here("saves, barrier")
        file.write("end\n")
here("before")
if wanted.endswith("barrier"):
    dist.barrier()
scene.weights(*model.parameters())
here("weights")
c10d: Any = dist.distributed_c10d
forget = c10d._update_default_pg
c10d._update_default_pg = lambda group: (here("inside"), forget(group))[1]  # the last step of destroying
dist.destroy_process_group()
here("after")
here("gone")
if wanted == "writes after" and scene.rank == 1:
    with open(scene.args.folder / "own", "w"):
        here("writes after")
