"""Loops that use numbers which were reckoned from trained weights, and whose source does not show where they are kept:
--place says which, and where rank 1 dies. Each rank has scores of its own, so no other one can give them.

"single": in the one object of its class; "default": in a default of a function; "cached": in what a function remembers;
"scaled": in a class, and the model's forward reads it; "delegate": in what another object has; "between": there, and
only what stands between the loops reads it; "unrolled": in a variable, but no loop is around the loops; "open": in a
variable, and a rank may die while it evaluates.
"""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import torch

import taskd
from tests.trust.scene import Net, Scene, average_gradients, loss_of

EPOCHS = 3
scene = Scene()
kind, _, place = scene.args.place.partition(", ")
scene.args.place = place
session = taskd.session()
evaluated = SimpleNamespace(number=0, rehearsal=False)
"""How many times."""


class Scaled(Net):
    """All of them together have one scale."""

    scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * super().forward(x)


class Only:
    """There is one."""

    _it: Only | None = None

    def __init__(self) -> None:
        self.weight = 1.0

    @classmethod
    def get(cls) -> Only:
        """That one."""
        if cls._it is None:
            cls._it = cls()
        return cls._it


class Delegating:
    """Keeps its attributes in another object, as wrappers of configurations do."""

    def __init__(self, inner: SimpleNamespace) -> None:
        object.__setattr__(self, "inner", inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inner, name, value)


torch.manual_seed(7)
model = Scaled()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
session.register(model=model, optimizer=optimizer)
loader = scene.loader()
held_out = torch.randn(16, 8, generator=torch.Generator().manual_seed(5))


def evaluate() -> float:
    """On what is trained on nowhere."""
    model.eval()
    with torch.no_grad():
        score = float(loss_of(model, held_out)) * (1 + scene.rank)
    model.train()
    evaluated.number += 1
    scene.here(evaluated, "evaluated")
    return score


def one_step(step: Any, weight: float = 1.0) -> None:
    """The body."""
    with step as x:
        optimizer.zero_grad()
        scene.here(step, "forward")
        (loss_of(model, x["x"] / 20) * weight).backward()
        average_gradients(model)
        scene.here(step, "reduced")
        optimizer.step()
        scene.here(step, "updated")


def single() -> None:
    """Asked for each time."""
    for _ in session.epochs(EPOCHS):
        for step in session.steps(loader):
            one_step(step, Only.get().weight)
        Only.get().weight = 1.0 + evaluate()


def kept(box: list[float] = [1.0]) -> list[float]:  # noqa: B006
    """What stands here once and for all."""
    return box


def default() -> None:
    """Changed in place."""
    for _ in session.epochs(EPOCHS):
        for step in session.steps(loader):
            one_step(step, kept()[0])
        kept()[0] = 1.0 + evaluate()


@lru_cache
def weight_of(epoch: int) -> float:
    """Reckoned once for each."""
    return 1.0 + evaluate() if epoch else 1.0


def cached() -> None:
    """Asked for before the loop, too."""
    for epoch in session.epochs(EPOCHS):
        weight_of(epoch)
        for step in session.steps(loader):
            one_step(step, weight_of(epoch))


def scaled() -> None:
    """Nothing in the loop says so."""
    for _ in session.epochs(EPOCHS):
        for step in session.steps(loader):
            one_step(step)
        Scaled.scale = 1.0 + evaluate()


def delegate() -> None:
    """The loop says it."""
    state = Delegating(SimpleNamespace(weight=1.0))
    for _ in session.epochs(EPOCHS):
        for step in session.steps(loader):
            one_step(step, state.weight)
        state.weight = 1.0 + evaluate()


def between() -> None:
    """The loop does not say it."""
    state, weight = Delegating(SimpleNamespace(sum=0.0)), 1.0
    for _ in session.epochs(EPOCHS):
        for step in session.steps(loader):
            one_step(step, weight)
        state.sum = state.sum + evaluate()
        weight = 1.0 + state.sum


def unrolled() -> None:
    """Two loops, one behind the other, and one more."""
    for step in session.steps(loader):
        one_step(step)
    weight = 1.0 + evaluate()
    for step in session.steps(loader):
        one_step(step, weight)
    weight = 2.0 + evaluate()
    for step in session.steps(loader):
        one_step(step, weight)


def in_the_open() -> None:
    """The source shows it all."""
    weight = 1.0
    for _ in session.epochs(EPOCHS):
        for step in session.steps(loader):
            one_step(step, weight)
        weight = 1.0 + evaluate()


{
    "single": single,
    "default": default,
    "cached": cached,
    "scaled": scaled,
    "delegate": delegate,
    "between": between,
    "unrolled": unrolled,
    "open": in_the_open,
}[kind]()
scene.end(model)
