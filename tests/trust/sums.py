"""What a rank sums up or gathers over all epochs, and computes with in each step.

"number": a sum of losses. "list": all losses, of which the mean is used. "attribute": a list in an object. "deque": the
last losses. "dict": a list in a dict.
"""

from collections import deque
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.trust.scene import Net, Scene

scene = Scene()
kind, _, scene.args.place = scene.args.place.partition(", ")


class Clipper:
    """Clips at the mean of all norms so far."""

    def __init__(self) -> None:
        self.norms: list[float] = []

    def clip(self, model: torch.nn.Module) -> None:
        """Clip the gradients."""
        self.norms.append(torch.nn.utils.get_total_norm(one.grad for one in model.parameters()).item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), sum(self.norms) / len(self.norms))


model = DistributedDataParallel(Net())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
session = taskd.session()
session.register(model=model, optimizer=optimizer)
loader = scene.loader()
total, losses, last, logs, clipper = 0.0, [1.0], deque([1.0], maxlen=3), {"loss": [1.0]}, Clipper()
for epoch in session.epochs(3):
    for step in session.steps(loader):
        with step as batch:
            x = batch["x"] / 20
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), x)
            scene.here(step, "forward")
            if kind == "number":
                (loss * (1 + total)).backward()
            elif kind == "list":
                (loss * sum(losses) / len(losses)).backward()
            elif kind == "deque":
                (loss * sum(last)).backward()
            elif kind == "dict":
                (loss * max(logs["loss"])).backward()
            else:
                loss.backward()
                clipper.clip(model)
            scene.here(step, "reduced")
            optimizer.step()
            scene.here(step, "updated")
        total += loss.item()
        losses.append(loss.item())
        last.append(loss.item())
        logs["loss"].append(loss.item())
        scene.here(step, "behind")
    scene.here(SimpleNamespace(number=epoch, rehearsal=False), "between")
scene.end(model, total, *losses, *last, *logs["loss"])
