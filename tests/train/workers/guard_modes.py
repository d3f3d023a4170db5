"""Two ranks go through every mode of their guards; each scenario leaves the groups healthy for the next.

Arguments: RANK SIZE FOLDER, then the scenarios to run (all if none is named). A line of JSON reports each.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from meeting import Meeting
from torch.nn.parallel import DistributedDataParallel

from taskd import _c10d
from taskd.comm import cpu, gloo, guard
from taskd.comm.sockets import tcp_sockets
from taskd.errors import StepAbandoned
from tests.patience import PATIENCE, PATIENCE_S

RANK, SIZE, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
INNER = os.environ["TASKD_INNER"]
control = _c10d.control
sockets: list[int] = []
scenarios: dict[str, Callable[[], None]] = {}


def scenario(body: Callable[[], None]) -> Callable[[], None]:
    scenarios[body.__name__] = body
    return body


meet: Any = None


def remember_sockets(original: Callable[..., Any]) -> Callable[..., Any]:
    def make_inner(*args: Any, **more: Any) -> Any:
        inner = original(*args, **more)
        sockets.extend(inner.sockets)
        return inner

    return make_inner


def wires() -> list[int]:
    """Return the sockets of the inner groups: those of gloo are remembered, and all other TCP connections are rails."""
    if INNER != "rail":
        return sockets
    listens = (socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    return [fd for fd, one in tcp_sockets() if not one.getsockopt(*listens)]


def cut_wires() -> None:
    """Cut every connection of the inner groups on both sides, before any rank uses them again."""
    assert wires(), "there is nothing to cut, and a scenario would wait for an error that never comes"
    meet()
    for fd in wires():
        # An error means: the other side was quicker, and gloo has closed the socket.
        with suppress(OSError), socket.socket(fileno=os.dup(fd)) as one:
            one.shutdown(socket.SHUT_RDWR)
    sockets.clear()
    meet()


def heal() -> None:
    """Do what a session does between two steps: make new inner groups under a new epoch, then resume."""
    epoch = control.epoch + 1
    meet()
    control.drain(epoch)
    sockets.clear()
    guard.rebuild(epoch, dist.PrefixStore("heal", meet.store), within=PATIENCE)
    control.take_events()
    control.resume(epoch)
    assert works()


def works() -> bool:
    tensor = torch.full((1000,), RANK + 1.0)
    dist.all_reduce(tensor)
    return torch.equal(tensor, torch.full((1000,), 3.0))


def raised(call: Callable[[], Any]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def later(delay_s: float, call: Callable[[], Any]) -> threading.Thread:
    def run() -> None:
        time.sleep(delay_s)  # lasts: the test is about this moment
        call()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@scenario
def unattached_errors_are_raised_at_once() -> None:
    cut_wires()
    error = raised(lambda: dist.all_reduce(torch.ones(3)))
    assert isinstance(error, RuntimeError), error
    assert cpu.classify(error) is cpu.Fault.PEER_GONE, error
    (event,) = control.take_events()
    assert event[:2] == ("0@0-1", "allreduce") and cpu.classify(event[3]) is cpu.Fault.PEER_GONE, event
    heal()


@scenario
def attached_errors_are_held_and_announced() -> None:
    control.attached = True
    ready = select.poll()
    ready.register(control.event_fd, select.POLLIN)
    cut_wires()
    tensor = torch.full((3,), 5.0)
    work = dist.all_reduce(tensor, async_op=True)
    assert ready.poll(PATIENCE_S * 1000), "no event"
    (event,) = control.take_events()
    backend: Any = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert event[:3] == ("0@0-1", "allreduce", backend.sequence) and event[4] == control.epoch, event
    assert cpu.classify(event[3]) is cpu.Fault.PEER_GONE, event
    assert not ready.poll(0) and not control.take_events()
    time.sleep(0.2)  # lasts: enough time for a wrong end to show
    assert not work.is_completed(), "it was not held"
    thread = later(0.1, lambda: control.drain(control.epoch + 1))
    error = raised(work.wait)
    thread.join()
    assert type(error) is StepAbandoned, error
    assert work.is_completed() and not work.is_success() and work.get_future().done()
    assert torch.equal(tensor, torch.full((3,), 5.0))
    heal()
    error = raised(work.wait)  # it stays given up
    assert type(error) is StepAbandoned, error
    control.attached = False


@scenario
def a_held_operation_has_the_users_timeout() -> None:
    control.attached = True
    group = dist.new_group([0, 1], timeout=PATIENCE)
    group._get_backend(torch.device("cpu"))._set_default_timeout(timedelta(milliseconds=1200))  # its ranks have met
    cut_wires()
    begun = time.monotonic()
    error = raised(lambda: dist.all_reduce(torch.ones(3), group=group))
    took = time.monotonic() - begun
    assert isinstance(error, dist.DistBackendError) and took > 1.0, (error, took)
    for word in ("allreduce #1", guard.groups()[-1], "taskd has made no repair for it"):
        assert word in str(error), error
    control.attached = False
    heal()
    dist.destroy_process_group(group)


@scenario
def letting_go_without_a_repair_or_an_order_to_end_fails_what_was_held() -> None:
    control.attached = True
    for order in (lambda: control.resume(control.epoch), lambda: control.abort("the operator ends this job")):
        cut_wires()
        work = dist.all_reduce(torch.ones(3), async_op=True)
        behind = dist.all_reduce(torch.ones(3), async_op=True)
        thread = later(0.3, order)
        error = raised(work.wait)
        thread.join()
        assert isinstance(error, dist.DistBackendError) and "allreduce #" in str(error), error
        control.abort("the operator ends this job")
        if INNER == "gloo":  # with rails, it was under way, too, and fails like the first one
            assert "the operator ends this job" in str(raised(behind.wait))
        else:
            assert "allreduce #" in str(raised(behind.wait))
        assert "the operator ends this job" in str(raised(lambda: dist.barrier()))
        heal()
    control.attached = False


@scenario
def a_listener_that_goes_lets_the_error_out() -> None:
    control.attached = True
    cut_wires()
    work = dist.all_reduce(torch.ones(3), async_op=True)
    thread = later(0.2, lambda: setattr(control, "attached", False))
    error = raised(work.wait)
    thread.join()
    assert isinstance(error, RuntimeError), error
    heal()


@scenario
def parked_operations_wait_and_signals_are_served() -> None:
    meet()
    control.park(control.epoch)
    tensor = torch.ones(4)
    work = dist.all_reduce(tensor, async_op=True)
    for wait in (work.wait, dist.barrier, control.wait_until_running):
        thread = later(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
        error = raised(wait)
        thread.join()
        assert isinstance(error, KeyboardInterrupt), error
    assert not work.is_completed() and torch.equal(tensor, torch.ones(4))
    meet()
    control.resume(control.epoch)
    work.wait()
    assert torch.equal(tensor, torch.full((4,), 2.0))
    assert works()


@scenario
def a_parked_guard_keeps_its_inner_group_while_operations_are_under_way() -> None:
    """One rank may have ended an operation and the other not. On a new inner group the other would wait for ever."""
    backend: Any = dist.group.WORLD._get_backend(torch.device("cpu"))
    meet()
    work = dist.all_reduce(torch.ones(2), async_op=True) if RANK == 0 else None
    control.park(control.epoch + 1)
    late = dist.all_reduce(torch.ones(2), async_op=True) if RANK == 1 else None
    if RANK == 0:
        error = raised(lambda: backend.reconfigure(control.epoch, None))
        assert isinstance(error, ValueError) and "drain before" in str(error), error
    meet()
    control.resume(control.epoch)
    for one in filter(None, (work, late)):
        one.wait()
    assert works()


@scenario
def operations_called_while_parked_begin_on_a_new_inner_group() -> None:
    meet()
    epoch = control.epoch + 1
    control.park(epoch)
    tensors = [torch.full((2000,), float(i)) for i in range(3)]
    box = torch.zeros(5)
    pending = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    pending += [dist.isend(torch.full((5,), RANK + 7.0), 1 - RANK), dist.irecv(box, 1 - RANK)]
    sockets.clear()
    guard.rebuild(epoch, dist.PrefixStore("parked", meet.store), within=PATIENCE)
    control.resume(epoch)
    for work in pending:
        work.wait()
    assert [int(tensor[-1]) for tensor in tensors] == [0, 2, 4] and int(box[0]) == 8 - RANK


@scenario
def a_drain_ends_everything_and_says_so_everywhere() -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    model = DistributedDataParallel(layers)
    model(torch.randn(4, 8)).sum().backward()
    sharded = fully_sharded()
    meet()
    if RANK == 0:  # rank 1 does not come: these cannot complete
        tensors = [torch.full((100_000,), 3.0) for _ in range(4)]
        pending = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        outputs = torch.full((8,), float("nan"))
        pending.append(dist.all_gather_into_tensor(outputs, torch.ones(4), async_op=True))
        empty = torch.full((3,), float("nan"))
        pending.append(dist.irecv(empty, 1))
        thread = later(0.1, lambda: control.drain(control.epoch + 1))
        for work in pending:
            assert type(raised(work.wait)) is StepAbandoned
        thread.join()
        assert all(torch.equal(tensor, torch.full((100_000,), 3.0)) for tensor in tensors)
        assert torch.equal(outputs, torch.zeros(8)) and torch.equal(empty, torch.zeros(3))
    else:
        control.drain(control.epoch + 1)
    peer = 1 - RANK
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(torch.ones(3)),
        "async": lambda: dist.all_reduce(torch.ones(3), async_op=True),
        "barrier": lambda: dist.barrier(),
        "monitored_barrier": lambda: dist.monitored_barrier(),
        "all_gather_object": lambda: dist.all_gather_object([None, None], RANK),
        "broadcast_object_list": lambda: dist.broadcast_object_list([1], 0),
        "send": lambda: dist.send(torch.ones(3), peer),
        "recv": lambda: dist.recv(torch.ones(3)),
        "new_group": lambda: dist.new_group([0, 1]),
        "functional": lambda: functional.wait_tensor(functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)),
        "ddp forward": lambda: model(torch.randn(4, 8)),
        "fsdp forward": lambda: sharded(torch.randn(4, 8)),
        "wait_until_running": control.wait_until_running,
    }
    for name, call in calls.items():
        error = raised(call)
        assert type(error) is StepAbandoned, (name, error)
    heal()
    model(torch.randn(4, 8)).sum().backward()


def fully_sharded() -> torch.nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    mesh = init_device_mesh("cpu", (SIZE,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


class DrainInBackward(torch.autograd.Function):
    """Gives the step up in the middle of the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        control.drain(control.epoch + 1)
        output = torch.full((2 * SIZE,), float("nan"))
        dist.all_gather_into_tensor(output, torch.ones(2))
        assert torch.equal(output, torch.zeros(2 * SIZE))
        everybody = [1, 2]
        dist.all_gather_object(everybody, RANK)
        assert everybody == [None, None], everybody
        dist.barrier()
        return gradient


