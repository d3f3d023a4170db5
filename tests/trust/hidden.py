"""Loops that use numbers computed from trained weights, while the source does not show where the numbers are kept.
--place says where, and where rank 1 dies. Each rank has its own scores, so no other rank can provide them.

"single": in a singleton. "default": in a default value of a function. "cached": in the cache of a function. "scaled":
in a class attribute that the model's forward reads. "delegate": in an object to which another one delegates. "between":
there, too, but only code between the loops reads it. "unrolled": in a variable, without a loop around the loops.
"open": in a variable, and a rank may die while it evaluates.
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
"""`number` counts the evaluations."""


class Scaled(Net):
    """A net whose scale is an attribute of the class."""

    scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * super().forward(x)


class Only:
    """A singleton."""

    _it: Only | None = None

    def __init__(self) -> None:
        self.weight = 1.0

    @classmethod
    def get(cls) -> Only:
        """Return the only instance."""
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
    """Return a score on data that no rank trains on. Each rank has another score."""
    model.eval()
    with torch.no_grad():
        score = float(loss_of(model, held_out)) * (1 + scene.rank)
    model.train()
    evaluated.number += 1
    scene.here(evaluated, "evaluated")
    return score


def one_step(step: Any, weight: float = 1.0) -> None:
    """Run the body of the loop."""
    with step as x:
        optimizer.zero_grad()
        scene.here(step, "forward")
        (loss_of(model, x["x"] / 20) * weight).backward()
        average_gradients(model)
        scene.here(step, "reduced")
        optimizer.step()
        scene.here(step, "updated")


def single() -> None:
    """Train with a weight that each step gets from the singleton."""
    for _ in session.epochs(EPOCHS):
        for step in session.steps(loader):
            one_step(step, Only.get().weight)
        Only.get().weight = 1.0 + evaluate()


def kept(box: list[float] = [1.0]) -> list[float]:  # noqa: B006
    """Return the default value, which is one list for all calls."""
    return box


def default() -> None:
    """Train with a weight in the default value, which is changed in place."""
    for _ in session.epochs(EPOCHS):
        for step in session.steps(loader):
            one_step(step, kept()[0])
        kept()[0] = 1.0 + evaluate()


@lru_cache
def weight_of(epoch: int) -> float:
    """Return the weight of an epoch. It is computed once per epoch."""
    return 1.0 + evaluate() if epoch else 1.0


def cached() -> None:
    """Train with the cached weight. The script asks for it before the loop, too."""
    for epoch in session.epochs(EPOCHS):
        weight_of(epoch)
        for step in session.steps(loader):
            one_step(step, weight_of(epoch))


def scaled() -> None:
    """Train with the scale of the class, which no line of the loop names."""
    for _ in session.epochs(EPOCHS):
        for step in session.steps(loader):
            one_step(step)
        Scaled.scale = 1.0 + evaluate()


def delegate() -> None:
    """Train with a weight that the loop names."""
    state = Delegating(SimpleNamespace(weight=1.0))
    for _ in session.epochs(EPOCHS):
        for step in session.steps(loader):
            one_step(step, state.weight)
        state.weight = 1.0 + evaluate()


def between() -> None:
    """Train with a sum that the loop does not name."""
    state, weight = Delegating(SimpleNamespace(sum=0.0)), 1.0
    for _ in session.epochs(EPOCHS):
        for step in session.steps(loader):
            one_step(step, weight)
        state.sum = state.sum + evaluate()
        weight = 1.0 + state.sum


def unrolled() -> None:
    """Train in three loops, one after the other."""
    for step in session.steps(loader):
        one_step(step)
    weight = 1.0 + evaluate()
    for step in session.steps(loader):
        one_step(step, weight)
    weight = 2.0 + evaluate()
    for step in session.steps(loader):
        one_step(step, weight)


def in_the_open() -> None:
    """Train with a weight in a variable, as the source shows it."""
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
