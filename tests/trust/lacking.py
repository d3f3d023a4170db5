"""A loop that keeps its losses where no repair looks: in a database in memory. All steps after the first need them.

--place says where rank 1 dies, after "all" or "wrong". With "wrong", rank 1's script has an error in step 5 as well.
"""

from __future__ import annotations

import sqlite3

import torch

import taskd
from tests.trust.scene import Net, Scene, average_gradients, loss_of

scene = Scene()
kind, _, place = scene.args.place.partition(", ")
scene.args.place = place
losses = sqlite3.connect(":memory:")
losses.execute("create table losses (step, loss)")
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
session = taskd.session()
session.register(model=model, optimizer=optimizer)
for step in session.steps(scene.loader()):
    with step as batch:
        scene.here(step, "begun")
        optimizer.zero_grad()
        loss = loss_of(model, batch["x"])
        if step.number:
            [before] = losses.execute("select loss from losses where step = ?", [step.number - 1]).fetchone()
            loss = loss * (1 + before)
        if (kind, scene.rank, step.number) == ("wrong", 1, 5):
            raise ValueError("the script's own error")
        loss.backward()
        average_gradients(model)
        losses.execute("insert into losses values (?, ?)", [step.number, loss.item()])
        optimizer.step()
        scene.here(step, "updated")
scene.end(model)
