"""Two ranks whose groups have the names of NCCL or HCCL: the guard around a stream-ordered backend, without a device.

A gloo group plays the library, with exactly those names of its API that are used. Everything above it is real, also the
way in which torch makes groups. Arguments: RANK SIZE FOLDER HOW, then names of scenarios (all if none). HOW is the
backend, nccl or hccl.
"""

from __future__ import annotations

import copy
import json
import os
import select
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, ClassVar

import cases_collectives
import cases_frameworks
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from cases import CASES, FOLDER, HOW, RANK, SIZE
from torch.distributed.device_mesh import init_device_mesh

from taskd import _c10d
from taskd.comm import guard, ours, sockets
from taskd.comm.adapter import Fault
from taskd.errors import StepAbandoned
from taskd.state.restore import everyone
from taskd.worker.together import LaunchedTogether
from tests.patience import PATIENCE, PATIENCE_S

MODULES = (cases_collectives, cases_frameworks)
control = _c10d.control
scenarios: dict[str, Callable[[], None]] = {}
of_hccl: dict[str, Callable[[], None]] = {}
meet: Any = None


class FakeNccl(dist.ProcessGroupGloo):
    """A fake ProcessGroupNCCL with what the adapter uses. `made` keeps it alive: C++ does not keep its Python part."""

    made: ClassVar[list[FakeNccl]] = []
    calls: ClassVar[list[str]] = []

    class Options:
        def __init__(self) -> None:
            self._timeout, self.config, self.is_high_priority_stream = PATIENCE, "default", False

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        inner = dist.ProcessGroupGloo._Options()
        inner._timeout = options._timeout
        inner._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        super().__init__(store, rank, size, inner)
        self.given, self.error = options, "SUCCESS"
        self.made.append(self)

    @staticmethod
    def get_runtime_nccl_version() -> tuple[int, int, int]:
        return (2, 30, 0)

    def get_error(self) -> Any:
        return SimpleNamespace(name=self.error)

    def abort(self) -> None:
        self.calls.append("abort")


def scenario(body: Callable[[], None]) -> Callable[[], None]:
    scenarios[body.__name__] = body
    return body


class FakeHccl(dist.ProcessGroupGloo):
    """A fake of torch_npu and its ProcessGroupHCCL, with what the adapter uses."""

    made: ClassVar[list[FakeHccl]] = []
    calls: ClassVar[list[tuple[Any, ...]]] = []

    class Options(SimpleNamespace):
        """Accepts any attribute."""

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        inner = dist.ProcessGroupGloo._Options()
        inner._timeout = options._timeout
        inner._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        super().__init__(store, rank, size, inner)
        self.given = options
        self.made.append(self)

    def resume_hccl_comm(self, device: int) -> str:
        return f"resumed {device}"

    @classmethod
    def torch_npu(cls) -> Any:
        def note(name: str) -> Callable[..., None]:
            return lambda *given, **named: cls.calls.append((name, *given, *named.values()))

        return SimpleNamespace(
            _C=SimpleNamespace(_distributed_c10d=SimpleNamespace(ProcessGroupHCCL=cls)),
            npu=SimpleNamespace(
                current_device=lambda: 3,
                check_uce_in_memory=lambda device: 0,
                stop_device=note("stop_device"),
                restart_device=note("restart_device"),
            ),
            distributed=SimpleNamespace(
                distributed_c10d=SimpleNamespace(reinit_process_group=note("reinit_process_group"))
            ),
        )


def scenario_of_hccl(body: Callable[[], None]) -> Callable[[], None]:
    of_hccl[body.__name__] = body
    return body


def raised(call: Callable[[], Any]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def world() -> Any:
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def group_over(backend: Any) -> Any:
    """Return a group of torch over this backend of one rank."""
    group: Any = dist.ProcessGroup(dist.HashStore(), 0, 1)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.NCCL, backend)
    group._set_default_backend(dist.ProcessGroup.BackendType.NCCL)
    return group


def works() -> bool:
    tensor = torch.full((1000,), RANK + 1.0)
    dist.all_reduce(tensor)
    return torch.equal(tensor, torch.full((1000,), 3.0))


