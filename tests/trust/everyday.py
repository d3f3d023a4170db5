"""An everyday script: steps counted over all epochs, sums of each epoch, a hook registered once, a signal handler.

In step --at rank 0 gets a signal before rank 1 dies at --place. When the step is done again, the value that the handler
has set is kept. The guard that registers the hook only once is kept, too. All counts are put back, also that in a dict.
"""

import os
import signal
from typing import Any

import torch

import taskd
from tests.trust.scene import STEPS, Net, Scene, average_gradients, loss_of, say

EPOCHS = 3

scene = Scene()
global_step = 0
received = 0
hook: Any = None
calls: list[int] = []
totals = {"samples": 0}


def stop(number: int, frame: Any) -> None:
    """Handle the signal by which a cluster's scheduler asks for a checkpoint."""
    global received
    received = number


def train_epoch(session: Any, model: Net, optimizer: torch.optim.Optimizer, loader: Any) -> tuple[int, float]:
    """Train one epoch. Return its sums."""
    global global_step, hook
    samples, running = 0, 0.0
    for step in session.steps(loader):
        with step as batch:
            if hook is None:
                hook = model.register_forward_hook(lambda *_: calls.append(1))
            for group in optimizer.param_groups:
                group["lr"] = 0.01 / (1 + global_step)
            if step.number == scene.args.at and scene.rank == 0 and not received:
                os.kill(os.getpid(), signal.SIGUSR1)
            scene.here(step, "begun")
            optimizer.zero_grad()
            calls.clear()
            loss = loss_of(model, batch["x"]) * min(1.0, (global_step + 1) / 10)
            loss.backward()
            assert len(calls) == 1, f"the hook was registered {len(calls)} times"
            average_gradients(model)
            scene.here(step, "reduced")
            optimizer.step()
            global_step += 1
            scene.here(step, "counted")
            samples += len(batch["x"])
            totals["samples"] += len(batch["x"])
            running += loss.item()
            scene.here(step, "updated")
    return samples, running


def main() -> None:
    """Train over the epochs of a session."""
    signal.signal(signal.SIGUSR1, stop)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    session = taskd.session()
    session.register(model=model, optimizer=optimizer)
    loader = scene.loader()
    found: list[float] = []
    samples, running = 0, 0.0
    for _ in session.epochs(EPOCHS):
        samples, running = train_epoch(session, model, optimizer, loader)
        found.append(running)
    if scene.rank == 0:
        say(f"received {received}")
    say(f"sums {scene.rank} {samples} {running:.12f}")
    scene.end(model, global_step, totals["samples"])


assert scene.args.at < STEPS * EPOCHS
main()
