"""Two loops that gather what is only shown: a curve of losses, and rows for a table. --place: what holds it, and where
rank 1 dies.

"list": `losses.append(...)`. "dict": a defaultdict of lists in a parameter. "rows": dicts in a list. "object": a list
of an object. "counter": counts by a computed key. "beside": a count of a callback, beside a limit that it sets now and
then, and a list with the name of a global. "early": a list that grows before the backward. "long": one that is too long
to be kept. "alias": an object has a list of the dict, and each step computes with it. "alias early": the same, and the
list grows before the backward.
"""

import json
from collections import Counter, defaultdict
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.trust.scene import Net, Scene, say

scene = Scene()
kind, _, scene.args.place = scene.args.place.partition(", ")


class Log:
    """Keeps a curve."""

    def __init__(self) -> None:
        self.curve: list[float] = []

    def add(self, value: float) -> None:
        """Add one value."""
        self.curve.append(value)


class Watch:
    """Counts the values above a limit, which it sets from the first ones."""

    def __init__(self) -> None:
        self.limit, self.above, self.first = float("inf"), 0, list[float]()

    def add(self, value: float) -> None:
        """Look at one value."""
        if len(self.first) < 2:
            self.first.append(value)
            self.limit = min(self.first) / 2
        if value > self.limit:
            self.above += 1


class Control:
    """Computes a factor from a list that others fill."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def scale(self) -> float:
        """Return a factor that depends on the list."""
        return 1.0 + len(self.seen) / 10


model = DistributedDataParallel(Net())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
session = taskd.session()
session.register(model=model, optimizer=optimizer)


def train(losses: list[float], logs: Any, rows: list[dict[str, float]], log: Log, seen: Any) -> None:
    """Train for one loop."""
    for step in session.steps(scene.loader()):
        with step as batch:
            optimizer.zero_grad()
            loss = (model(batch["x"]) - batch["x"]).pow(2).mean()
            if kind.startswith("alias"):
                loss = loss * control.scale()
            if kind == "early":
                losses.append(loss.item())
            if kind == "alias early":
                for name in names:
                    logs[name].append(loss.item())
            scene.here(step, "forward")
            loss.backward()
            optimizer.step()
            if kind in ("list", "long"):
                losses.append(loss.item())
            elif kind == "dict":
                logs["loss"].append(loss.item())
            elif kind == "rows":
                rows.append({"step": step.number, "loss": loss.item()})
            elif kind == "object":
                log.add(loss.item())
            elif kind == "counter":
                seen[f"{int(loss.item()) % 3}"] += 1
            elif kind == "beside":
                for callback in callbacks:
                    callback.add(loss.item())
            if kind == "alias":
                scene.here(step, "updated")
                for name in names:
                    logs[name].append(loss.item())
            scene.here(step, "updated")


def nothing() -> Any:
    """Return what one loop fills."""
    return [], defaultdict[str, list[float]](list), [], Log(), Counter[str]()


names, control, first, second = ["loss"], Control(), nothing(), nothing()
callbacks = [Watch(), Watch()]
if kind == "long":
    first[0].extend([0.5] * 20_000)
if kind.startswith("alias"):
    control.seen = first[1]["loss"]
train(*first)
if kind.startswith("alias"):
    control.seen = second[1]["loss"]
train(*second)
shown = [[losses, logs, rows, log.curve, seen] for losses, logs, rows, log, seen in (first, second)]
if kind != "long":
    say(f"shown {scene.rank} {json.dumps(shown if kind != 'beside' else [one.above for one in callbacks])}")
scene.end(model)
