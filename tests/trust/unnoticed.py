"""Steps that use something which hardly any repair knows. If the step that is done again has another loss, all start
over.

"patched": a step replaces a function of torch. "mocked": it lets a library do so. "scripted": an attribute of a
compiled module counts. "pool": a process of a pool counts. "database": so does a database in memory. "context": a
variable of the context. "local": a variable of this thread. "helper": a thread that is asked by a queue.
"""

from __future__ import annotations

import contextvars
import multiprocessing
import queue
import sqlite3
import threading
from collections.abc import Callable
from unittest import mock

import torch
from torch import nn

import taskd
from tests.trust.scene import Net, Scene, average_gradients

turns = 0


class Counts(nn.Module):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: int = 0

    def forward(self) -> int:
        self.calls += 1
        return self.calls


def another_turn(_: int) -> int:
    """Count in a process of the pool."""
    global turns
    turns += 1
    return turns


def l1(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Another loss."""
    return (x - y).abs().mean()


def mocked() -> Callable[[], float]:
    def turn() -> float:
        if step.number == 3:
            mock.patch.object(nn.functional, "mse_loss", l1).start()
        return 1

    return turn


def patched() -> Callable[[], float]:
    def turn() -> float:
        if step.number == 3:
            nn.functional.mse_loss = l1
        return 1

    return turn


def scripted() -> Callable[[], float]:
    module: Callable[[], float] = torch.jit.script(Counts())
    return module


def pool() -> Callable[[], float]:
    made = multiprocessing.get_context("spawn").Pool(1)
    return lambda: made.map(another_turn, [0])[0]


def database() -> Callable[[], float]:
    connection = sqlite3.connect(":memory:")
    connection.execute("create table turns (count int)")
    connection.execute("insert into turns values (0)")

    def turn() -> float:
        connection.execute("update turns set count = count + 1")
        return int(connection.execute("select count from turns").fetchone()[0])

    return turn


def context() -> Callable[[], float]:
    variable = contextvars.ContextVar("turns", default=0)

    def turn() -> float:
        variable.set(variable.get() + 1)
        return variable.get()

    return turn


def local() -> Callable[[], float]:
    variables = threading.local()
    variables.turns = 0

    def turn() -> float:
        variables.turns += 1
        return int(variables.turns)

    return turn


def helper() -> Callable[[], float]:
    asked, answers = queue.SimpleQueue[int](), queue.SimpleQueue[int]()

    def work() -> None:
        count = 0
        while True:
            asked.get()
            count += 1
            answers.put(count)

    threading.Thread(target=work, daemon=True).start()

    def turn() -> float:
        asked.put(1)
        return answers.get()

    return turn


MADE = (mocked, patched, scripted, pool, database, context, local, helper)
KINDS = {made.__name__: made for made in MADE}
if __name__ == "__main__":
    scene = Scene()
    kind, _, scene.args.place = scene.args.place.partition(", ")
    turn = KINDS[kind]()
    session = taskd.session()
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    session.register(model=model, optimizer=optimizer)
    for step in session.steps(scene.loader()):
        with step as batch:
            scene.here(step, "begin")
            optimizer.zero_grad()
            count = turn()
            nn.functional.mse_loss(model(batch["x"]) * (1 + count / 10), batch["x"]).backward()
            scene.here(step, "backward")
            average_gradients(model)
            optimizer.step()
            scene.here(step, "end")
    scene.end(model)