@scenario
def a_backward_pass_runs_to_its_end() -> None:
    for kind in ("ddp", "ddp with unused parameters", "fsdp"):
        first, last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        if kind == "fsdp":
            model = fully_sharded()
            loss = model(DrainInBackward.apply(model(torch.randn(4, 8)))).sum()
        else:

            class Model(torch.nn.Module):
                def __init__(self, first: torch.nn.Module, last: torch.nn.Module) -> None:
                    super().__init__()
                    self.first, self.last = first, last

                def forward(self, x: torch.Tensor) -> torch.Tensor:
                    return self.last(DrainInBackward.apply(self.first(x)))

            model = DistributedDataParallel(
                Model(first, last), find_unused_parameters="unused" in kind, bucket_cap_mb=0.0001
            )
            loss = model(torch.randn(4, 8)).sum()
        loss.backward()
        assert control.mode == _c10d.Mode.DRAINING
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        local = [getattr(gradient, "_local_tensor", gradient) for gradient in gradients]
        assert local and all(torch.isfinite(gradient).all() for gradient in local), kind
        assert type(raised(lambda: dist.barrier())) is StepAbandoned
        heal()
        meet()


@scenario
def a_guard_is_reconfigured_only_when_that_is_safe() -> None:
    backend: Any = dist.group.WORLD._get_backend(torch.device("cpu"))
    meet()
    if RANK == 0:
        work = dist.all_reduce(torch.ones(2), async_op=True)
        error = raised(lambda: backend.reconfigure(control.epoch, None))
        assert isinstance(error, ValueError) and "drain before" in str(error), error
    meet()
    if RANK == 1:
        work = dist.all_reduce(torch.ones(2), async_op=True)
    work.wait()
    for stale in (control.drain, control.park, control.resume, lambda epoch: backend.reconfigure(epoch, None)):
        error = raised(lambda stale=stale: stale(control.epoch - 1))
        assert isinstance(error, ValueError) and "cannot go back" in str(error), error
    before = backend._get_sequence_number_for_group()
    heal()
    assert backend.sequence == 1 and backend.joined
    number = backend._get_sequence_number_for_group()
    everywhere: list[int | None] = [None] * SIZE
    dist.all_gather_object(everywhere, number)
    assert number > before and everywhere == [number] * SIZE, (before, everywhere)


def main() -> None:
    global meet
    torch.set_num_threads(1)
    meet = Meeting(FOLDER, SIZE)
    gloo.make_inner = remember_sockets(gloo.make_inner)
    guard.install(hostname="127.0.0.1")
    meet()  # on a busy machine, one rank may start later than the groups' timeout allows
    dist.init_process_group("gloo", init_method=f"file://{FOLDER}/store", rank=RANK, world_size=SIZE, timeout=PATIENCE)
    for name in sys.argv[4:] or scenarios:
        try:
            scenarios[name]()
            outcome = "ok"
        except BaseException:
            outcome = traceback.format_exc()
        print(json.dumps({"scenario": name, "outcome": outcome}), flush=True)
        if outcome != "ok":
            os._exit(1)
        meet()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
