"""Trainings that make process groups while they train: in each step, or once and late."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import taskd
from tests.trust.scene import Net, Scene, average_gradients, loss_of

scene = Scene()
kind, _, place = scene.args.place.partition(", ")
scene.args.place = place
model = Net()
loader = scene.loader()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
session = taskd.session()
session.register(model=model, optimizer=optimizer)
kept: dict[str, Any] = {}
last = 0.0


def group_of(step: taskd.Step) -> Any:
    """The group for this step's metric."""
    scene.here(step, "before")
    if kind in ("each", "outside"):
        found = dist.new_group([0, 1])
    elif kind == "late" and step.number < 3:
        found = dist.group.WORLD
    else:
        if "metrics" not in kept:
            kept["metrics"] = dist.new_group([0, 1])
        found = kept["metrics"]
    scene.here(step, "made")
    return found


for step in session.steps(loader):
    if kind == "outside":
        group = group_of(step)
    with step as batch:
        optimizer.zero_grad()
        if kind != "outside":
            group = group_of(step)
        loss = loss_of(model, batch["x"])
        metric = loss.detach().clone()
        dist.all_reduce(metric, group=group)
        scene.here(step, "used")
        loss.backward()
        scene.here(step, "backward")
        average_gradients(model)
        if kind == "each":
            dist.destroy_process_group(group)
        optimizer.step()
    if kind == "outside":
        dist.destroy_process_group(group)
    if not step.rehearsal:
        last = metric.item()
scene.end(model, last)
