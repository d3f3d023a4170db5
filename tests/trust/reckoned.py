"""Loops that use numbers which were computed before the loop from trained weights. --place says which numbers, and
where rank 1 dies.

"weight": a variable of the module. "mean": the same, computed by all ranks together. "passed": an argument. "trainer":
an attribute. "property": an attribute behind a property. "judges": in one of several objects. "closure": in a variable
of a closure. "state": in a dict. "history": the last number of a list. "long": the smallest of a long list. "window": a
deque. "table": a defaultdict. "score": a numpy number. "named": a NamedTuple of the script. "best": set under a
condition, and None at first. "plateau": a scheduler computes. "rate": a learning rate
that is set by hand when the score does not improve. "stops": the training ends on a bad score. "keeps": the weights of
the best epoch, for the end. "behind": two loops without one around them. "criterion": in an object that is made anew
for each epoch. "chosen": the choice of samples. "clock": a time that each rank has taken itself. "own": a number that
each rank has drawn. "resumed": the epochs begin where a checkpoint says. "defined": in a function that each epoch
defines.
"""

import copy
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Subset

import taskd
from tests.trust.scene import BATCH, STEPS, Net, Noise, Scene, average_gradients, loss_of, metric_of

EPOCHS = 3
scene = Scene()
kind, _, place = scene.args.place.partition(", ")
scene.args.place = place
torch.manual_seed(7)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
session = taskd.session()
session.register(model=model, optimizer=optimizer)
held_out = torch.randn(16, 8, generator=torch.Generator().manual_seed(5))
saved = scene.args.folder / "saved.pt"
evaluated = SimpleNamespace(number=0, rehearsal=False)
asked = SimpleNamespace(number=0, rehearsal=False)


class Asked(Noise):
    """Samples that report when one is loaded. While a loop's first sample loads, no step of the loop has begun."""

    def __getitem__(self, index: int) -> Any:
        scene.here(asked, "loading")
        asked.number += 1
        return super().__getitem__(index)


loader = scene.loader(Asked)
"""Counts its loads in `asked`. Evaluations are counted in `evaluated`."""


def evaluate(together: bool = False) -> float:
    """Return a score on data that no rank trains on. `together`: the mean over all ranks."""
    model.eval()
    with torch.no_grad():
        score = loss_of(model, held_out)
        score = metric_of(score) / 2 if together else score
    model.train()
    evaluated.number += 1
    scene.here(evaluated, "evaluated")
    return float(score)


def one_step(step: Any, weight: float, criterion: Any = F.mse_loss) -> None:
    """Run the body of the loop."""
    with step as x:
        x = x["x"] / 20
        optimizer.zero_grad()
        scene.here(step, "forward")
        (criterion(model(x), x) * weight).backward()
        average_gradients(model)
        scene.here(step, "reduced")
        optimizer.step()
        scene.here(step, "updated")


def train(steps: Iterable[Any], weight: float) -> None:
    """Train one epoch."""
    for step in steps:
        one_step(step, weight)


class Trainer:
    """A trainer as many scripts have one."""

    def __init__(self) -> None:
        self.weight, self.best = 1.0, float("inf")

    def fit(self) -> None:
        """Train all epochs."""
        for _ in session.epochs(EPOCHS):
            self.train()
            score = evaluate()
            self.best = min(self.best, score)
            self.weight = 1.0 + self.best + score

    def train(self) -> None:
        """Train one epoch."""
        for step in session.steps(loader):
            one_step(step, self.weight)


class Judge:
    """One of several objects that hear each score and compute a weight from it."""

    def __init__(self) -> None:
        self.best, self._weight = float("inf"), 1.0

    @property
    def weight(self) -> float:
        """Return the factor of the loss."""
        return self._weight

    @weight.setter
    def weight(self, value: float) -> None:
        self._weight = value

    def on_epoch(self, score: float) -> None:
        """Remember the best score."""
        self.best = min(self.best, score)
        self.weight = 1.0 + self.best


def closures() -> tuple[Callable[[], float], Callable[[float], None]]:
    """Return two functions that share a number."""
    kept = 1.0

    def get() -> float:
        return kept

    def put(score: float) -> None:
        nonlocal kept
        kept = 1.0 + score

    return get, put


class Found(NamedTuple):
    """The score of an epoch."""

    epoch: int
    score: float


def keep_scores() -> None:
    """Train with scores in containers, or in a numpy number."""
    long, window, table, score = (
        list[float](),
        deque[float](maxlen=2),
        defaultdict[str, list[float]](list),
        np.float64(0),
    )
    for _ in session.epochs(EPOCHS):
        for step in session.steps(loader):
            if kind == "long":
                one_step(step, 1.0 + min(long, default=0.0))
            elif kind == "window":
                one_step(step, 1.0 + sum(window))
            elif kind == "table":
                one_step(step, 1.0 + sum(table["scores"]))
            else:
                one_step(step, 1.0 + float(score))
        found = evaluate()
        long += [found + at for at in range(2000)]
        window.append(found)
        table["scores"].append(found)
        score = np.mean([found, score])


