"""Averages of a model with BatchNorm. Their buffers are this rank's own, like the buffers of the model."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import taskd
from tests.trust.scene import Net, Scene, average_gradients, loss_of, metric_of


class Normed(Net):
    """A net with buffers that depend on what this rank has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.norm(x))


scene = Scene()
model = Normed()
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.7), use_buffers=True)
copied = AveragedModel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
session = taskd.session()
session.register(model=model, optimizer=optimizer, average=average, copied=copied)
for step in session.steps(scene.loader()):
    with step as batch:
        optimizer.zero_grad()
        loss_of(model, batch["x"]).backward()
        scene.here(step, "backward")
        average_gradients(model)
        scene.here(step, "reduced")
        optimizer.step()
        if step.number % 4:
            copied.update_parameters(model)
        average.update_parameters(model)
        scene.here(step, "averaged")
        metric_of(torch.ones(1))
scene.end(model, average, copied)
