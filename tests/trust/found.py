"""Loops that use tensors which were made before the loop. --place says which tensors, and where rank 1 dies.

"teacher": a copy of the model, made anew for each epoch. "closure": the same inside a function. "noise": drawn anew for
each epoch. "order": computed anew from the epoch's number. "frozen": a copy that was made before the first epoch.
"plain": the teacher in a script without session.epochs(). "given": the teacher's weights come from session.between().
"drawn": by the script's own generators. "ahead": by all other generators, before the step is entered. "second": batches
that the loop itself takes from another loader. "loose": momentum by hand, in a dict. "slow": weights that follow every
third step (Lookahead). "best": the weights of the best step so far, loaded behind the loop.
"""

import copy
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch import nn

import taskd
from tests.trust.scene import Net, Scene, average_gradients, loss_of

EPOCHS = 3
scene = Scene()
kind, _, place = scene.args.place.partition(", ")
scene.args.place = place


class Slow:
    """An optimizer around another one."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.steps = inner, 0
        self.param_groups = inner.param_groups
        self.slow = [[one.detach().clone() for one in group["params"]] for group in inner.param_groups]

    def step(self) -> None:
        self.inner.step()
        self.steps += 1
        if self.steps % 3:
            return
        with torch.no_grad():
            for group, slow in zip(self.inner.param_groups, self.slow, strict=True):
                for fast, one in zip(group["params"], slow, strict=True):
                    one += 0.5 * (fast - one)
                    fast.copy_(one)

    def zero_grad(self) -> None:
        self.inner.zero_grad()


model = Net()
session = taskd.session()
velocity = {name: torch.zeros_like(one) for name, one in model.named_parameters()}
inner: Any = torch.optim.AdamW(model.parameters(), lr=0.01)
optimizer: Any = Slow(inner) if kind == "slow" else inner
session.register(model=model, optimizer=None if kind == "loose" else inner)
loader = scene.loader()
frozen = copy.deepcopy(model).eval()
numpy.random.seed(1 + scene.rank)
random.seed(2 + scene.rank)
numbers, words = numpy.random.RandomState(3 + scene.rank), random.Random(4)
newer, own = numpy.random.default_rng(5), torch.Generator().manual_seed(6 + scene.rank)


def distance(teacher: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that measures how far the model's output is from this teacher's."""

    def of(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = teacher(x)
        return F.mse_loss(model(x), wanted)

    return of


def epochs() -> Iterator[int]:
    yield from range(EPOCHS) if kind == "plain" else session.epochs(EPOCHS)


def update() -> None:
    """Update the weights, by the optimizer or by hand."""
    if kind != "loose":
        optimizer.step()
        return
    with torch.no_grad():
        for name, one in model.named_parameters():
            velocity[name].mul_(0.9).add_(one.grad)  # type: ignore[arg-type]
            one.sub_(0.05 * velocity[name])


def train(steps: Iterable[Any], teacher: nn.Module, more: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Train one epoch."""
    noise = torch.randn(8) if kind == "noise" else torch.zeros(8)
    second = iter(loader) if kind == "second" else None
    lowest, best = float("inf"), None
    order = torch.randperm(8, generator=torch.Generator().manual_seed(epoch))
    for step in steps:
        shift = 0.1 * torch.randn(8) + numpy.random.rand() + random.random() if kind == "ahead" else torch.zeros(8)
        with step as x:
            x = x["x"] / 20 + shift
            model.zero_grad()
            if kind == "noise":
                x = x + noise
            elif kind == "order":
                x = x[:, order]
            elif kind == "drawn":
                x = x + 0.1 * torch.randn(x.shape, generator=own) + 0.1 * float(numbers.randn())
                x = x + 0.1 * words.random() + 0.1 * float(newer.standard_normal())
            elif second is not None:
                x = x + 0.1 * next(second)["x"]
            scene.here(step, "forward")
            loss = loss_of(model, x)
            if kind in ("teacher", "plain", "frozen", "given"):
                with torch.no_grad():
                    wanted = teacher(x)
                loss = loss + F.mse_loss(model(x), wanted)
            elif kind == "closure":
                loss = loss + more(x)
            loss.backward()
            average_gradients(model)
            scene.here(step, "reduced")
            update()
            if kind == "best" and (size := float(model.first.bias.square().sum())) < lowest:
                lowest, best = size, copy.deepcopy(model.state_dict())
            scene.here(step, "updated")
    if best is not None:
        model.load_state_dict(best)


for epoch in epochs():
    teacher = copy.deepcopy(model).eval() if kind in ("teacher", "plain", "given", "closure") else frozen
    if kind == "given" and epoch:
        held = session.between(lambda: {name: one.clone() for name, one in model.state_dict().items()})
        teacher.load_state_dict(held)
    closure = kind == "closure"
    train(session.steps(loader), frozen if closure else teacher, distance(teacher if closure else frozen))
scene.end(model)
