"""Epochs whose loops leave something to the code behind them and to later epochs. --place: what that is, how the epochs
are written, and where rank 1 dies.

"mean": the losses of an epoch are summed up and divided by their number behind its loop. "norm": running means in
arrays, which each step changes and uses. "window": a list of losses, of which the rate of the next epoch follows.
"plain": `for epoch in range(...)`. "epochs": `for epoch in session.epochs(...)`.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.trust.scene import Net, Scene, say

EPOCHS = 3
scene = Scene()
kind, _, scene.args.place = scene.args.place.partition(", ")
what, epochs = kind.split(" ")


class Norm:
    """Running means, as Welford computes them."""

    def __init__(self) -> None:
        self.count, self.mean = 0, np.zeros(8)

    def update(self, x: torch.Tensor) -> None:
        """Take one batch in."""
        self.count += len(x)
        self.mean += (x.double().mean(0).numpy() - self.mean) * len(x) / self.count

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x - torch.from_numpy(self.mean).float()


model = DistributedDataParallel(Net())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
session = taskd.session()
session.register(model=model, optimizer=optimizer)


def train(norm: Norm, loader: Any, rate: float) -> tuple[float, int, list[float]]:
    """Train one epoch."""
    total, count, losses = 0.0, 0, list[float]()
    for step in session.steps(loader):
        with step as batch:
            x = batch["x"]
            if what == "norm":
                norm.update(x)
                x = norm(x)
            optimizer.zero_grad()
            loss = (model(x) - x).pow(2).mean() * rate
            scene.here(step, "forward")
            loss.backward()
            optimizer.step()
            if what == "mean":
                total += loss.item()
                count += len(x)
            elif what == "window":
                losses.append(loss.item())
    return total, count, losses


def main() -> None:
    """Train all epochs."""
    norm, loader, rate = Norm(), scene.loader(), 1.0
    over: Iterable[int] = session.epochs(EPOCHS) if epochs == "epochs" else range(EPOCHS)
    for epoch in over:
        total, count, losses = train(norm, loader, rate)
        if what == "mean":
            say(f"epoch {epoch} of rank {scene.rank}: {total / count:.6f}")
        elif what == "window":
            rate = 0.5 + 1 / (1 + sum(losses) / len(losses))
    scene.end(model, norm.count, torch.from_numpy(norm.mean), rate)


main()
