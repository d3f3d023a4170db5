"""Steps take other code than before: another loss, another state of a machine, hooks. --place: the kind, and where rank
1 dies.

"loss", "function": step 2 takes another criterion. "states": an object goes from state to state. "activation": step 2
replaces a module. "forward": it replaces the forward of one. "hook", "hook of a gradient": it registers one. "hook at
first": the first step does. "unhook": it removes one. "guarded": a flag says whether there is a hook. "each": each step
registers a hook and removes it. "chosen": each step chooses its criterion. "epoch": an epoch begins with another one.
"method", "closure": hooks of these kinds, registered before the loop. "late": each step removes its hook behind the
backward. "leak": no step removes its hook. "result": steps keep an object from the third one on. "broken": the forward
that step 2 takes leaves a weight out, so DDP raises an error in each later step. "made": step 2 makes an object without
values, where there was None. "first use": the first step that asks for a loss makes it.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.trust.scene import Net, Scene

scene = Scene()
kind, _, scene.args.place = scene.args.place.partition(", ")


class Warm:
    """Scales the loss in the first steps."""

    def weigh(self, loss: torch.Tensor) -> torch.Tensor:
        """Scale it."""
        return loss / 2


class Hot(Warm):
    """Scales the loss in later steps."""

    def weigh(self, loss: torch.Tensor) -> torch.Tensor:
        """Scale it."""
        return loss * 2


class Machine:
    """Goes from one state to the other."""

    def __init__(self) -> None:
        self.state = Warm()
        self.result: Any = None
        self.later: Warm | None = None
        self.loss: Any = None

    def asked(self, out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return the loss. It is chosen when it is asked for."""
        if self.loss is None:
            self.loss = partial(F.l1_loss, reduction="mean")
        return self.loss(out, x)


class Scale:
    """Scales, and has no values."""

    def scale(self, _module: Any, _given: Any, out: torch.Tensor) -> torch.Tensor:
        """Scale what a module gives."""
        return 1.5 * out


class Result:
    """What a forward has given."""

    def __init__(self, out: torch.Tensor) -> None:
        self.out = out


def scaling(machine: Machine) -> Any:
    """Return a hook that uses an object."""
    return lambda _module, _given, out: machine.state.weigh(out)


def scaled(_module: Any, _given: Any, out: torch.Tensor) -> torch.Tensor:
    """Scale what a module gives."""
    return 1.5 * out


model = DistributedDataParallel(Net())
net = model.module
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
machine, criterion, loss_of = Machine(), torch.nn.MSELoss(), F.mse_loss
hook: Any = net.first.register_forward_hook(scaled) if kind == "unhook" else None
if kind == "method":
    net.first.register_forward_hook(Scale().scale)
if kind == "closure":
    net.first.register_forward_hook(scaling(machine))
session = taskd.session()
session.register(model=model, optimizer=optimizer)


def in_step(number: int) -> None:
    """Do what this kind does at the beginning of a step."""
    if kind == "guarded":
        hook_once(number)
    elif kind == "hook at first" and number == 0:
        net.first.register_forward_hook(scaled)
    elif number == 2:
        in_step_2()


def in_step_2() -> None:
    """Do what only one step does."""
    match kind:
        case "states":
            machine.state = Hot()
        case "activation":
            net.second = torch.nn.Sequential(net.second, torch.nn.Tanh())
        case "forward":
            net.first.forward = lambda x: F.linear(x, 1.5 * net.first.weight, net.first.bias)
        case "made":
            machine.later = Hot()
        case "broken":
            net.first.forward = lambda x: F.linear(x, net.first.weight)
        case "hook":
            net.first.register_forward_hook(scaled)
        case "hook of a gradient":
            net.first.weight.register_hook(torch.sign)
            net.first.weight.register_hook(lambda gradient: 2 * gradient)
        case "unhook":
            hook.remove()


def hook_once(number: int) -> None:
    """Register a hook, unless there is one."""
    global hook
    if hook is None and (number >= 2 or number == 0):
        hook = net.first.register_forward_hook(scaled)


def train(epoch: int) -> None:
    """Train one epoch."""
    global criterion, loss_of
    if kind == "epoch" and epoch == 1:
        criterion = torch.nn.L1Loss()
    for step in session.steps(scene.loader()):
        with step as batch:
            in_step(step.number)
            if kind == "loss" and step.number == 2:
                criterion = torch.nn.L1Loss()
            if kind == "function" and step.number == 2:
                loss_of = F.l1_loss
            each = net.first.register_forward_hook(scaled) if kind in ("each", "late", "leak") else None
            optimizer.zero_grad()
            out = model(batch["x"])
            if each is not None and kind == "each":
                each.remove()
            if kind == "result" and step.number >= 2:
                machine.result = Result(out)
            loss = criterion(out, batch["x"]) + loss_of(out, batch["x"])
            loss = machine.state.weigh(loss)
            if machine.later is not None:
                loss = machine.later.weigh(loss)
            if kind == "first use":
                loss = loss + machine.asked(out, batch["x"])
            scene.here(step, "forward")
            loss.backward()
            if each is not None and kind == "late":
                each.remove()
            optimizer.step()
            scene.here(step, "updated")


def train_as_chosen(_: int) -> None:
    """Train one epoch. Each step chooses its criterion."""
    for step in session.steps(scene.loader()):
        with step as batch:
            chosen = torch.nn.L1Loss() if step.number % 2 else torch.nn.MSELoss()
            optimizer.zero_grad()
            loss = chosen(model(batch["x"]), batch["x"])
            scene.here(step, "forward")
            loss.backward()
            optimizer.step()
            scene.here(step, "updated")


for epoch in session.epochs(2):
    {"chosen": train_as_chosen}.get(kind, train)(epoch)
scene.end(model)