def heal() -> list[str]:
    """Do what a session does between two steps. Both ranks call this."""
    epoch = control.epoch + 1
    control.drain(epoch)
    guard.end_inner_groups(epoch, "a test", on_devices_alone=True)
    made = guard.rebuild(epoch, dist.PrefixStore("heal", meet), within=PATIENCE)
    control.take_events()
    control.resume(epoch)
    assert works()
    return made


def cut_wires() -> None:
    """Cut every connection. The store is a file, so it stays. The other side may be quicker."""
    dist.barrier()
    for _, one in sockets.tcp_sockets():
        with suppress(OSError):
            one.getpeername()  # fails for a listening socket, which is left alone
            one.shutdown(socket.SHUT_RDWR)


@scenario
def the_backend_chooses_the_adapter() -> None:
    backend = world()
    assert isinstance(backend, _c10d.Guard) and backend.backend == "nccl" and backend.stream_ordered
    assert isinstance(backend, c10d.ProcessGroupNCCL) and not isinstance(backend, c10d.ProcessGroupGloo)
    assert type(backend.inner) is FakeNccl and backend.get_error().name == "SUCCESS", "asked of the inner group"
    for name in ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING"):
        assert os.environ[name] == "0"
    assert os.environ["NCCL_IB_RESILIENCY_PORT_RECOVERY"] == "1"


@scenario
def whatever_torch_offers_goes_through() -> None:
    for name in ("all_reduce", "gathers", "broadcast_and_reduce", "all_to_all", "objects", "ddp", "fsdp2"):
        CASES[name]()
    box = torch.zeros(3)
    pair = [dist.P2POp(dist.isend, torch.full((3,), 5.0), 1 - RANK), dist.P2POp(dist.irecv, box, 1 - RANK)]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    assert box.tolist() == [5.0] * 3
    backend = world()
    before = backend.sequence
    assert works() and backend.sequence == before + 1


@scenario
def operations_wait_while_they_are_parked() -> None:
    dist.barrier()
    control.park(control.epoch)
    timer = threading.Timer(0.3, lambda: control.resume(control.epoch))
    timer.start()
    assert works(), "it was let go and ran"
    timer.join()


@scenario
def a_step_that_is_given_up_ends_everywhere() -> None:
    class Drain(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            control.drain(control.epoch + 1)
            output = torch.full((2 * SIZE,), float("nan"))
            work = dist.all_gather_into_tensor(output, torch.ones(2), async_op=True)
            assert work.wait() and torch.equal(output, torch.zeros(2 * SIZE))
            return gradient

    weight = torch.ones(3, requires_grad=True)
    dist.barrier()
    Drain.apply(weight).sum().backward()
    calls: list[Callable[[], Any]] = [
        lambda: dist.all_reduce(torch.ones(3)),
        dist.barrier,
        lambda: dist.recv(torch.ones(3)),
    ]
    for call in calls:
        assert type(raised(call)) is StepAbandoned
    assert heal() == guard.groups()


@scenario
def what_the_inner_group_refuses_is_announced_and_held() -> None:
    control.attached = True
    ready = select.poll()
    ready.register(control.event_fd, select.POLLIN)
    cut_wires()
    ends: list[BaseException] = []

    def message() -> None:
        while True:  # a connection that is just closing may still take a message
            dist.isend(torch.ones(200_000), 1 - RANK).wait()

    thread = threading.Thread(target=lambda: ends.append(raised(message)))
    thread.start()
    if ready.poll(PATIENCE_S * 100):  # expires: some broken operations of gloo never end, unreported
        (event, *_) = control.take_events()
        assert event[:2] == ("0@0-1", "send") and guard.classify(*event[:1], event[3]) is Fault.PEER_GONE, event
        thread.join(0.3)  # expires: the error is held
        assert thread.is_alive() and not world().handing_over, "it was not held"
    heal()
    thread.join(PATIENCE_S)
    assert type(ends[0]) is StepAbandoned or isinstance(ends[0], RuntimeError), ends
    control.attached = False


@scenario
def groups_are_asked_how_they_are() -> None:
    assert guard.on_devices() and guard.probe() == []
    FakeNccl.made[-1].error = "REMOTE_ERROR"
    assert guard.probe() == [("0@0-1", Fault.PEER_GONE)]


@scenario
def all_groups_are_aborted_together_and_made_anew() -> None:
    options = FakeNccl.Options()
    options.config = "chosen"
    pair = dist.new_group([0, 1], timeout=PATIENCE, pg_options=options)
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=pair)
    FakeNccl.calls.clear()
    made = len(FakeNccl.made)
    assert heal() == ["0@0-1", guard.groups()[-1]]
    assert FakeNccl.calls == ["abort", "abort"], "once for the epoch, though it was asked for twice"
    anew = [(one.given._timeout, one.given.config) for one in FakeNccl.made[made:]]
    assert anew == [(PATIENCE, "default"), (PATIENCE, "chosen")], anew
    assert guard.probe() == [], "what ailed is gone"
    dist.all_reduce(tensor, group=pair)
    assert int(tensor[0]) == SIZE * SIZE
    dist.destroy_process_group(pair)
    assert guard.groups() == ["0@0-1"]


