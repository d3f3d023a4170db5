"""A loader that communicates when it is opened. Loaders do so to give all ranks the state of one generator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import taskd
from tests.trust.scene import Net, Noise, Scene, average_gradients, loss_of

scene = Scene()


class Talking(DataLoader[Any]):
    """A loader for which all ranks draw the order that rank 0 would draw."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        state = self.generator.get_state()
        dist.broadcast(state, 0)
        self.generator.set_state(state)
        return super().__iter__()


model = Net()
torch.manual_seed(100 + scene.rank)
generator = torch.Generator().manual_seed(scene.rank)
scene.trace()
loader = Talking(Noise(12), batch_size=4, shuffle=True, generator=generator)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
session = taskd.session()
session.register(model=model, optimizer=optimizer)
for step in session.steps(loader, epochs=3):
    with step as batch:
        optimizer.zero_grad()
        loss_of(model, batch["x"]).backward()
        scene.here(step, "backward")
        average_gradients(model)
        optimizer.step()
    scene.here(step, "behind")
scene.end(model)
