"""Loops that draw random numbers or write into buffers after their forward. --place says how, and where rank 1 dies.

"dropout": an evaluation after the update. "noise": noise is added to gradients. "numbers": numpy and Python draw, for
the next step. "buffers": a norm sees one more batch. "local": an object registered as local remembers the loss.
"between": the loop draws outside of `with step:`. "none": nothing.
"""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn

import taskd
from tests.trust.scene import Net, Scene, average_gradients, loss_of

scene = Scene()
kind, _, place = scene.args.place.partition(", ")
scene.args.place = place
session = taskd.session()
torch.manual_seed(7 + scene.rank)
np.random.seed(8 + scene.rank)
random.seed(9 + scene.rank)
model, norm = Net(), nn.BatchNorm1d(8)
torch.manual_seed(7)
for parameter in model.parameters():
    nn.init.normal_(parameter, std=0.1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
own = {"loss": 0.0}
session.register(model=[model, norm], optimizer=optimizer, local={"own": own} if kind == "local" else None)

for step in session.steps(scene.loader(), epochs=2):
    scene.here(step, "handed")
    with step as batch:
        x = batch["x"] / 20
        optimizer.zero_grad()
        noise = torch.rand(()) + own["loss"]
        if kind == "buffers":
            noise = noise + norm.eval()(x).mean().detach()
            norm.train()
        loss = loss_of(model, x) * noise
        loss.backward()
        average_gradients(model)
        scene.here(step, "reduced")
        if kind == "noise":
            for parameter in model.parameters():
                parameter.grad += 0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))
            torch.rand(())
        optimizer.step()
        scene.here(step, "updated")
        if kind == "dropout":
            loss_of(model, x)
        elif kind == "numbers":
            np.random.rand()
            random.random()
            torch.from_numpy(np.random.rand(1))
        elif kind == "buffers":
            norm(x)
        elif kind == "local":
            own["loss"] = 0.5 * own["loss"] + float(loss)
        scene.here(step, "drawn")
    if kind == "between" and not step.rehearsal:
        torch.rand(3)
    scene.here(step, "behind")
scene.end(model, norm)