@scenario
def a_step_waits_for_its_device_before_it_counts() -> None:
    """Only if something was communicated since: nothing else can be given up half done."""
    waits: list[int] = []
    real = torch.accelerator.is_available, torch.accelerator.synchronize
    torch.accelerator.is_available, torch.accelerator.synchronize = lambda: True, lambda: waits.append(1)
    try:
        together = LaunchedTogether(RANK)
        together.settle()
        before = len(waits)
        together.settle()
        assert len(waits) == before, "nothing was communicated"
        assert works()
        together.settle()
        assert len(waits) == before + 1
    finally:
        torch.accelerator.is_available, torch.accelerator.synchronize = real


@scenario
def a_job_with_nccl_alone_has_a_group_of_the_cpu_beside_it() -> None:
    """taskd's own messages go there. The script sees one group, and no backend for the CPU."""
    dist.destroy_process_group()
    begin_world(f"cuda:{HOW}", "alone")
    try:
        assert c10d._world.group_count == 1 and dist.get_backend() == f"cuda:{HOW}"
        assert "No backend type associated with device type cpu" in str(raised(lambda: dist.all_reduce(torch.ones(1))))
        for epoch in (control.epoch, control.epoch + 1):
            if epoch > control.epoch:
                control.drain(epoch)
                made = guard.rebuild(epoch, dist.PrefixStore("alone", meet), within=PATIENCE)
                assert made == guard.groups() and len(made) == 2
                control.resume(epoch)
            ours.meet()
            assert everyone(f"rank {RANK}".encode()) == [b"rank 0", b"rank 1"]
            box = torch.zeros(3)
            for work in (ours.send(torch.full((3,), RANK + 1.0), 1 - RANK, 7), ours.receive(box, 1 - RANK, 7)):
                work.wait()
            assert box.tolist() == [2.0 - RANK] * 3
            meet.set(f"alone{epoch}-{RANK}", "")  # neither begins the next epoch while the other waits
            meet.wait([f"alone{epoch}-{rank}" for rank in range(SIZE)], PATIENCE)
    finally:
        dist.destroy_process_group()
    assert guard.groups() == [], "it goes with the script's own"
    begin_world(f"cpu:{HOW}", "again")


