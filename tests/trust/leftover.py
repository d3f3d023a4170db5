"""Loops whose steps keep tensors where no source and no look shows them. --place: what, and where rank 1 dies."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import taskd
from tests.trust.scene import Net, Scene

scene = Scene()
kind, _, scene.args.place = scene.args.place.partition(", ")


class Memory(nn.Module):
    """Adds what somebody has put here."""

    def __init__(self):
        super().__init__()
        self.context = torch.zeros(8)
        self.seen = self.mask = None

    def forward(self, x):
        if self.mask is None:
            self.mask = torch.ones(8).cumsum(0) / 8
        self.seen = x.detach()
        return x * self.mask + 0.3 * self.context if kind == "fed back" else x * self.mask


class Keeper:
    """Keeps a running mean of what it gets, and nobody names it."""

    def __init__(self):
        self.parts = {}

    def follow(self, x):
        now = x.detach().mean(0)
        if hasattr(self, "mean"):
            now = 0.8 * vars(self)["mean"] + 0.2 * now
        setattr(self, "mean", now)  # noqa: B010 (the source shall not show it)
        return now


def running():
    """Yield the running mean of what is sent."""
    mean, x = torch.zeros(8), None
    while True:
        x = yield mean
        if x is not None:
            mean = 0.8 * mean + 0.2 * x.detach().mean(0)


def by_default(x, last=[torch.zeros(8)]):  # noqa: B006, B008 (it is kept on purpose)
    """Return the running mean."""
    last[0] = 0.8 * last[0] + 0.2 * x.detach().mean(0)
    return last[0]


def patched(model):
    """Let the model add the mean of its last batch."""
    forward, kept = model.forward, {"last": torch.zeros(8)}

    def with_last(x):
        y = forward(x) + kept["last"]
        kept.update(last=x.detach().mean(0))
        return y

    model.forward = with_last


data = TensorDataset(torch.randn(56, 8))
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=4, sampler=sampler)
memory = Memory()
net = nn.Sequential(memory, Net())
if kind == "patched":
    patched(net)
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
keepers = {"one": Keeper()}
averages = [one.detach().clone() for one in model.parameters()]
work, shown = torch.zeros(4, 8), []
scale = torch.ones(())
view = scale.numpy()
for parameter in model.parameters() if kind == "gradient" else ():
    parameter.register_hook(lambda gradient: gradient * scale)
if kind == "sent":
    vars(keepers["one"])["stream"] = running()
    next(vars(keepers["one"])["stream"])
torch.manual_seed(100 + scene.rank)


def keep(number, x, y):
    """Keep something of this step, and return what is added to the output."""
    if kind == "fed back":
        for one in [*model.modules()]:
            one.__dict__.get("context") is not None and setattr(one, "context", x.mean(0))
    if kind == "sent":
        return vars(keepers.get("one")).get("stream").send(x)
    if kind == "default":
        return globals()["by_default"](x)
    if kind in ("kept", "late") and number >= 3 * (kind == "late"):
        return getattr(keepers.get("one"), "follow")(x)  # noqa: B009
    if kind == "retained":
        last = vars(memory).pop("earlier", y)
        vars(memory)["earlier"] = y
        return 0.1 * last.detach()
    if kind == "work":
        torch.add(x, 1.0, out=work)
        return 0.1 * work
    if kind == "shown":
        getattr(keepers.get("one"), "follow")(x)  # noqa: B009
        shown.append(memory.seen.mean())
    return 0.0


def averaged():
    """Exchange the weights and their averages."""
    for one, other in zip(model.parameters(), averages, strict=True):
        one.data, other.data = other.data, one.data


session = taskd.session()
session.register(model=model, optimizer=optimizer)
for epoch in session.epochs(2):
    sampler.set_epoch(epoch)
    for step in session.steps(loader):
        with step as (x,):
            if kind == "swapped" and step.number % 3 == 2:
                averaged()
            y = model(x)
            loss = F.mse_loss(y + keep(step.number, x, y), x)
            scene.here(step, "forward")
            optimizer.zero_grad()
            loss.backward()
            scene.here(step, "reduced")
            optimizer.step()
            if kind == "gradient":
                view[...] = 0.5 + min(1.0, float(loss) / 4)
            if kind == "swapped":
                for average, parameter in zip(averages, model.parameters(), strict=True):
                    average.data.mul_(0.9).add_(parameter.data, alpha=0.1)
            scene.here(step, "updated")
        scene.here(step, "behind")
scene.end(model)
