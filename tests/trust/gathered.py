"""Loops whose steps gather something of each rank, and epochs that do something with it. --place says what is gathered,
what is done with it, and where rank 1 dies.

"number": `running += loss.item()`. "tensor": `total += loss.detach()`. "list": `losses.append(loss.item())`. "tensors":
`losses.append(loss.detach())`. "meter": an AverageMeter. "items": `seen[index] = loss`. "attribute": a list of the
trainer, which another of its methods reads. "dict": `logs["loss"].append(loss.item())`.
"computes": the mean over all ranks is in the next epoch's loss. "weighs": it is set as an attribute of a sampler.
"""

from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, WeightedRandomSampler

import taskd
from tests.trust.scene import Net, Scene

EPOCHS, COUNT = 3, 56
scene = Scene()
kind, _, scene.args.place = scene.args.place.partition(", ")
what, use = kind.split(" ")


class AverageMeter:
    """The usual one."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin again."""
        self.sum, self.count = 0.0, 0

    def update(self, value: float, count: int = 1) -> None:
        """Add one value."""
        self.sum += value * count
        self.count += count


data = TensorDataset(torch.randn(COUNT, 8), torch.arange(COUNT))
sampler: Any = DistributedSampler(data, seed=1)
if use == "weighs":
    sampler = WeightedRandomSampler(torch.ones(COUNT), COUNT // 2, generator=torch.Generator().manual_seed(scene.rank))
loader = DataLoader(data, batch_size=4, sampler=sampler)
model = DistributedDataParallel(Net())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(100 + scene.rank)
session = taskd.session()
session.register(model=model, optimizer=optimizer)


def loss_of(each: torch.Tensor, threshold: float) -> torch.Tensor:
    """Return the loss of self-paced learning: what is hard counts less."""
    return (each * torch.sigmoid(threshold - each)).mean() if use == "computes" else each.mean()


def train_epoch(threshold: float) -> Any:
    """Train, and return the mean of the losses."""
    running, total, losses, tensors, meter = 0.0, torch.zeros(()), list[float](), list[torch.Tensor](), AverageMeter()
    logs, seen = defaultdict[str, list[float]](list), torch.zeros(COUNT)
    for step in session.steps(loader):
        with step as (x, index):
            optimizer.zero_grad()
            each = (model(x) - x).pow(2).mean(1)
            loss = loss_of(each, threshold)
            scene.here(step, "forward")
            loss.backward()
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
        return sum(losses) / len(losses)
    if what == "tensors":
        return torch.stack(tensors).mean().item()
    if what == "dict":
        return sum(logs["loss"]) / len(logs["loss"])
    return seen if what == "items" else meter.sum / meter.count


class Trainer:
    """Gathers the losses in an attribute."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.threshold = 1.0

    def fit(self) -> None:
        """Train all epochs."""
        for epoch in session.epochs(EPOCHS):
            if use != "weighs":
                sampler.set_epoch(epoch)
            self.epoch()
            self.follow()
        scene.end(model)

    def epoch(self) -> None:
        """Train one epoch."""
        for step in session.steps(loader):
            with step as (x, _):
                optimizer.zero_grad()
                each = (model(x) - x).pow(2).mean(1)
                loss = loss_of(each, self.threshold)
                scene.here(step, "forward")
                loss.backward()
                scene.here(step, "reduced")
                optimizer.step()
                self.losses.append(each.mean().item())
                scene.here(step, "updated")

    def follow(self) -> None:
        """Do what follows an epoch."""
        mean = torch.tensor(sum(self.losses) / len(self.losses))
        dist.all_reduce(mean)
        if use == "computes":
            self.threshold = mean.item() / 2
        else:
            sampler.weights = torch.full((COUNT,), mean.item(), dtype=torch.double).cumsum(0)
        self.losses = []


def main() -> None:
    """Run all kinds but that with an attribute."""
    threshold = 1.0
    for epoch in session.epochs(EPOCHS):
        if use != "weighs":
            sampler.set_epoch(epoch)
        mean = torch.as_tensor(train_epoch(threshold))
        dist.all_reduce(mean)
        mean = mean / dist.get_world_size()
        if use == "computes":
            threshold = mean.mean().item()
        else:
            sampler.weights = 1 + mean.double() * torch.arange(1, COUNT + 1)
    scene.end(model)


if what == "attribute":
    Trainer().fit()
else:
    main()
