"""Evaluations with averaged weights in the model's place: after the backward, and after the update."""

import copy

import torch
from torch.optim.swa_utils import AveragedModel

import taskd
from tests.trust.scene import Net, Scene, average_gradients, loss_of, metric_of

scene = Scene()
model = Net()
average = AveragedModel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
session = taskd.session()
session.register(model=model, optimizer=optimizer, average=average)


def evaluate(place: str, x: torch.Tensor) -> None:
    own = copy.deepcopy(model.state_dict())
    if step.number % 2:  # scripts swap weights in one of these two ways
        model.load_state_dict(average.module.state_dict())
    else:
        for parameter, other in zip(model.parameters(), average.module.parameters(), strict=True):
            parameter.data = other.data
    with torch.no_grad():
        metric = loss_of(model, x)
    scene.here(step, place)
    metric_of(metric)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    model.load_state_dict(own)


for step in session.steps(scene.loader()):
    with step as batch:
        optimizer.zero_grad()
        loss_of(model, batch["x"]).backward()
        evaluate("evaluation", batch["x"])
        average_gradients(model)
        optimizer.step()
        average.update_parameters(model)
        evaluate("evaluation after the update", batch["x"])
scene.end(model, average)