def keep_named() -> None:
    """Train with a score in a NamedTuple."""
    named = Found(0, 0.0)
    for epoch in session.epochs(EPOCHS):
        for step in session.steps(loader):
            one_step(step, 1.0 + named.score)
        named = Found(epoch, evaluate())


class Criterion(nn.Module):
    """A loss with a weight of its own."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(found, wanted) * self.weight


def hardest() -> DataLoader[Any]:
    """Return batches of one half of the samples, chosen by their losses."""
    data = Noise(STEPS * BATCH * 2)
    with torch.no_grad():
        losses = torch.stack([loss_of(model, data[at]["x"]) for at in range(len(data))])
    return DataLoader(Subset(data, losses.argsort()[: STEPS * BATCH].tolist()), batch_size=BATCH)


def epochs() -> Iterator[int]:
    """Yield the epochs that are left. With "resumed", load the checkpoint first."""
    first = 0
    if kind == "resumed":
        model.drop.p = 0.0
        if saved.exists():
            first, of_model, of_optimizer = torch.load(saved)
            model.load_state_dict(of_model)
            optimizer.load_state_dict(of_optimizer)
    yield from range(first, EPOCHS)


def define() -> None:
    """Train with a function that is defined anew in each epoch, and uses the rank."""
    rank = scene.rank
    for epoch in session.epochs(EPOCHS):
        for step in session.steps(loader):
            one_step(step, 1.0)

        def keep(score: float, epoch: int = epoch) -> None:
            if rank == 0:
                print(f"epoch {epoch}: {score:.4f}", flush=True)
            scene.here(SimpleNamespace(number=epoch, rehearsal=False), "kept")

        session.between(lambda: float(metric_of(loss_of(model, held_out))), then=keep)


def plateau() -> None:
    """Train with a scheduler that is not registered and hears each score."""
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
    for _ in session.epochs(EPOCHS):
        for step in session.steps(loader):
            one_step(step, 1.0)
        scheduler.step(evaluate())


def keep_best() -> None:
    """Train, and end with the weights of the best epoch."""
    best, kept = float("inf"), copy.deepcopy(model.state_dict())
    for _ in session.epochs(EPOCHS):
        for step in session.steps(loader):
            one_step(step, 1.0)
        score = evaluate()
        if score < best:
            best, kept = score, copy.deepcopy(model.state_dict())
    model.load_state_dict(kept)


def main() -> None:
    """Run all kinds that have no code of their own elsewhere."""
    weight, best, bad, state, history = 1.0, None, 0, {"weight": 1.0}, list[float]()
    started = time.time()
    for epoch in epochs() if kind in ("resumed", "stops") else session.epochs(EPOCHS):
        batches = hardest() if kind == "chosen" and epoch else loader
        if kind == "passed":
            train(session.steps(loader), weight)
        else:
            for step in session.steps(batches):
                if kind == "history":
                    one_step(step, 1.0 + history[-1] if history else 1.0)
                elif kind == "clock":
                    one_step(step, 1.0 if time.time() - started < 3600 else 0.0)
                elif kind == "state":
                    one_step(step, state["weight"])
                else:
                    one_step(step, weight if kind in ("mean", "best", "own") else 1.0)
        score = float(torch.rand(())) if kind == "own" else evaluate(together=kind == "mean")
        history.append(score)
        state["weight"] = weight = 1.0 + score
        bad = 0 if best is None or score < best else bad + 1
        if kind == "best":
            weight = 1.0 if best is None else 1.0 + best - score
        best = score if best is None else min(best, score)
        if kind == "rate" and epoch and best - score < 0.5:
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
        if kind == "stops" and score > 1.0:
            break  # only a newcomer on its way to the loop comes here
        if kind == "resumed" and scene.rank == 0:
            torch.save((epoch + 1, model.state_dict(), optimizer.state_dict()), saved)


if kind == "behind":
    for step in session.steps(loader):
        one_step(step, 1.0)
    weight = 1.0 + evaluate()
    for step in session.steps(loader):
        one_step(step, weight)
elif kind == "weight":
    weight = 1.0
    for _ in session.epochs(EPOCHS):
        for step in session.steps(loader):
            one_step(step, weight)
        weight = 1.0 + evaluate()
elif kind == "criterion":
    criterion = Criterion(1.0)
    for _ in session.epochs(EPOCHS):
        for step in session.steps(loader):
            one_step(step, 1.0, criterion)
        criterion = Criterion(1.0 + evaluate())
elif kind in ("judges", "property"):
    judges = [Judge(), Judge()]
    judge = judges[1]
    for _ in session.epochs(EPOCHS):
        for step in session.steps(loader):
            one_step(step, judge.weight)
        if kind == "property":
            judge.weight = 1.0 + evaluate()
        else:
            score = evaluate()
            for one in judges:
                one.on_epoch(score)
elif kind == "closure":
    get, put = closures()
    for _ in session.epochs(EPOCHS):
        for step in session.steps(loader):
            one_step(step, get())
        put(evaluate())
elif kind in ("long", "window", "table", "score"):
    keep_scores()
elif kind == "defined":
    define()
elif kind == "plateau":
    plateau()
elif kind == "named":
    keep_named()
elif kind == "keeps":
    keep_best()
elif kind == "trainer":
    Trainer().fit()
else:
    main()
scene.end(model)
