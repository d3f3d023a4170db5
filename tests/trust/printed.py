"""Loops whose steps gather something of each rank that is only shown, kept, and written to a file. --place says what is
gathered, and where rank 1 dies.

"number": `running += loss.item()`. "tensor": `total += loss.detach()`. "list": `losses.append(loss.item())`. "tensors":
`losses.append(loss.detach())`. "meter": an AverageMeter. "items": `seen[index] = loss`. "attribute": a list of the
trainer, which another of its methods shows. "dict": `logs["loss"].append(loss.item())`.
"""

import json
from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import taskd
from tests.trust.scene import Net, Scene

EPOCHS, COUNT = 3, 56
scene = Scene()
what, _, scene.args.place = scene.args.place.partition(", ")


class AverageMeter:
    """The usual one."""

    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0

    def update(self, value: float, count: int = 1) -> None:
        """Add one value."""
        self.sum += value * count
        self.count += count


data = TensorDataset(torch.randn(COUNT, 8), torch.arange(COUNT))
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=4, sampler=sampler)
model = DistributedDataParallel(Net())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(100 + scene.rank)
session = taskd.session()
session.register(model=model, optimizer=optimizer)


def train_epoch() -> Any:
    """Train, and return the mean of the losses."""
    running, total, losses, tensors, meter = 0.0, torch.zeros(()), list[float](), list[torch.Tensor](), AverageMeter()
    logs, seen = defaultdict[str, list[float]](list), torch.zeros(COUNT)
    for step in session.steps(loader):
        with step as (x, index):
            optimizer.zero_grad()
            each = (model(x) - x).pow(2).mean(1)
            scene.here(step, "forward")
            each.mean().backward()
            scene.here(step, "reduced")
            optimizer.step()
            if what == "number":
                running += each.mean().item()
            elif what == "tensor":
                total += each.mean().detach()
            elif what == "list":
                losses.append(each.mean().item())
            elif what == "tensors":
                tensors.append(each.mean().detach())
            elif what == "dict":
                logs["loss"].append(each.mean().item())
            elif what == "items":
                seen[index] = each.detach()
            else:
                meter.update(each.mean().item(), len(x))
            scene.here(step, "updated")
    if what == "number":
        return running / len(loader)
    if what == "tensor":
        return total.item() / len(loader)
    if what == "list":
        return sum(losses) / max(1, len(losses))
    if what == "tensors":
        return torch.stack(tensors).mean().item() if tensors else 0.0
    if what == "dict":
        return sum(logs["loss"]) / max(1, len(logs["loss"]))
    return seen if what == "items" else meter.sum / max(1, meter.count)


class Trainer:
    """Gathers the losses in an attribute."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def fit(self) -> None:
        """Train all epochs."""
        for epoch in session.epochs(EPOCHS):
            sampler.set_epoch(epoch)
            self.epoch()
            self.report()
        scene.end(model)

    def epoch(self) -> None:
        """Train one epoch."""
        for step in session.steps(loader):
            with step as (x, _):
                optimizer.zero_grad()
                loss = (model(x) - x).pow(2).mean()
                scene.here(step, "forward")
                loss.backward()
                scene.here(step, "reduced")
                optimizer.step()
                self.losses.append(loss.item())
                scene.here(step, "updated")

    def report(self) -> None:
        """Show the mean over all ranks."""
        mean = torch.tensor(sum(self.losses) / max(1, len(self.losses)))
        dist.all_reduce(mean)
        print(f"mean loss {mean.item() / 2:.4f}")
        self.losses = []


def main() -> None:
    """Run all kinds but that with an attribute."""
    history, best = [], float("inf")
    for epoch in session.epochs(EPOCHS):
        sampler.set_epoch(epoch)
        mean = torch.as_tensor(train_epoch())
        dist.all_reduce(mean)
        mean = mean / dist.get_world_size()
        history.append(mean.mean().item())
        best = min(best, history[-1])
        if scene.rank == 0:
            print(f"epoch {epoch}: mean loss {mean.mean():.4f}, best {best:.4f}")
            with open(scene.args.folder / "history.json", "w", encoding="utf-8") as file:
                json.dump(history, file)
    scene.end(model)


if what == "attribute":
    Trainer().fit()
else:
    main()
