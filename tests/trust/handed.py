"""A loop that hands tensors from one step to the next by itself. --place says which tensors, and where rank 1 dies.

"hidden": a hidden state that each step computes from the last one. "dict": averages that are changed in place. "sum":
a tensor that is only summed up. "kept": the hidden state again, in a registered object. "target": a copy of the weights
that the loop makes once, in step 1. "centre" and "late": a tensor that the loop makes in its first or second step.
"losses": a list of numbers that weigh the loss. With "large", tensors are larger than what is kept.
"""

from typing import Any

import torch

import taskd
from tests.trust.scene import Net, Scene, average_gradients, loss_of

scene = Scene()
kind, _, place = scene.args.place.partition(", ")
scene.args.place = place
kind, _, large = kind.partition(" ")
WIDE = 1 << 16 if large else 1


class Carry:
    """Holds a tensor, and has a state_dict()."""

    def __init__(self) -> None:
        self.hidden = torch.zeros(8)

    def state_dict(self) -> dict[str, Any]:
        return {"hidden": self.hidden}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.hidden = state["hidden"].clone()


def main() -> None:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    session = taskd.session()
    carry = Carry()
    session.register(model=model, optimizer=optimizer, local={"carry": carry} if kind == "kept" else None)
    centre, losses = None, list[float]()
    hidden, total = torch.zeros(8 * WIDE), torch.zeros(())
    averages = {name: value.detach().repeat(WIDE) for name, value in model.named_parameters() if value.dim() == 1}
    target = model.first.bias.detach().repeat(WIDE)
    for step in session.steps(scene.loader()):
        with step as batch:
            x = batch["x"] / 20
            optimizer.zero_grad()
            if kind == "hidden":
                hidden = torch.tanh(x.mean(0).repeat(WIDE) + hidden).detach()
                x = x + hidden[:8]
            elif kind == "kept":
                carry.hidden = torch.tanh(x.mean(0) + carry.hidden).detach()
                x = x + carry.hidden
            elif kind == "dict":
                x = x + averages["first.bias"][:8]
            elif kind in ("centre", "late"):
                if centre is None and (step.number or kind == "centre"):
                    centre = x.mean(0)
                x = x if centre is None else x - centre
            elif kind == "target":
                x = x + target[:8]
            scene.here(step, "forward")
            loss = loss_of(model, x)
            if kind == "losses":
                losses.append(loss.item())
                loss = loss * min(2.0, loss.item() * len(losses) / sum(losses))
            loss.backward()
            scene.here(step, "backward")
            average_gradients(model)
            scene.here(step, "reduced")
            optimizer.step()
            if kind == "dict":
                for name in averages:
                    averages[name].mul_(0.9).add_(model.get_parameter(name).detach().repeat(WIDE), alpha=0.1)
            elif kind == "target" and step.number == 1:
                target = model.first.bias.detach().repeat(WIDE)
            elif kind == "sum":
                total += loss.detach()
            scene.here(step, "updated")
    scene.end(model)


main()
