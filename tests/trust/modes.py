"""An evaluation in the middle of a step. A rank that leaves the step there leaves its modules in the other mode."""

import torch

import taskd
from tests.trust.scene import Net, Scene, average_gradients, loss_of, metric_of

scene = Scene()
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
session = taskd.session()
session.register(model=model, optimizer=optimizer)


def evaluate(place: str, x: torch.Tensor) -> None:
    model.eval()
    with torch.no_grad():
        metric = loss_of(model, x)
    scene.here(step, place)
    metric_of(metric)
    model.train()


for step in session.steps(scene.loader()):
    with step as batch:
        optimizer.zero_grad()
        loss_of(model, batch["x"] / 10).backward()
        evaluate("evaluation", batch["x"])
        average_gradients(model)
        optimizer.step()
        evaluate("evaluation after the update", batch["x"])
scene.end(model)
