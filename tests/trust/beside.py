"""Loops whose steps keep something beside the parameters, and compute with it. --place: what, and where rank 1 dies."""

import functools
import itertools
import queue

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import taskd
from tests.trust.scene import Net, Scene

scene = Scene()
kind, _, scene.args.place = scene.args.place.partition(", ")
WARM_UP = 3


class Context(nn.Module):
    """Adds a running mean of earlier batches."""

    def __init__(self):
        super().__init__()
        self.mean = torch.zeros(8)

    def forward(self, x):
        y = x + 0.3 * self.mean
        self.mean = 0.8 * self.mean + 0.2 * x.mean(0)
        return y


class Masked(nn.Module):
    """Makes a mask for each length of a batch, and keeps the last one, and its last output."""

    def __init__(self):
        super().__init__()
        self.mask = self.output = None

    def forward(self, x):
        if self.mask is None or len(self.mask) != len(x):
            self.mask = torch.ones(len(x), 8).tril()
        self.output = (x * self.mask).detach()
        return x * self.mask


class Given(Net):
    """Adds what the loop has left here."""

    def __init__(self):
        super().__init__()
        self.last = torch.zeros(8)

    def forward(self, x):
        return super().forward(x) + self.last


class Anchor:
    """The weights of a model when somebody has first asked for them."""

    def __init__(self, model):
        self.model = model

    @functools.cached_property
    def weights(self):
        return [parameter.detach().clone() for parameter in self.model.parameters()]


class Tracker:
    """A running mean that begins with the first value."""

    def __init__(self):
        self.mean = None

    def follow(self, value):
        self.mean = value.detach().clone() if self.mean is None else 0.9 * self.mean + 0.1 * value.detach()


class Record:
    """What is known of one sample, or of one part of the loss."""

    def __init__(self):
        self.weight = 1.0

    def follow(self, value):
        self.weight = 0.5 * self.weight + 0.5 * value


@functools.cache
def record_of(name):
    """Return the record of this name, the same one for everybody."""
    return Record()


NETS = {"forward": nn.Sequential(Context(), Net()), "results": nn.Sequential(Masked(), Net()), "left": Given()}
data = TensorDataset(torch.randn(56, 8), 900 + torch.arange(56))
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=4, sampler=sampler)
model = DistributedDataParallel(NETS.get(kind) or Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
anchor, replay, usual = Anchor(model.module), queue.Queue(3), {}
streams = {"clean": itertools.cycle(torch.randn(5, 4, 8)), "noisy": itertools.cycle(2 * torch.randn(7, 4, 8))}
records, trackers = [Record() for _ in range(1000)], [Tracker()]
torch.manual_seed(100 + scene.rank)


def of_anchor(number, x, loss):
    """Return what is added to the loss."""
    if number < WARM_UP:
        return 0.0
    return 0.1 * sum((p - w).square().sum() for p, w in zip(model.parameters(), anchor.weights, strict=True))


def of_tracker(number, x, loss):
    if number < WARM_UP:
        return 0.0
    for method in ["follow"]:
        getattr(trackers[0], method)(loss)
    return loss / (0.1 + trackers[0].mean)


def of_queue(number, x, loss):
    old = replay.get() if replay.full() else x
    replay.put(x)
    return F.mse_loss(model.module(old), old)


def of_streams(number, x, loss):
    old = next(streams["noisy" if number % 3 == 2 else "clean"])
    return F.mse_loss(model.module(old), old)


def of_cached(number, x, loss):
    record_of("fit").follow(loss.item())
    return loss * record_of("fit").weight


def of_ids(number, x, loss):
    return 0.001 * sum(p.square().sum() / (0.05 + usual.get(id(p), 0.0)) for p in model.parameters())


def of_nothing(number, x, loss):
    return 0.0


MORE = {"anchor": of_anchor, "tracker": of_tracker, "queue": of_queue, "streams": of_streams, "cached": of_cached}
more = {**MORE, "by id": of_ids}.get(kind, of_nothing)
session = taskd.session()
session.register(model=model, optimizer=optimizer)
for epoch in session.epochs(2):
    sampler.set_epoch(epoch)
    for step in session.steps(loader):
        with step as (x, ids):
            losses = (model(x) - x).square().mean(1)
            if kind == "records":
                losses = losses * torch.tensor([records[at].weight for at in ids.tolist()])
            loss = losses.mean()
            loss = loss + more(step.number, x, loss)
            scene.here(step, "forward")
            optimizer.zero_grad()
            loss.backward()
            scene.here(step, "reduced")
            if kind == "by id":
                for parameter in model.parameters():
                    usual[id(parameter)] = 0.8 * usual.get(id(parameter), 0.0) + 0.2 * parameter.grad.norm().item()
            optimizer.step()
            for at, value in zip(ids.tolist(), losses.tolist(), strict=True):
                records[at].follow(value) if kind == "records" else None
            if kind == "left":
                model.module.last = x.mean(0)
            scene.here(step, "updated")
        scene.here(step, "behind")
scene.end(model)
