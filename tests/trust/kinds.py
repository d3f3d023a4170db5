"""Trainings with an object that taskd does not understand, or that only looks so. Each kind is one training.

With "plain" the loop is the script's own, without a session. The loop with a session must end with the same weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.utils import parametrizations
from torch.optim.lr_scheduler import StepLR

import taskd
from tests.trust.scene import Net, Scene, average_gradients, loss_of

scene = Scene()
CASE, _, PLACE = scene.args.place.partition(", ")
PLAIN = PLACE == "plain"


class Delegating(torch.optim.Optimizer):
    """Like Accelerate's: a subclass of torch.optim.Optimizer that does not call that class's constructor."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state

    def state_dict(self) -> Any:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.optimizer.load_state_dict(state)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)


class Hollow(torch.optim.Optimizer):
    """A subclass of torch.optim.Optimizer that has none of its attributes, and works nevertheless."""

    def __init__(self, model: nn.Module) -> None:
        self.all = [*model.parameters()]

    def zero_grad(self, set_to_none: bool = True) -> None:
        for one in self.all:
            one.grad = None

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for one in self.all:
                if one.grad is not None:
                    one -= 0.01 * one.grad


class Wrapped(torch.Tensor):
    """A tensor subclass around another tensor, as quantized and sharded tensors are."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, requires_grad=True)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def bare(value: Any) -> Any:
            return value.inner if isinstance(value, cls) else value

        args = torch.utils._pytree.tree_map(bare, args)
        found = function(*args, **torch.utils._pytree.tree_map(bare, kwargs or {}))
        return found if function is not torch.ops.aten.detach.default else cls(found)


class Trap(Net):
    """A module with a __getattr__ of its own. It raises for names that other code may try."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("state_", "register_taskd", "is_", "process_group")):
            raise RuntimeError(f"nobody asks for {name}")
        return super().__getattr__(name)

    @property
    def shards(self) -> Any:
        raise RuntimeError("they are not loaded")


class Closed(StepLR):
    """A scheduler whose state cannot be read."""

    def state_dict(self) -> Any:
        raise RuntimeError("its state is elsewhere")


class Uncopied:
    """An object that cannot be copied. It stands in the settings of an optimizer."""

    def __copy__(self) -> Any:
        raise RuntimeError("there is one of it")

    __deepcopy__ = None


class Plain(nn.Module):
    """A module without a __getattr__ of its own. Its own named_buffers() requires an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)  # type: ignore[no-any-return]

    def named_buffers(self, prefix: str) -> Iterator[Any]:  # type: ignore[override]
        return super().named_buffers(prefix)


def training(
    model: nn.Module, optimizer: Any, scheduler: Any = None, *, sharded: bool = False, layout: Any = None
) -> None:
    """Run the loop, with a session or without. `layout`: of a nested tensor that each batch gets."""
    loader = scene.loader()
    if layout is not None:
        collate = loader.collate_fn
        loader.collate_fn = lambda samples: (
            collate(samples) | {"rows": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)}
        )
    session: Any = None
    if not PLAIN:
        session = taskd.session()
        session.register(model=model, optimizer=optimizer, **({"scheduler": scheduler} if scheduler else {}))

    def steps() -> Iterator[tuple[Any, Any]]:
        if not PLAIN:
            for step in session.steps(loader):
                yield step, step
            return
        for batch in loader:
            yield None, contextlib.nullcontext(batch)

    for step, inside in steps():
        with inside as batch:
            optimizer.zero_grad()
            loss_of(model, batch["x"]).backward()
            if step is not None:
                scene.here(step, "backward")
            if not sharded:
                average_gradients(model)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
    weights = [one.inner if isinstance(one, Wrapped) else one for one in model.parameters()]
    weights = [one.full_tensor() if isinstance(one, DTensor) else one for one in weights]  # type: ignore[attr-defined]
    scene.end(*[one for one in weights if not one.is_meta])


def plain_adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def delegating() -> None:
    model = Net()
    training(model, Delegating(plain_adam(model)))


def hollow() -> None:
    model = Net()
    training(model, Hollow(model))


def subclass() -> None:
    model = Net()
    model.first.weight = nn.Parameter(Wrapped(model.first.weight.detach()))
    training(model, torch.optim.SGD([one for one in model.parameters() if not isinstance(one, Wrapped)], lr=0.01))


def trap() -> None:
    model = Trap()
    training(model, plain_adam(model))


def closed() -> None:
    model = Net()
    optimizer = plain_adam(model)
    training(model, optimizer, Closed(optimizer, 2))


def uncopied() -> None:
    model = Net()
    optimizer = plain_adam(model)
    optimizer.param_groups[0]["owner"] = Uncopied()
    training(model, optimizer)


def named() -> None:
    model = Plain()
    training(model, plain_adam(model))


def meta() -> None:
    model = Net()
    model.register_parameter("unused", nn.Parameter(torch.ones(3, device="meta")))
    training(model, plain_adam(model))


def sparse() -> None:
    model = Net()
    model.register_buffer("mask", torch.eye(4).to_sparse())
    training(model, plain_adam(model))


def quantized() -> None:
    model = Net()
    model.register_buffer("table", torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8))
    training(model, plain_adam(model))


def nested() -> None:
    model = Net()
    model.register_buffer("rows", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))
    training(model, plain_adam(model))


def nested_batch() -> None:
    model = Net()
    training(model, plain_adam(model), layout=torch.strided)


def jagged_batch() -> None:
    model = Net()
    training(model, plain_adam(model), layout=torch.jagged)


def lazy() -> None:
    model = nn.Sequential(Net(), nn.LazyLinear(8))
    training(model, torch.optim.SGD(model.parameters(), lr=0.01))


def parametrized() -> None:
    model = Net()
    parametrizations.weight_norm(model.first)
    training(model, plain_adam(model))


def tied() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    model[2].weight = model[0].weight
    training(model, plain_adam(model))


def uneven() -> None:
    """A sharded model with five rows, so one rank has more rows than the other."""
    model = nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 8))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    training(model, plain_adam(model), sharded=True)


CASES: dict[str, Callable[[], None]] = {
    one.__name__: one
    for one in (
        delegating, hollow, subclass, trap, closed, uncopied, named, meta, sparse, quantized, nested, lazy,
        nested_batch, jagged_batch, parametrized, tied, uneven,
    )
}  # fmt: skip
scene.args.place = PLACE
CASES[CASE]()
