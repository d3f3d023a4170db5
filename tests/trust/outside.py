"""A schedule that moves in the loop, before or after the `with`. No repair can put that back or do it again."""

import torch

import taskd
from tests.trust.scene import Net, Scene, average_gradients, loss_of

scene = Scene()
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
session = taskd.session()
session.register(model=model, optimizer=optimizer, scheduler=scheduler)
clip, before = "clip" in scene.args.place, "before" in scene.args.place
for step in session.steps(scene.loader()):
    if before:
        scheduler.step()
    with step as batch:
        optimizer.zero_grad()
        loss_of(model, batch["x"]).backward()
        scene.here(step, "backward")
        scene.here(step, "backward, clip")
        scene.here(step, "backward, before")
        average_gradients(model)
        optimizer.step()
        if clip:
            scheduler.step()
    if not clip and not before:
        scheduler.step()
    elif clip and not step.rehearsal:
        with torch.no_grad():
            model.first.weight.clamp_(-0.2, 0.2)
scene.end(model, scheduler.get_last_lr()[0])
