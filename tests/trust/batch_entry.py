"""A loop that puts other tensors into its batch and into a list of the batch, and writes into a tensor in place."""

import torch

import taskd
from tests.trust.scene import Net, Scene, average_gradients, loss_of

scene = Scene()
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
session = taskd.session()
session.register(model=model, optimizer=optimizer)
for step in session.steps(scene.loader()):
    with step as batch:
        batch["x"] = batch["x"] / 10
        batch["more"].append(batch["more"].pop() * 1.5)
        if step.number % 2:
            batch["x"].mul_(1.1)
            batch.setdefault("scale", 0)
            batch["scale"] += 1
        loss = loss_of(model, batch["x"]) * sum(more.mean() for more in batch["more"]) + batch.get("scale", 0)
        optimizer.zero_grad()
        scene.here(step, "forward")
        (loss * loss).backward()
        scene.here(step, "backward")
        average_gradients(model)
        optimizer.step()
scene.end(model)