@scenario
def a_mesh_splits_the_world_into_guards() -> None:
    """torch does so if the world is bound to a device. Here the CPU plays this device."""
    accelerator, options = torch.accelerator, dist.ProcessGroupGloo._Options()
    kept = accelerator.is_available, accelerator.current_accelerator
    accelerator.is_available, accelerator.current_accelerator = lambda: True, lambda *_: torch.device("cpu")
    dist.group.WORLD.bound_device_id = torch.device("cpu", 0)
    try:
        mesh = init_device_mesh(
            "cpu", (SIZE, 1), mesh_dim_names=("rows", "columns"), backend_override={"columns": options}
        )
        pair = dist.split_group(split_ranks=[[0, 1]], pg_options=options, timeout=PATIENCE)
        nobody = dist.split_group(split_ranks=[[1]], pg_options=options, timeout=PATIENCE)
    finally:
        accelerator.is_available, accelerator.current_accelerator = kept
    alone = mesh.get_group("columns")
    backends = [one._get_backend(torch.device("cpu")) for one in (alone, pair)]
    assert all(type(one) is _c10d.Guard and type(one.inner) is FakeNccl for one in backends), backends
    assert [one.members for one in backends] == [[RANK], [0, 1]] and (nobody is None) == (RANK == 0)
    for _ in range(2):
        for group, size in ((alone, 1), (pair, 2), (mesh.get_group("rows"), 2)):
            tensor = torch.ones(3)
            dist.all_reduce(tensor, group=group)
            assert int(tensor[0]) == size
        heal()
    for group in (alone, pair, *(one for one in (nobody,) if one is not None)):
        dist.destroy_process_group(group)
    dist.group.WORLD.bound_device_id = None


@scenario
def new_groups_are_not_split_off_a_bound_world() -> None:
    """torch would give the guard to NCCL for members, and call the library on ranks outside of the group. Here the CPU
    plays the device of the world, which torch would not take for the device of a new group."""
    helper = c10d._new_process_group_helper
    c10d._new_process_group_helper = lambda *given, device_id, **more: helper(*given, **more)
    dist.group.WORLD.bound_device_id = torch.device("cpu", 0)
    try:
        alone, both = (dist.new_group(ranks, timeout=PATIENCE) for ranks in ([0], [0, 1]))
    finally:
        c10d._new_process_group_helper = helper
        dist.group.WORLD.bound_device_id = None
    assert (alone == dist.GroupMember.NON_GROUP_MEMBER) == (RANK != 0)
    for group, size in ((alone, 1), (both, SIZE)):
        if group == dist.GroupMember.NON_GROUP_MEMBER:
            continue
        inner = group._get_backend(torch.device("cpu")).inner
        assert type(inner) is FakeNccl and getattr(inner.given, "split_from", None) is None
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=group)
        assert int(tensor[0]) == size
        dist.destroy_process_group(group)


@scenario
def what_torch_asks_of_a_backend_is_asked_of_each_inner_group() -> None:
    backend = world()
    dist.group.WORLD._enable_collectives_timing()
    heal()
    assert backend.supports_splitting and not backend.supports_time_estimate and not backend.supports_shrinking
    assert "does not support" in str(raised(backend.memory_stats)) + str(raised(backend.suspend))


@scenario
def a_later_inner_group_has_the_name_of_its_guard() -> None:
    """torch tells the guard alone. The inner group has the name before its first operation."""
    inner = FakeNccl(dist.HashStore(), 0, 1, FakeNccl.Options())
    apart = _c10d.Guard(0, 1, None, [RANK], 8, timeout=PATIENCE, backend="nccl", stream_ordered=True)
    group, beside = (group_over(one) for one in (apart, inner))
    group._set_group_name("given")
    apart.reconfigure(control.epoch, inner)
    assert beside.group_name == "given"
    apart.shutdown()


@scenario
def only_what_an_inner_group_accepts_is_asked_of_the_next() -> None:
    group: Any = dist.group.WORLD
    assert "onCompletion hook" in str(raised(lambda: group._register_on_completion_hook(print)))
    assert not group._has_hooks()
    heal()


@scenario
def a_hook_goes_to_the_inner_group_that_comes_later() -> None:
    """It is a Python function, and the inner group is taken over without the GIL."""
    told: list[Any] = []
    apart = _c10d.Guard(0, 1, None, [RANK], 9, timeout=PATIENCE, backend="nccl", stream_ordered=True)
    group = group_over(apart)
    group._register_on_completion_hook(told.append)
    assert group._has_hooks() and "already" in str(raised(lambda: group._register_on_completion_hook(told.append)))
    inner = FakeNccl(dist.HashStore(), 0, 1, FakeNccl.Options())
    assert "onCompletion hook" in str(raised(lambda: apart.reconfigure(control.epoch, inner))), "gloo has no hooks"
    assert not apart.joined and told == []
    apart.shutdown()


