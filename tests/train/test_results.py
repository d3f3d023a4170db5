"""Tests what the callers of a loop's function are found to use, on sources as people write them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from taskd.state.counters import Loop
from taskd.state.script import Script

EPOCH = """
import functools, json, sys, numpy as np, torch, torch.distributed as dist
from types import SimpleNamespace
from torch.utils.data import WeightedRandomSampler
sampler = WeightedRandomSampler([1.0], 1)
scheduler = SimpleNamespace(step=max)
optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
history = []

class Meter:
    def __init__(self):
        self.total = 0.0

    @property
    def mean(self):
        return self.total / 3 + 0

class Stats:
    pass

def run(ask):
    stats = Stats()
    stats.mean, _ = epoch(ask)
    return stats

def metered(ask):
    meter = Meter()
    for step in range(3):
        ask()
        meter.total += step
    return meter.mean

def careful(ask):
    losses = []
    for step in range(3):
        ask()
        losses.append(step)
    if not losses:
        return 0.0
    return sum(losses) / len(losses)

def adjust(scheduler, **stats):
    scheduler.step(stats["mean"], 0)

def epoch(ask, scale=1.0):
    losses, running = [], 0.0
    for step in range(3):
        ask()
        torch.manual_seed(int(step * scale))
        losses.append(step)
        running += step
    return sum(losses) / len(losses), running
"""
TRAINER = """
import numpy as np, torch, torch.distributed as dist

class Trainer:
    def __init__(self, ask):
        self.ask, self.losses, self.scale, self.history = ask, [], 1.0, []

    def epoch(self):
        for step in range(3):
            self.ask()
            torch.manual_seed(int(step * self.scale))
            self.losses.append(step)

    def show(self):
        print(np.mean(self.losses), self)
        self.history.append(sum(self.losses))
        self.losses = []

    def judge(self):
        if np.mean(self.losses) < 1:
            self.scale *= 0.9
"""


def found_by(tmp_path: Path, source: str) -> set[str]:
    """Run a module with a function main(ask). Return the names of what its loop hands on and somebody uses."""
    loops = list[Loop]()

    def ask() -> None:
        loops.append(Script(sys._getframe(1)).counters())

    file = tmp_path / "script.py"
    file.write_text(source)
    space: dict[str, Any] = {"__name__": "script"}
    exec(compile(source, str(file), "exec"), space)
    space["main"](ask)
    return {place.text for place in loops[0].computes if place.root != "ask"}


@pytest.mark.parametrize(
    ("body", "used"),
    [
        ("mean, _ = epoch(ask)\nprint(mean)", ""),
        ("epoch(ask)", ""),
        ("scale = 1.0\nfor _ in range(2):\n    scale, _ = epoch(ask, scale)", "losses running"),
        ("scale = 1.0\nfor _ in range(2):\n    scale = epoch(ask, scale)[0]", "losses running"),
        ("scheduler.step(*epoch(ask))", "losses running"),
        ("for _ in range(2):\n    mean, total = epoch(ask)\n    history.append(mean)\n    print(history)", ""),
        ("mean = torch.tensor(epoch(ask))\nif ask is None:\n    dist.all_reduce(mean)\nprint(mean / 2)", ""),
        ("sampler.weights = epoch(ask)", "losses running"),
        ("if ask:\n    json.dump(epoch(ask), sys.stderr)", ""),
        ("best = 9.0\nmean, _ = epoch(ask)\nif mean < best:\n    best = mean\n    torch.optim.SGD", "losses running"),
        ("best = 9.0\nmean, _ = epoch(ask)\nif mean < best:\n    best = mean\n    print('better')", ""),
        ("mean = 9.0\nwhile mean > 1:\n    mean, _ = epoch(ask)", "losses running"),
        ("mean, _ = epoch(ask)\nfor _ in range(int(mean)):\n    epoch(ask)", "losses running"),
        (
            "for _ in [1]:\n    mean, _ = epoch(ask)\n    if mean > 1:\n        continue\n    scheduler.step(1, 2)",
            "losses running",
        ),
        ("for _ in range(2):\n    mean, _ = epoch(ask)\n    if mean > 5:\n        return", "losses running"),
        ("for _ in range(2):\n    mean, _ = epoch(ask)\n    if mean > 5:\n        print(mean)", ""),
        (
            "mean, _ = epoch(ask)\nif mean > 0:\n    for group in optimizer.param_groups:\n        group['lr'] *= 0.5",
            "losses running",
        ),
        ("scheduler.step(metered(ask), 0)", "meter.total"),
        ("print(metered(ask))", ""),
        ("mean, _ = epoch(ask)\nif ask is None:\n    dist.scatter(history, [mean])", "losses running"),
        ("print(careful(ask))", ""),
        ("scheduler.step(careful(ask), 0)", "losses"),
        ("scheduler.step(run(ask).mean, 0)", "losses running"),
        ("print('warm-up', run(ask))\nscheduler.step(1, 2)", ""),
        ("adjust(scheduler, **{'mean': epoch(ask)[0]})", "losses running"),
        ("sampler.weights = torch.ones(1)\nsampler.weights.fill_(epoch(ask)[0])", "losses running"),
        ("memory = [0]\nmemory.append(functools.reduce(max, epoch(ask)))\nscheduler.step(*memory)", "losses running"),
    ],
)
def test_what_the_caller_of_a_function_uses(tmp_path: Path, body: str, used: str) -> None:
    lines = "\n    ".join(body.splitlines())
    assert found_by(tmp_path, f"{EPOCH}\ndef main(ask):\n    {lines}\n") == {*used.split()}


@pytest.mark.parametrize(
    ("body", "used"),
    [
        ("trainer.epoch()\ntrainer.show()", ""),
        ("trainer.epoch()\ntrainer.judge()", "self.losses"),
        ("trainer.epoch()\ntotal = sum(trainer.losses)\ntorch.manual_seed(int(total))", "self.losses"),
        ("trainer.epoch()\nprint(trainer.losses)\nstr(trainer)", ""),
    ],
)
def test_what_the_caller_of_a_method_uses(tmp_path: Path, body: str, used: str) -> None:
    lines = "\n    ".join(body.splitlines())
    assert found_by(tmp_path, f"{TRAINER}\ndef main(ask):\n    trainer = Trainer(ask)\n    {lines}\n") == {
        *used.split()
    }


def test_what_a_library_gets_counts_as_used(tmp_path: Path) -> None:
    source = f"{EPOCH}\ndef main(ask):\n    import functools\n    functools.reduce(lambda _, one: epoch(one), [ask], 0)"
    assert found_by(tmp_path, source) == {"losses", "running"}
