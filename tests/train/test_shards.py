"""Shards of a model: which ranks have the same, how shards go to another process, and what `fully_shard` keeps.

Each test is one process that believes to be one of several ranks. torch's own "fake" backend answers it.
"""

from __future__ import annotations

from tests.conftest import RunPython

BEGIN = """
import sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from taskd.errors import PeerError, UsageError
from taskd.state import fully_sharded, parts, shards, strange, tree
from taskd.state.replica import Replica

def start(rank, size):
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())

def replica(*meshes):
    model = nn.Sequential(*[fully_shard(nn.Linear(4, 4), mesh=mesh) for mesh in meshes])
    return Replica({"model": model}, {"optimizer": torch.optim.AdamW(model.parameters())})
"""


def test_twins_differ_only_where_nothing_is_split(run_python: RunPython) -> None:
    run_python(
        BEGIN
        + """
start(6, 8)
square, cube = init_device_mesh("cpu", (2, 4)), init_device_mesh("cpu", (2, 2, 2))
row = torch.zeros(8, 8)
def of(mesh, *placements):
    return sorted(shards.twins(distribute_tensor(row, mesh, placements, src_data_rank=None)))
assert of(square, Replicate(), Shard(0)) == [2, 6]
assert of(square, Shard(0), Replicate()) == [4, 5, 6, 7]
assert of(square, Shard(0), Shard(1)) == [6]
assert of(cube, Replicate(), Shard(0), Replicate()) == [2, 3, 6, 7]
assert of(cube, Replicate(), Replicate(), Shard(1)) == [0, 2, 4, 6]
assert of(init_device_mesh("cpu", (8,)), Replicate()) == [*range(8)]
"""
    )


def test_a_part_is_what_all_shards_have_in_common(run_python: RunPython) -> None:
    run_python(
        BEGIN
        + """
start(3, 4)
square, line = init_device_mesh("cpu", (2, 2), mesh_dim_names=("r", "s")), init_device_mesh("cpu", (4,))
wide, flat = (init_device_mesh("cpu", shape, mesh_dim_names=("r", "s")) for shape in ((4, 1), (1, 4)))
assert parts.part_of(replica(square)) == 1 + 1 and strange.among(replica(square)) == ""
assert parts.part_of(replica(wide)) == parts.WHOLE and strange.among(replica(wide)) == ""
for unique in (replica(line), replica(flat), replica(square, line)):
    assert parts.part_of(unique) == parts.UNKNOWN
    assert "is a DTensor), a rank's shards have no copy, and none is kept" in strange.among(unique)
plain = replica(square)
plain.models["head"] = nn.Linear(2, 2)  # each rank may train another one
assert parts.part_of(plain) == parts.UNKNOWN
plain.models["head"].requires_grad_(False)
assert parts.part_of(plain) == 2
plain.models["head"].register_buffer("table", next(plain.models["model"].parameters()).detach())
assert "head.table is a DTensor" in strange.among(plain)
"""
    )