@scenario
def a_set_up_is_recorded_and_played_back() -> None:
    record = os.memfd_create("record")
    control.start_record(record)
    first, objects = torch.full((4,), RANK + 1.0), [None, None]
    dist.all_reduce(first)
    dist.all_gather_object(objects, RANK)
    control.stop_record()
    dist.barrier()
    control.sandbox(record)
    again: Any = [None, None]
    second = torch.zeros(4)
    dist.all_reduce(second)
    dist.all_gather_object(again, RANK)
    assert torch.equal(second, first) and again == objects == [0, 1] and control.replay_left() == 0
    control.resume(control.epoch)
    assert works()


@scenario
def a_newcomers_group_has_the_options_it_was_made_with() -> None:
    """torch copies them when it splits the group, and a newcomer has no inner group yet."""
    record = os.memfd_create("record")
    control.start_record(record)
    control.stop_record()
    dist.barrier()
    options = FakeNccl.Options()
    options.config = "chosen"
    control.sandbox(record)
    pair: Any = dist.new_group([0, 1], timeout=PATIENCE, pg_options=options)
    backend = pair._get_backend(torch.device("cpu"))
    assert backend.inner is None and copy.deepcopy(backend.options).config == "chosen"
    control.resume(control.epoch)
    heal()
    dist.destroy_process_group(pair)


@scenario_of_hccl
def what_torch_npu_registers_is_guarded() -> None:
    backend = world()
    assert isinstance(backend, _c10d.Guard) and backend.backend == "hccl" and type(backend.inner) is FakeHccl
    given = backend.inner.given
    assert given.global_ranks_in_group == [] and given.group_id == dist.group.WORLD.group_name
    assert backend.resume_hccl_comm(3) == "resumed 3", "what torch_npu asks of its own backend reaches it"
    assert works() and guard.on_devices() and guard.probe() == []


@scenario_of_hccl
def the_same_groups_are_made_anew() -> None:
    pair = dist.new_group([0, 1])
    before = [backend.inner for backend in _c10d.live_guards()]
    FakeHccl.calls.clear()
    assert heal() == guard.groups() and len(before) == 2
    assert [backend.inner for backend in _c10d.live_guards()] == before, "HCCL brings the same ones back"
    assert FakeHccl.calls == [
        ("stop_device", 3),
        ("restart_device", 3),
        ("reinit_process_group", dist.group.WORLD, True),
        ("reinit_process_group", pair, True),
    ]
    assert world().sequence == 1 and control.epoch > 0
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=pair)
    assert int(tensor[0]) == SIZE
    dist.destroy_process_group(pair)


def begin() -> dict[str, Callable[[], None]]:
    if HOW == "hccl":
        sys.modules["torch_npu"] = FakeHccl.torch_npu()
        guard.install()

        def creator(options: Any, _: Any) -> Any:
            raise AssertionError("torch_npu's own creator makes groups that are not guarded")

        dist.Backend.register_backend("hccl", creator, extended_api=True, devices=["cpu"])  # after install()
        return of_hccl
    c10d._NCCL_AVAILABLE = True
    dist.ProcessGroupNCCL = c10d.ProcessGroupNCCL = FakeNccl  # type: ignore[misc]
    guard.install()
    return scenarios


def begin_world(backend: str, store: str) -> None:
    where = f"file://{FOLDER}/{store}"
    dist.init_process_group(backend, init_method=where, rank=RANK, world_size=SIZE, timeout=PATIENCE)


def main() -> None:
    global meet
    torch.set_num_threads(1)
    meet = dist.FileStore(str(FOLDER / "meeting"), SIZE)
    chosen = begin()
    begin_world(f"cpu:{HOW}", "store")
    for name in sys.argv[5:] or chosen:
        try:
            chosen[name]()
            assert works()
            outcome = "ok"
        except BaseException:
            outcome = traceback.format_exc()
        print(json.dumps({"scenario": name, "outcome": outcome}), flush=True)
        if outcome != "ok":
            os._exit(1)
    dist.destroy_process_group()
    FakeNccl.made.clear()
    FakeHccl.made.clear()


if __name__ == "__main__":
    main()
