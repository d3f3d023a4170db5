"""Steps of modules that define their extra state. It holds all that a forward hands on, or none of it."""

import io
from typing import Any

import torch
from torch import nn

import taskd
from tests.trust.scene import Net, Scene, average_gradients, loss_of, metric_of


class Versioned(nn.Module):
    """Gives only a version as its extra state. Its forward hands on something else."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.largest = Net(), torch.ones(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.largest = torch.maximum(self.largest * 0.9, x.detach().abs().max())
        found: torch.Tensor = self.inner(x / self.largest)
        return found

    def kept(self) -> list[torch.Tensor]:
        return [self.largest]

    def get_extra_state(self) -> Any:
        return {"version": 3}

    def set_extra_state(self, state: Any) -> None:
        assert state["version"] == 3


class Meta:
    """What a layer of low precision knows of its inputs."""

    def __init__(self) -> None:
        self.largest, self.scale = torch.zeros(4), torch.ones(1)


class Low(nn.Module):
    """Keeps an object in a dict, and gives it as bytes, as Transformer Engine does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.meta = Net(), {"forward": Meta()}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        meta = self.meta["forward"]
        meta.largest = torch.roll(meta.largest, 1)
        meta.largest[0] = x.detach().abs().max()
        meta.scale.copy_(1.0 / meta.largest.max())
        found: torch.Tensor = self.inner(x * meta.scale)
        return found

    def kept(self) -> list[torch.Tensor]:
        return [self.meta["forward"].largest, self.meta["forward"].scale]

    def get_extra_state(self) -> Any:
        file = io.BytesIO()
        torch.save([self.meta["forward"].largest, self.meta["forward"].scale], file)
        return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        largest, scale = torch.load(io.BytesIO(state.numpy().tobytes()))
        self.meta["forward"].largest.copy_(largest)
        self.meta["forward"].scale.copy_(scale)


scene = Scene()
kind = "version" if scene.args.place.endswith("version") else "blob"
model = {"blob": Low, "version": Versioned}[kind]()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
session = taskd.session()
session.register(model=model, optimizer=optimizer)
for step in session.steps(scene.loader()):
    with step as batch:
        optimizer.zero_grad()
        loss_of(model, batch["x"]).backward()
        scene.here(step, f"backward {kind}")
        average_gradients(model)
        optimizer.step()
        scene.here(step, f"metric {kind}")
        metric_of(torch.ones(1))
scene.end(model, *model.kept())
