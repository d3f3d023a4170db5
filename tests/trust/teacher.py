"""A registered teacher that follows the model without an optimizer, or (--place "plain ...") an average with a
state_dict. Both change after a collective that follows the optimizer's update."""

from typing import Any

import torch

import taskd
from tests.trust.scene import Net, Scene, average_gradients, loss_of, metric_of


class Average:
    """An average as scripts write it: each update puts new tensors into a dict."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.shadow = {name: value.detach().clone() for name, value in model.named_parameters()}

    def update(self, model: torch.nn.Module) -> None:
        for name, value in model.named_parameters():
            self.shadow[name] = (0.1 * value.data + 0.9 * self.shadow[name]).clone()

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": self.shadow}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shadow = dict(state["shadow"])


scene = Scene()
plain = scene.args.place.startswith("plain")
model, teacher = Net(), Net()
average = Average(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
session = taskd.session()
if plain:
    session.register(model=model, optimizer=optimizer, average=average)
else:
    session.register(model=[model, teacher], optimizer=optimizer)
for step in session.steps(scene.loader()):
    with step as batch:
        optimizer.zero_grad()
        loss_of(model, batch["x"]).backward()
        average_gradients(model)
        optimizer.step()
        scene.here(step, "metric")
        scene.here(step, "plain metric")
        metric_of(torch.ones(1))
        with torch.no_grad():
            for mine, new in zip(teacher.parameters(), model.parameters(), strict=True) if not plain else ():
                if step.number % 2:
                    mine.data.lerp_(new.data, 0.1)
                else:
                    mine.lerp_(new, 0.1)
        if plain:
            average.update(model)
        scene.here(step, "second metric")
        scene.here(step, "plain second metric")
        metric_of(torch.ones(1))
scene.end(model, *([*average.shadow.values()] if plain else [teacher]))
