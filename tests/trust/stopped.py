"""A training whose launcher or manager (STOPS) is stopped when a rank dies: nobody sees the death, or nobody decides.

Rank 1 prints the pid of that process, stops it and kills itself. Otherwise this is the smallest training here.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch
from scene import Net, Scene, average_gradients, loss_of, say

import taskd
from taskd import config
from taskd.manager import residence


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
                stop(scene.args.folder)
            scene.here(step, scene.args.place)
            average_gradients(model)
            optimizer.step()
    scene.end(model)


def stop(folder: Path) -> None:
    """Stop the process, once. Its pid is printed before, since nobody passes output on while it is stopped."""
    try:
        (folder / "stopped").touch(exist_ok=False)
    except FileExistsError:
        return
    launcher = os.getppid()
    pid = launcher if os.environ["STOPS"] == "launcher" else manager()
    say(f"stops {pid}")
    os.kill(pid, signal.SIGSTOP)


def manager() -> int:
    """Return the pid of the job's manager."""
    note = residence.read(config.load().job.directory)
    assert note is not None
    return int(note["pid"])


if __name__ == "__main__":
    main()
