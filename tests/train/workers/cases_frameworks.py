"""API cases: libraries that build on torch.distributed, from DDP to compiled collectives."""

from __future__ import annotations

import gc

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from cases import FOLDER, HOW, RANK, SIZE, case, compiled_case, equal_everywhere, guarded, parameters_of
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from taskd import _c10d


@case
def ddp() -> None:
    torch.manual_seed(RANK)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
    assert equal_everywhere(parameters_of(model))


@case
def ddp_with_buffers_and_unused_parameters() -> None:
    torch.manual_seed(RANK)
    layers = torch.nn.ModuleList([torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 8)])

    class Branching(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers[1](self.layers[0](x))

    model = DistributedDataParallel(Branching(), find_unused_parameters=True)
    for _ in range(3):
        model(torch.randn(4, 8)).sum().backward()
    assert equal_everywhere(model.module.layers[0].weight.grad)


@case
def ddp_with_uneven_inputs() -> None:
    """The rank with fewer inputs answers the other rank's collectives until that rank has ended, too."""
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = parameters_of(model).clone()
    with model.join():
        for _ in range(2 + 3 * RANK):
            optimizer.zero_grad()
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
    assert equal_everywhere(parameters_of(model)) and not torch.equal(parameters_of(model), before)


@case
def ddp_of_a_graph_that_stays() -> None:
    layer = torch.nn.Linear(8, 8)
    model = DistributedDataParallel(torch.nn.Sequential(layer, layer), static_graph=True, gradient_as_bucket_view=True)
    for _ in range(3):
        model.zero_grad()
        model(torch.full((4, 8), RANK + 1.0)).sum().backward()
    assert equal_everywhere(layer.weight.grad)


@case
def ddp_communication_hooks() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    model(torch.randn(8, 64)).sum().backward()
    assert equal_everywhere(model.module.weight.grad)
    model = DistributedDataParallel(torch.nn.Linear(64, 64), bucket_cap_mb=1)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for _ in range(4):
        model(torch.randn(8, 64)).sum().backward()
    assert equal_everywhere(model.module.weight.grad)


@case
def zero_redundancy_optimizer() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 16))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
    for _ in range(2):
        model(torch.randn(2, 16)).sum().backward()
        optimizer.step()
    assert equal_everywhere(parameters_of(model))


@case
def fsdp2() -> None:
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (SIZE,))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
    whole = model[0].weight.full_tensor()
    assert equal_everywhere(whole.detach())


@case
def dtensor() -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (SIZE,))
    wanted = torch.arange(16.0).reshape(4, 4)
    sharded = distribute_tensor(wanted.clone(), mesh, [Shard(0)])
    product = (sharded @ sharded.redistribute(mesh, [Replicate()])).full_tensor()
    assert torch.equal(product, wanted @ wanted)
    assert torch.equal(sharded.redistribute(mesh, [Shard(1)]).full_tensor(), wanted)


@case
@guarded
def device_mesh() -> None:
    mesh = init_device_mesh("cpu", (1, SIZE), mesh_dim_names=("dp", "tp"))
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=mesh["tp"].get_group())
    assert int(tensor[0]) == SIZE
    assert isinstance(mesh["tp"].get_group()._get_backend(torch.device("cpu")), _c10d.Guard)


@case
def data_loaders_with_processes() -> None:
    """Loader processes are forked or spawned in the middle of operations. They must not affect the groups."""
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    for context in ("fork", "spawn") if HOW == "install" else ("fork",):
        work = dist.all_reduce(torch.ones(200_000), async_op=True)
        loader = torch.utils.data.DataLoader(data, batch_size=2, num_workers=1, multiprocessing_context=context)
        for turn, (batch,) in enumerate(loader):
            assert batch.tolist() == [2.0 * turn, 2.0 * turn + 1]
            dist.all_reduce(batch)
            assert batch.tolist() == [SIZE * 2.0 * turn, SIZE * (2.0 * turn + 1)]
        work.wait()


@case
def functional_collectives() -> None:
    world = dist.group.WORLD
    assert int(functional.wait_tensor(functional.all_reduce(torch.ones(4), "sum", world))[0]) == SIZE
    gathered = functional.wait_tensor(functional.all_gather_tensor(torch.full((2,), float(RANK)), 0, world))
    assert torch.equal(gathered, torch.arange(SIZE).repeat_interleave(2).float())
    scattered = functional.wait_tensor(functional.reduce_scatter_tensor(torch.ones(2 * SIZE), "sum", 0, world))
    assert torch.equal(scattered, torch.full((2,), float(SIZE)))
    functional.wait_tensor(functional.all_to_all_single(torch.ones(2 * SIZE), None, None, world))
    functional.wait_tensor(functional.broadcast(torch.ones(4), 0, world))
    two = [torch.ones(4), torch.ones(2 * SIZE)]
    assert all(
        int(functional.wait_tensor(one)[0]) == SIZE for one in functional.all_reduce_coalesced(two, "sum", world)
    )
    for one in functional.all_gather_into_tensor_coalesced(two, world):
        functional.wait_tensor(one)
    for one in functional.reduce_scatter_tensor_coalesced([two[1], two[1]], "sum", [0, 0], world):
        assert int(functional.wait_tensor(one)[0]) == SIZE


@case
def distributed_checkpoint() -> None:
    import torch.distributed.checkpoint as checkpoint

    where = FOLDER / f"checkpoint-{HOW}"
    checkpoint.save({"a": torch.ones(4)}, checkpoint_id=where)
    loaded = {"a": torch.zeros(4)}
    checkpoint.load(loaded, checkpoint_id=where)
    assert torch.equal(loaded["a"], torch.ones(4))


@case
def profiler_sees_the_operations() -> None:
    """Runs several times: an operation whose range outlives the profiler would write to freed memory."""
    for _ in range(8):
        with torch.profiler.profile() as profile:
            dist.all_reduce(torch.ones(4))
        assert any("all_reduce" in event.key for event in profile.key_averages())
    del profile
    gc.collect()


@compiled_case
def compiled_collectives() -> None:
    @torch.compile(fullgraph=True)
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    assert int(doubled(torch.ones(8))[0]) == 2 * SIZE + 1

    @torch.compile
    def in_place(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x + 1

    assert int(in_place(torch.ones(8))[0]) == SIZE + 1


@compiled_case
def compiled_ddp() -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    model = DistributedDataParallel(layers)
    compiled = torch.compile(model)
    for _ in range(2):
        compiled(torch.randn(8, 64)).sum().backward()
    assert equal_everywhere(layers[0].weight.grad)
