"""A loop that changes numbers where its source does not show it: in calls of modules, of an optimizer, by setattr.

Those of registered objects are put back with them. Those of the others are looked at and given. The weights depend on
all of them. --place says where rank 1 dies: "all, backward".
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import taskd
from tests.trust.scene import Net, Scene, average_gradients, loss_of

scene = Scene()
scene.args.place = scene.args.place.partition(", ")[2]
forwards = 0


class Meter:
    """An average, as many scripts have one."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def update(self, value: float) -> None:
        """Take one more value."""
        self.total += value
        self.count += 1

    @property
    def average(self) -> float:
        """Return the average."""
        return self.total / max(self.count, 1)


class Counted(nn.Module):
    """Counts its calls in itself, in an object of its own and in a variable of this file."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls, self.meter = Net(), 0, Meter()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global forwards
        forwards += 1
        self.calls += 1
        self.meter.update(float(x.shape[0]))
        found: torch.Tensor = self.inner(x) * (1 + self.calls / 50)
        return found


class Scaled(nn.Module):
    """Keeps a list that belongs to its extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = [1.0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(0.9 * self.seen[-1] + 0.1)
        return x * self.seen[-1]

    def get_extra_state(self) -> Any:
        return {"seen": self.seen}

    def set_extra_state(self, state: Any) -> None:
        self.seen = [*state["seen"]]


class Warm(torch.optim.AdamW):
    """Counts its own updates."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.01)
        self.updates = 0

    def step(self, closure: Any = None) -> Any:
        self.updates += 1
        return super().step(closure)


class Total:
    """An object that is registered as this rank's own, and holds a meter."""

    def __init__(self) -> None:
        self.meter = Meter()

    def take(self, value: float) -> None:
        """Count this, in a way that does not show."""
        for name, more in {"total": value, "count": 1}.items():
            setattr(self.meter, name, getattr(self.meter, name) + more)

    def state_dict(self) -> dict[str, Any]:
        """Return what it counts."""
        return dict(vars(self.meter))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what was counted."""
        vars(self.meter).update(state)


class Plain:
    """An object that nobody registers, and that weighs the loss."""

    def __init__(self) -> None:
        self.turns = 0


model, scaled = Counted(), Scaled()
optimizer = Warm(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
total, plain = Total(), Plain()
session = taskd.session()
session.register(
    model={"model": model, "scaled": scaled}, optimizer=optimizer, scheduler=scheduler, local={"total": total}
)
for step in session.steps(scene.loader()):
    with step as batch:
        for attribute in ("turns",):
            setattr(plain, attribute, getattr(plain, attribute) + 1)
        optimizer.zero_grad()
        factor = 1 + optimizer.updates / 20 + total.meter.count / 30 + optimizer.param_groups[0]["lr"] + plain.turns / 9
        loss = loss_of(model, scaled(batch["x"])) * factor
        total.take(loss.item())
        loss.backward()
        scene.here(step, "backward")
        average_gradients(model)
        optimizer.step()
        scheduler.step()
        scene.here(step, "updated")
seen = (plain.turns, model.meter.total, model.meter.count)
scene.end(model, model.calls, optimizer.updates, total.meter.average, scaled.seen[-1], *seen)