def test_shards_go_to_another_process_and_come_back(run_python: RunPython) -> None:
    run_python(
        BEGIN
        + """
start(1, 4)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("r", "s"))
held = replica(mesh)
parameters = [*held.models["model"].parameters()]
sums = shards.split(shards.plain(parameters[0]), parameters)
state = {"step": torch.ones(()), "list": [parameters[0].detach() + 1, 3], "none": None}
for placements in ([Replicate(), Shard(1)], [Replicate(), Partial("avg")], [Shard(0), Replicate()]):
    state[repr(placements)] = type(sums).from_local(torch.ones(4, 2), mesh, placements, run_check=False)
text, tensors = tree.flatten(shards.plain(state))
assert not any(shards.is_shard(tensor) for tensor in tensors)
found = shards.split(tree.unflatten(text, tensors), parameters)
assert found.keys() == state.keys() and found["none"] is None and found["list"][1] == 3
for one, other in zip((state["list"][0], *[*state.values()][3:]), (found["list"][0], *[*found.values()][3:])):
    assert other.placements == one.placements and other.shape == one.shape and other.device_mesh is mesh
    assert torch.equal(other._local_tensor, one._local_tensor)

for parameter in parameters:
    parameter.grad = torch.ones_like(parameter)
optimizer = held.optimizers["optimizer"]
optimizer.step()
small = held.small()
moments = [one["exp_avg"] for one in optimizer.state.values()]
kept = [one._local_tensor.clone() for one in moments]
for one in moments:
    one.zero_()
held.load_small(tree.unflatten(*tree.flatten(small)))
small = [one["exp_avg"] for one in optimizer.state.values()]
assert all(shards.is_shard(one) for one in small)

other = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
try:
    shards.split(shards.plain([distribute_tensor(torch.ones(4), other, [Replicate(), Shard(0)])]), parameters)
    sys.exit("it has taken a shard on an unknown mesh")
except PeerError as error:
    assert "no parameter of this rank has" in str(error)
class Odd(Shard):
    pass
try:
    shards.plain({"odd": type(sums).from_local(torch.ones(2), mesh, [Replicate(), Odd(0)], run_check=False)})
    sys.exit("it has given a shard with an unknown placement")
except UsageError as error:
    assert "state['odd'] is split over ranks as" in str(error)
try:
    tree.flatten({"moment": parameters[0]})
    sys.exit("it has given a shard by its address")
except UsageError as error:
    assert "state['moment'] is a" in str(error)
"""
    )


def test_whole_parameters_come_as_their_shards_and_are_reset(run_python: RunPython) -> None:
    run_python(
        BEGIN
        + """
start(0, 4)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("r", "s"))
class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.fails = False
    def forward(self, x):
        x = self.first(x)
        if self.fails:
            raise KeyboardInterrupt
        return self.second(x)
model = Two()
for one in (model.first, model):
    fully_shard(one, mesh=mesh)
held = Replica({"model": model})
held.fully_sharded.look()
names = [name for name, _ in held.tensors()]
own = [id(one) for _, one in held.tensors()]
assert fully_sharded.own_class(model) is Two and fully_sharded.own_class(model.second) is nn.Linear
model(torch.ones(2, 4)).sum().backward()
before = held.fully_sharded.note(True)
assert before.gradients == [None] * len(before.gradients)

model.set_requires_gradient_sync(False)
assert not held.fully_sharded.reduces()
model(torch.ones(2, 4)).sum().backward()
carried = held.fully_sharded.note(True)
assert sum(one is not None for one in carried.gradients) == 4
assert held.fully_sharded.note(False).gradients == [None] * len(carried.gradients)

model.fails = True
try:
    model(torch.ones(2, 4))
except KeyboardInterrupt:
    pass
assert [id(one) for one in model.parameters()] != own  # some are whole
assert [id(one) for _, one in held.tensors()] == own == [*map(id, fully_sharded.parameters_of(model))]
assert [name for name, _ in held.tensors()] == names
inner = Replica({"model": model.first})  # the outermost module is not registered
inner.fully_sharded.look()
for one in (inner, held):
    one.fully_sharded.reset()
    assert [id(one) for one in model.parameters()] == own
packed = fully_sharded.unpack(shards.split(shards.plain(fully_sharded.pack(carried)), model.parameters()))
held.fully_sharded.clear()
assert held.fully_sharded.note(True).gradients == before.gradients
held.fully_sharded.put_back(packed)
again = held.fully_sharded.note(True)
assert all((one is None) == (other is None) for one, other in zip(again.gradients, carried.gradients))
assert again.switches == carried.switches != before.switches and again.last == carried.last
held.fully_sharded.put_back(before)
assert held.fully_sharded.reduces() and held.fully_sharded.note(True) == before
model.fails = False
model(torch.ones(2, 4)).sum().backward()
"""
    )
