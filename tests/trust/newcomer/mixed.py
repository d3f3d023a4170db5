"""An optimizer with float32 moments for bfloat16 parameters. A Dropout and a layer change during the training."""

import torch

import taskd
from tests.trust.scene import Net, Scene, average_gradients, loss_of


class Momentum(torch.optim.Optimizer):
    """An optimizer that sums gradients in float32."""

    def __init__(self, parameters: object) -> None:
        super().__init__(parameters, {"lr": 0.01})  # type: ignore[arg-type]

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            moment = state.setdefault("moment", torch.zeros_like(parameter, dtype=torch.float32))
            moment.mul_(0.9).add_(parameter.grad.float())
            parameter.sub_((self.param_groups[0]["lr"] * moment).to(parameter.dtype))


scene = Scene()
model = Net().to(torch.bfloat16)
optimizer = Momentum(model.parameters())
session = taskd.session()
session.register(model=model, optimizer=optimizer)
for step in session.steps(scene.loader()):
    with step as batch:
        if step.number == 2:
            model.drop.p = 0.5
            model.first.bias.requires_grad_(False)
        optimizer.zero_grad()
        loss_of(model, batch["x"].to(torch.bfloat16)).backward()
        scene.here(step, "backward")
        average_gradients(model)
        scene.here(step, "reduced")
        optimizer.step()
scene.end(model, *(state["moment"] for state in optimizer.state.values()))
