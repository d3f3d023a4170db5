"""A training whose launcher is stopped when a rank dies: nobody sees the death until the launcher goes on.

Rank 1 stops its launcher, says which process that is, and kills itself. Otherwise it is the smallest training here.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch
from scene import Net, Scene, average_gradients, loss_of, say

import taskd


def main() -> None:
    scene = Scene()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = taskd.session()
    session.register(model=model, optimizer=optimizer)
    for step in session.steps(scene.loader()):
        with step as batch:
            optimizer.zero_grad()
            loss_of(model, batch["x"]).backward()
            if scene.rank == 1 and step.number == scene.args.at and not step.rehearsal:
                stop_the_launcher(scene.args.folder)
            scene.here(step, scene.args.place)
            average_gradients(model)
            optimizer.step()
    scene.end(model)


def stop_the_launcher(folder: Path) -> None:
    """Once, and said before, since nobody writes for it while it is stopped."""
    try:
        (folder / "stopped").touch(exist_ok=False)
    except FileExistsError:
        return
    launcher = os.getppid()
    say(f"stops {launcher}")
    os.kill(launcher, signal.SIGSTOP)


if __name__ == "__main__":
    main()
