"""Loops that use, behind `with step:`, what the body sets at its update or behind it. --place says how, and where a
rank dies.

"value": a loss that is read behind the update. "helper": a function makes the update and returns the loss. "list": an
item that the body appends. "meter": an object of the script that would divide by zero. "rate": what a scheduler gives
after its step. "closure": the result of an optimizer that evaluates a closure. "reduced": a number that the ranks have
added up. "file": the body writes a file before it is through. "error": the body raises an error that it catches itself.
"average": an average of the weights that the body updates. "passed": a dict that is passed to a function. "inner":
there are several updates in a step. "flag": a name that had a value, which is decided by what all ranks have added up.
"decided": a flag, by what a rank finds out alone in a rehearsal. "elsewhere": the same in a function. "log": nothing is
needed, and the body writes into a file that was opened before.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import taskd
from tests.trust.scene import Net, Scene, average_gradients, loss_of

EPOCHS = 2
scene = Scene()
kind, _, place = scene.args.place.partition(", ")
scene.args.place = place


class Meter:
    """An average of losses."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def update(self, value: float) -> None:
        self.total += value
        self.count += 1

    @property
    def average(self) -> float:
        return self.total / self.count


def backward(step: Any, x: torch.Tensor) -> torch.Tensor:
    scene.here(step, "forward")
    loss: torch.Tensor = loss_of(model, x)
    optimizer.zero_grad()
    loss.backward()
    scene.here(step, "backward")
    average_gradients(model)
    return loss


def update(step: Any) -> None:
    optimizer.step()
    scene.here(step, "updated")


def trained(step: Any, x: torch.Tensor) -> float:
    loss = backward(step, x)
    update(step)
    return loss.item()


def noted(step: Any, loss: torch.Tensor, into: dict[str, float]) -> None:
    update(step)
    into["last"] = loss.item()


def found_alone() -> bool:
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item() < 2


def decide() -> None:
    global is_alone
    if found_alone():
        is_alone = True


def divided(value: float, by: int) -> float:
    try:
        return value / by
    except ZeroDivisionError:
        return 0.0


is_alone = False
torch.manual_seed(7)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
average = torch.optim.swa_utils.AveragedModel(model)
session = taskd.session()
session.register(model=model, optimizer=optimizer, scheduler=scheduler, average=average)


def main() -> None:
    loader: Any = scene.loader()
    meter = Meter()
    if kind in ("list", "meter", "passed"):
        value = rate = distance = 0.0  # so nothing else is lacking
    phase, alone = 1, False
    for _ in session.epochs(EPOCHS):
        seen, last = list[float](), dict[str, float]()
        for step in session.steps(loader):
            with step as batch:
                x = batch["x"] / 20
                if kind == "helper":
                    value = trained(step, x)
                elif kind == "closure":
                    value = optimizer.step(functools.partial(backward, step, x)).item()
                    scene.here(step, "updated")
                elif kind == "passed":
                    noted(step, backward(step, x), last)
                elif kind == "inner":
                    for _ in range(3):
                        loss = backward(step, x)
                        update(step)
                    value = loss.item()
                else:
                    loss = backward(step, x * (1 if phase == 1 else 0.1) * (0.1 if alone or is_alone else 1))
                    update(step)
                    if kind == "list":
                        seen.append(loss.item())
                    elif kind == "meter":
                        meter.update(loss.item())
                    elif kind == "rate":
                        scheduler.step()
                        (rate,) = scheduler.get_last_lr()
                    elif kind == "average":
                        average.update_parameters(model)
                        distance = (average.module.first.weight - model.first.weight).norm().item()
                    elif kind in ("reduced", "flag"):
                        total = loss.detach().clone()
                        dist.all_reduce(total)
                        value = total.item()
                        if kind == "flag" and value < 0.01:
                            phase = 2
                    elif kind == "decided":
                        value = loss.item()
                        if found_alone():
                            alone = True
                    elif kind == "elsewhere":
                        decide()
                        value = loss.item()
                    elif kind == "file":
                        value = loss.item()
                        Path(scene.args.folder, f"loss-{scene.rank}").write_text(str(value))
                    elif kind == "error":
                        value = divided(loss.item(), step.number % 2)
                    else:
                        value = loss.item()
            if kind == "list":
                print(f"loss {seen[0]:.4f} {seen[-1]:.4f}")
            elif kind == "passed":
                print(f"loss {last['last']:.4f}")
            elif kind == "meter":
                print(f"loss {meter.average:.4f}")
            elif kind == "rate":
                print(f"rate {rate:.4f}")
            elif kind == "average":
                print(f"distance {distance:.4f}")
            else:
                print(f"loss {value:.4f}")
    scene.end(model, average)


def logged() -> None:
    loader: Any = scene.loader()
    with open(scene.args.folder / f"log-{scene.rank}", "a") as log:
        for _ in session.epochs(EPOCHS):
            for step in session.steps(loader):
                with step as batch:
                    loss = backward(step, batch["x"] / 20)
                    update(step)
                    log.write(f"{step.number} {loss.item():.4f}\n")
                if step.number % 3 == 0:
                    print(f"step {step.number}")
    scene.end(model, average)


(logged if kind == "log" else main)()
