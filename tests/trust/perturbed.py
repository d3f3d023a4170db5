"""Weights that are perturbed for a second backward and put back after it, through `.data` or in place."""

import torch

import taskd
from tests.trust.scene import Net, Scene, average_gradients, loss_of, metric_of

scene = Scene()
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
session = taskd.session()
session.register(model=model, optimizer=optimizer)
through_data = "in place" not in scene.args.place
for step in session.steps(scene.loader()):
    with step as batch:
        optimizer.zero_grad()
        loss_of(model, batch["x"]).backward()
        average_gradients(model)
        moves = [0.1 * parameter.grad for parameter in model.parameters()]
        with torch.no_grad():
            for parameter, move in zip(model.parameters(), moves, strict=True):
                (parameter.data if through_data else parameter).add_(move)
        metric_of(torch.ones(1))
        optimizer.zero_grad()
        scene.here(step, "second forward")
        scene.here(step, "second forward in place")
        metric_of(torch.ones(1))
        loss_of(model, batch["x"]).backward()
        with torch.no_grad():
            for parameter, move in zip(model.parameters(), moves, strict=True):
                (parameter.data if through_data else parameter).sub_(move)
        average_gradients(model)
        optimizer.step()
scene.end(model)
