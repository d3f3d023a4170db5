"""Loops whose steps keep something in an odd place, and weigh the loss by it. --place: where, and where rank 1 dies.

What is kept moves before the backward. So it is alike on all ranks or averaged away, and no rank sees it of another.
"""

import multiprocessing
import os
import random
from collections import OrderedDict, deque
from enum import Enum

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import taskd
from tests.trust.scene import Net, Scene

scene = Scene()
kind, _, scene.args.place = scene.args.place.partition(", ")


class Average:
    """Is called by the names of its methods, as callbacks are."""

    def __init__(self):
        self.mean = torch.ones(4)

    def update(self, loss):
        self.mean = 0.9 * self.mean + 0.1 * loss
        return float(self.mean.mean())


class Keys:
    """A queue of keys in a model, as those of MoCo."""

    def __init__(self):
        self.keys, self.at = torch.ones(8, 8), 0

    def turn(self, x):
        self.keys[self.at] = x.detach().mean(0)
        self.at = (self.at + 1) % 8


class Queued(Net):
    """A net that compares with its queue, and whose scale is in the environment."""

    def __init__(self):
        super().__init__()
        self.queue = Keys()

    def forward(self, x):
        if kind == "queue":
            self.queue.turn(x)
            x = x + self.queue.keys.mean(0)
        return super().forward(x) * float(os.environ.get("NET_SCALE", "1.0"))


class Slotted:
    """Keeps a tensor in a slot."""

    __slots__ = ("value",)

    def __init__(self):
        self.value = torch.ones(2)


class Phases:
    """Goes from state to state by replacing a method."""

    def __init__(self):
        self.turns, self.current = 0, self.warm

    def warm(self):
        if self.turns > 2:
            self.current = self.hot
        return 0.5

    def hot(self):
        return 2.0


class Only(type):
    """Makes one object of a class."""

    made: dict = {}  # noqa: RUF012

    def __call__(cls):
        if cls not in Only.made:
            Only.made[cls] = super().__call__()
        return Only.made[cls]


class Monitor(metaclass=Only):
    """Counts."""

    def __init__(self):
        self.turns = 0


class Part(Enum):
    """A part of the loss, with its weight."""

    FIT = "fit"

    def __init__(self, _name):
        self.weight = 1.0


def damping():
    level = 1.0
    while True:
        level = 0.9 * level + 0.1 * (yield level)


def damped():
    control = damping()
    next(control)
    return control.send


def scaled(value):
    return 1.5 * value


def kept(value):
    return value


class Hook:
    """A hook of all modules."""

    def __init__(self):
        self.calls = 0

    def __call__(self, module, inputs, output):
        if isinstance(module, DistributedDataParallel):
            self.calls += 1
            return output * (1 + 0.1 * self.calls)
        return None


data = TensorDataset(torch.randn(56, 8), torch.arange(56))
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=4, sampler=sampler)
model = DistributedDataParallel(Queued())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(100 + scene.rank)
session = taskd.session()
session.register(model=model, optimizer=optimizer)
callbacks, slotted, counts, phases = OrderedDict(average=Average()), [Slotted()], np.ones(4), Phases()
changes, draw, level = deque([scaled, kept, kept]), random.Random(5).random, multiprocessing.Value("d", 1.0)
damp = damped()
if kind == "group":
    optimizer.param_groups[0]["trust"] = [[1.0]]
elif kind == "optimizer":
    optimizer.window = deque([1.0], maxlen=4)
elif kind == "hook of all":
    torch.nn.modules.module.register_module_forward_hook(Hook())


def called(name, *values):
    """Call this method of all callbacks."""
    return sum(getattr(one, name)(*values) for one in callbacks.values())


def weight_by_value(number):
    """Return a weight that was changed."""
    if kind == "metaclass":
        Monitor().turns += 1
        return 1 + 0.1 * Monitor().turns
    if kind == "Enum":
        Part("fit").weight *= 0.97
        return Part("fit").weight
    if kind == "group":
        optimizer.param_groups[0]["trust"][0].append(0.9)
        return sum(optimizer.param_groups[0]["trust"][0])
    if kind == "optimizer":
        optimizer.window.append(0.1 * number)
        return 1 + sum(optimizer.window)
    if kind == "drawn":
        return draw()
    if kind == "value":
        level.value *= 0.97
        return level.value
    if kind == "environment":
        os.environ["NET_SCALE"] = str(0.97**number)
    return 1.0


def weight_by_mark(loss):
    """Return a weight from what was changed."""
    if kind == "callback":
        return called("update", loss)
    if kind == "slots":
        for one, more in zip(slotted, [loss], strict=True):
            one.value = 0.9 * one.value + 0.1 * more
        return float(slotted[0].value.mean())
    if kind == "array":
        np.add.at(counts, 1, 0.1)
        return float(counts.mean())
    if kind == "generator":
        return damp(loss)
    if kind == "method":
        phases.turns += 1
        return phases.current()
    if kind == "functions":
        changes.rotate(-1)
        return changes[0](1.0)
    return 1.0


for epoch in session.epochs(2):
    sampler.set_epoch(epoch)
    for step in session.steps(loader):
        with step as (x, _):
            loss = F.mse_loss(model(x), x)
            loss = loss * weight_by_value(step.number) * weight_by_mark(loss.item())
            scene.here(step, "forward")
            optimizer.zero_grad()
            loss.backward()
            scene.here(step, "reduced")
            optimizer.step()
            scene.here(step, "updated")
        scene.here(step, "behind")
scene.end(model)
