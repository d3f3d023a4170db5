"""Steps that change plain attributes of modules and an optimizer, extra state, and which parameters learn."""

from typing import Any

import torch
from torch import nn

import taskd
from tests.trust.scene import Net, Scene, average_gradients, loss_of, metric_of


class Scaled(nn.Module):
    """Divides by the largest value that it has seen. That value is extra state, as in Transformer Engine."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls, self.largest = Net(), 0, [torch.ones(1)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.largest.append(torch.maximum(self.largest[-1] * 0.9, x.detach().abs().max()))
        found: torch.Tensor = self.inner(x / self.largest[-1]) + self.calls / 10
        return found

    def get_extra_state(self) -> Any:
        return {"largest": self.largest[-1]}

    def set_extra_state(self, state: Any) -> None:
        self.largest = [state["largest"]]


class Warm(torch.optim.AdamW):
    """Counts its own updates, and computes its warm-up from the count."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr=lr)
        self.full, self.updates = lr, 0

    def step(self, closure: Any = None) -> Any:
        self.updates += 1
        for group in self.param_groups:
            group["lr"] = self.full * min(1.0, self.updates / 9)
        return super().step(closure)


scene = Scene()
model = Scaled()
optimizer = Warm(model.parameters(), lr=0.01)
session = taskd.session()
session.register(model=model, optimizer=optimizer)
for step in session.steps(scene.loader()):
    with step as batch:
        model.inner.drop.p += 0.05
        if step.number >= 3:
            model.inner.first.requires_grad_(step.number % 2 == 0)
        optimizer.zero_grad()
        loss_of(model, batch["x"]).backward()
        scene.here(step, "backward")
        average_gradients(model)
        optimizer.step()
        scene.here(step, "metric")
        metric_of(torch.ones(1))
        model.inner.drop.p -= 0.02
        model.inner.first.requires_grad_(True)
        scene.here(step, "end")
scene.end(model, model.calls, optimizer.updates, model.inner.drop.p, model.largest[-1])
