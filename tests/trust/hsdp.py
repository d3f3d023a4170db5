"""A model under `fully_shard` on a mesh of two replicas with two shards each. --place says how, and where rank 1 dies.

There are four ranks: 0 and 2 have the first shards, 1 and 3 the second. "plain": AdamW and a dropout. "clipped": with
gradient clipping, which communicates. "mixed": computes in bfloat16. "recomputed": with activation checkpointing.
"summed": sums gradients over two backwards in each step. "carried": sums them over two steps and reduces them in the
second. "added": the same, reduced in both. "kept": the parameters stay whole after the forward. "offloaded": with
CPUOffloadPolicy. "uneven": with rows that cannot be divided by two. "perturbed": each step moves the parameters without
an optimizer for a while. "evaluated": evaluates after each epoch. "taught": by a sharded model that is not registered.
"logged": evaluates in each step, behind the update, and logs it when the step is agreed. "beside": trains a parameter
that is no shard. "repeated": torch's `replicate`, so that all ranks have all. "given": registers and returns shards.
"crosswise": rank 2 dies with rank 1, and each of them has a twin. "lost": rank 3 dies with rank 1, and these are twins.
"raising": rank 1 raises an error instead.
"apart": two meshes, so no two ranks have all the same. "alone ...": the same on a mesh of one dimension, so that every
shard is on one rank only. "clamped": each step clamps the parameters behind its update. "followed": an average of the
model is registered. "stepped": a scheduler is. "twice": two optimizers. "unlike": the ranks register
unlike averages.
At the place "line", rank 1 dies before line --at of the training, of torch's optimizers or of torch's `fully_shard`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

import taskd
from tests.trust.scene import BATCH, STEPS, Noise, Scene, die, say

scene = Scene()
kind, _, place = scene.args.place.partition(", ")
alone = kind.startswith("alone ")
kind = kind.removeprefix("alone ")
scene.args.place = place
if place == "line":
    scene.args.line = scene.args.at
WIDE = 11 if kind == "uneven" else 12
Here = Callable[[str], None]
ALSO = {"crosswise": 2, "lost": 3}


class Block(nn.Module):
    """Two layers with a dropout between them. It counts its forwards."""

    def __init__(self) -> None:
        super().__init__()
        self.rises, self.falls = nn.Linear(8, WIDE), nn.Linear(WIDE, 8)
        self.drop = nn.Dropout(0.1)
        self.passes = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += self.training and kind != "recomputed"  # a forward that is computed again counts again
        found: torch.Tensor = self.falls(self.drop(torch.tanh(self.rises(x))))
        return found * (1 + self.passes / 1000)


class Model(nn.Module):
    """Two blocks, and a layer that belongs to the root."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = Block(), Block(), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, here: Here) -> torch.Tensor:
        half = self.first(x)
        here("inside")
        if half.requires_grad:
            half.register_hook(lambda _: here("backward"))
        found: torch.Tensor = self.last(self.second(half))
        return found


class Dying(torch.optim.AdamW):
    """AdamW with a place between the updates of its two groups."""

    here: Here | None = None

    def _init_group(self, group: dict[str, Any], *args: Any) -> bool:
        if group is self.param_groups[-1] and self.here is not None:
            self.here("updating")
        return super()._init_group(group, *args)  # type: ignore[no-any-return, misc]


