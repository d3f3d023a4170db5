"""Loops whose steps keep a value somewhere, and compute with it. --place says where, and where rank 1 dies."""

import contextvars
import functools
import threading
from decimal import Decimal
from enum import Enum
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import taskd
from tests.trust.scene import Net, Scene

scene = Scene()
kind, _, scene.args.place = scene.args.place.partition(", ")
data = TensorDataset(torch.randn(56, 8), torch.arange(56))
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=4, sampler=sampler)
model = DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(100 + scene.rank)
session = taskd.session()
session.register(model=model, optimizer=optimizer)


class Phase(Enum):
    """How a training goes on."""

    WARM = 0.1
    HOT = 1.0


class Config:
    """Counts for all of its objects."""

    weight, seen = 1.0, 0

    @classmethod
    def advance(cls, loss):
        cls.weight = 0.9 * cls.weight + 0.1 * loss
        cls.seen += 1


class Bag:
    """Gets its attributes by setattr."""

    __slots__ = ("gain", "turns")

    def __init__(self):
        self.gain, self.turns = 1.0, 0

    def update(self, **values):
        for name, value in values.items():
            setattr(self, name, value)


class Criterion(torch.nn.Module):
    """A module that nobody registers, and that counts."""

    def __init__(self):
        super().__init__()
        self.calls, self.seen = 0, []

    def forward(self, loss):
        self.calls += 1
        self.seen.append(loss.item())
        return loss * (1 + 0.1 * self.calls) / (1 + sum(self.seen))


class Drawn:
    """Draws, and makes what it draws from, at its first use."""

    def __init__(self):
        self.generator = None

    @functools.cached_property
    def table(self):
        return torch.rand(8)

    def __call__(self):
        if self.generator is None:
            self.generator = torch.Generator().manual_seed(5)
        return torch.rand(1, generator=self.generator).item()


@functools.lru_cache
def table(length):
    return torch.rand(length, 8)


class Callback:
    """One of many."""

    def __init__(self):
        self.value = 1.0

    def after(self, loss):
        self.value = 0.9 * self.value + 0.1 * loss


def default(state={"calls": 0}):  # noqa: B006
    state["calls"] += 1
    return 1 + 0.1 * state["calls"]


def scaled(state):
    state["calls"] += 1
    return 1 + 0.1 * state["calls"]


def made(cell):
    def noise():
        cell[0] = cell[0] * 0.97
        return cell[0]

    return noise


warm, info = True, {"warm": True, "weight": None}
previous = best = done = None
smooth, count, temperature = np.float64(1.0), np.int64(0), Decimal("1.5")
phase = Phase.WARM
drawn, bag, criterion, callbacks = Drawn(), Bag(), Criterion(), [Callback() for _ in range(12)]
progress = contextvars.ContextVar("progress", default=0)
local = threading.local()
local.turns = 0
part, noise = functools.partial(scaled, state={"calls": 0}), made([1.0])
stats = {"n": 0}


def watch(module, inputs, output):
    stats["n"] += 1
    return output * (1 + 0.1 * stats["n"])


def tally(optimizer, args, kwargs):
    stats["n"] += 1


if kind == "hook":
    model.module.second.register_forward_hook(watch)
elif kind == "optimizer hook":
    optimizer.register_step_post_hook(tally)


def weighted(loss):
    """Return the loss, weighted by what the steps have kept."""
    match kind:
        case "flag":
            return loss * (0.1 if warm else 1.0)
        case "flag in a dict":
            return loss * (0.1 if info["warm"] else 1.0)
        case "None":
            return loss * (0.1 if done is None else 1.0)
        case "None before":
            return loss * (1.0 if previous is None else min(previous, 2.0)) / (best or 1.0) * (info["weight"] or 1.0)
        case "NumPy":
            return loss / float(smooth) * (1 + 0.1 * int(count))
        case "Decimal":
            return loss * float(temperature)
        case "Enum":
            return loss * phase.value
        case "class":
            return loss * Config.weight * (1 + 0.1 * Config.seen)
        case "setattr":
            return loss * bag.gain * (1 + 0.05 * bag.turns)
        case "module":
            return criterion(loss)
        case "callbacks":
            return loss * sum(one.value for one in callbacks) / 12
        case "context":
            return loss * (1 + 0.1 * progress.get())
        case "thread":
            return loss * (1 + 0.1 * local.turns)
        case "default":
            return loss * default()
        case "partial":
            return loss * part()
        case "cell":
            return loss * noise()
        case "generator":
            return loss * (1 + drawn())
        case "property":
            return loss * (1 + drawn.table.mean())
        case "cache":
            return loss * (1 + table(3).mean())
        case "optimizer hook":
            return loss * (1 + 0.1 * stats["n"])
    return loss


def keep(step, loss):
    """Keep something for the next steps."""
    global warm, done, previous, best, smooth, count, temperature, phase
    late = step.number >= 2 and loss < 1.2
    match kind:
        case "flag" if late:
            warm = False
        case "flag in a dict" if late:
            info["warm"] = False
        case "None" if late:
            done = True
        case "Enum" if late:
            phase = Phase.HOT
        case "None before":
            previous = loss
            if best is None or previous < best:
                best = previous
            info["weight"] = 0.9 * (info["weight"] or 1.0) + 0.1 * previous
        case "NumPy":
            smooth = 0.9 * smooth + 0.1 * np.mean([loss])
            count += 1
        case "Decimal":
            temperature = max(temperature * Decimal("0.9"), Decimal("0.5"))
        case "class":
            Config.advance(loss)
        case "setattr":
            bag.update(gain=0.9 * bag.gain + 0.1 * loss, turns=bag.turns + 1)
        case "callbacks":
            for one in callbacks:
                one.after(loss)
        case "context":
            progress.set(progress.get() + 1)
        case "thread":
            local.turns += 1


for epoch in session.epochs(3):
    sampler.set_epoch(epoch)
    for step in session.steps(loader):
        with step as (x, _):
            optimizer.zero_grad()
            loss = weighted(F.mse_loss(model(x), x))
            scene.here(step, "forward")
            loss.backward()
            scene.here(step, "reduced")
            optimizer.step()
            keep(step, loss.item())
            scene.here(step, "updated")
        scene.here(step, "behind")
    scene.here(SimpleNamespace(number=epoch, rehearsal=False), "between")
scene.end(model)