class Follower:
    """Follows a number: the mean of all losses, which all ranks have, or its own loss ("unlike")."""

    def __init__(self) -> None:
        self.mean = torch.zeros(())

    def see(self, loss: torch.Tensor) -> None:
        """Take one loss."""
        value = loss.detach() / 4
        if kind == "followed":
            dist.all_reduce(value)
        self.mean.mul_(0.9).add_(0.1 * value)

    def state_dict(self) -> dict[str, Any]:
        """Return the mean."""
        return {"mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a mean."""
        self.mean.copy_(state["mean"])


def sharded(model: Model) -> Model:
    """Apply `fully_shard` to the blocks and to the rest."""
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if kind == "mixed" else MixedPrecisionPolicy()
    offload = CPUOffloadPolicy(pin_memory=False) if kind == "offloaded" else OffloadPolicy()
    if alone:
        mesh = init_device_mesh("cpu", (4,))
    else:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    if kind == "repeated":
        for one in (model.first, model.second, model):
            replicate(one, mesh=init_device_mesh("cpu", (4,)))
        return model
    if kind == "recomputed":
        model.first, model.second = checkpoint_wrapper(model.first), checkpoint_wrapper(model.second)
    other = init_device_mesh("cpu", (4,)) if kind == "apart" else mesh
    for block, on in ((model.first, mesh), (model.second, other), (model, mesh)):
        stays = False if kind == "kept" else None
        fully_shard(block, mesh=on, mp_policy=policy, offload_policy=offload, reshard_after_forward=stays)
    return model


def dies_too(step: Any, place: str) -> None:
    """Kill the second rank that dies, if this is the place."""
    if (ALSO.get(kind), scene.args.at, scene.args.place) != (scene.rank, step.number, place) or step.rehearsal:
        return
    dead = scene.args.folder / "dead too"
    if not dead.exists():
        dead.touch()
        die()


def raises(step: Any, place: str) -> None:
    """Raise an error on rank 1, once, if this is the place."""
    if (kind, scene.rank, step.number, place) != ("raising", 1, scene.args.at, scene.args.place) or step.rehearsal:
        return
    raised = scene.args.folder / "raised"
    if not raised.exists():
        raised.touch()
        raise ValueError("a bad sample")


session = taskd.session()
torch.manual_seed(7)
model = sharded(Model())
teacher = sharded(Model().eval()).requires_grad_(False) if kind == "taught" else None
parameters = [*model.parameters()]
if kind == "beside":
    beside = nn.Parameter(torch.ones(8))
    parameters.append(beside)
    model.beside = beside
optimizer = Dying([{"params": parameters[:5]}, {"params": parameters[5:], "lr": 0.02}], lr=0.01)
average = {name: one.detach().clone() for name, one in model.named_parameters()}
session.register(model=model, optimizer=optimizer, local={"average": average} if kind == "given" else None)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7) if kind == "stepped" else None
follower = Follower() if kind in ("followed", "unlike") else None
if scheduler is not None:
    session.register(scheduler=scheduler)
if follower is not None:
    session.register(follower=follower)
if kind == "twice":
    second = torch.optim.SGD(parameters[5:], lr=0.001)
    session.register(optimizer={"second": second})
data = Noise(4 * STEPS * BATCH)
samples = [at for at in range(len(data)) if at // BATCH % 4 == scene.rank]
torch.manual_seed(100 + scene.rank)
scene.trace(Path(fsdp.__file__).parent)


def evaluate() -> float:
    """Return the loss without dropout. It leaves the root's parameters whole."""
    model.eval()
    with torch.no_grad():
        x = data[0]["x"] / 20
        found = nn.functional.mse_loss(model(x, lambda place: None), x)
    model.train()
    return float(found)


for _ in session.epochs(2):
    for step in session.steps(DataLoader(data, BATCH, sampler=samples)):
        with step as batch:

            def here(place: str, step: Any = step) -> None:
                dies_too(step, place)
                raises(step, place)
                if kind != "raising":
                    scene.here(step, place)

            optimizer.here = here
            x = batch["x"] / 20
            here("forward")
            if kind == "perturbed":
                for one in parameters:
                    one.data.mul_(1.01)
            if kind == "carried":
                model.set_requires_gradient_sync(step.number % 2 == 1)
            if kind == "summed":
                model.set_requires_gradient_sync(False)
                nn.functional.mse_loss(model(x + 1, lambda place: None), x).backward()
                here("between")
                model.set_requires_gradient_sync(True)
            wanted = x
            if teacher is not None:
                with torch.no_grad():
                    wanted = teacher(x, lambda place: None)
                here("taught")
            if kind == "beside":
                x = x * beside
            loss = nn.functional.mse_loss(model(x, here), wanted)
            here("loss")
            loss.backward()
            here("reduced")
            if kind == "perturbed":
                for one in parameters:
                    one.data.div_(1.01)
            if kind == "clipped":
                nn.utils.clip_grad_norm_(parameters, 0.05)
                here("clipped")
            if kind not in ("carried", "added") or step.number % 2 == 1:
                optimizer.step()
                if kind == "twice":
                    second.step()
                optimizer.zero_grad()
            if kind == "clamped":
                with torch.no_grad():
                    for one in parameters:
                        one.clamp_(-0.2, 0.2)
            if scheduler is not None:
                scheduler.step()
            if follower is not None:
                follower.see(loss)
            if kind == "given":
                for name, one in model.named_parameters():
                    average[name].lerp_(one.detach(), 0.1)
            if kind == "logged":
                step.on_commit(say, f"logged {scene.rank} {step.number} {evaluate()}")
            here("updated")
        here("behind")
    if kind == "evaluated":
        session.between(evaluate)
    elif kind == "given":
        session.between(lambda: {name: one.detach() * 2 for name, one in average.items()})
scene.end(*[one.full_tensor() for one in parameters if isinstance(one, DTensor)])
