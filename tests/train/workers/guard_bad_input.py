"""Two ranks make wrong calls: each call gets an error with a clear sentence, and the groups go on as they were.

Arguments: RANK SIZE FOLDER HOW. HOW is "groups" (every case in turn) or "rails" (each rank has other names for its
rails). For "groups", TASKD_INNER chooses the backend. Prints the error texts as one line of JSON. What must hold is
asserted here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import taskd
from taskd import _c10d, config
from taskd.comm import adapter, cpu, cpu_settings, guard
from tests.patience import PATIENCE

RANK, SIZE, FOLDER, HOW = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
SOON = timedelta(seconds=3)
control = _c10d.control


def said(kind: type[BaseException], call: Callable[[], Any]) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} was raised")


def works() -> bool:
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    return int(tensor[0]) == SIZE


class Meeting:
    """A file store where both ranks wait for each other without their groups, and where the groups are rebuilt."""

    def __init__(self) -> None:
        self.store = dist.FileStore(str(FOLDER / "meeting"), SIZE)
        self.turn = 0

    def __call__(self) -> None:
        self.turn += 1
        self.store.set(f"{self.turn}/{RANK}", b"")
        self.store.wait([f"{self.turn}/{rank}" for rank in range(SIZE)], PATIENCE)


def rebuild(meet: Meeting, within: timedelta = PATIENCE) -> list[str]:
    return guard.rebuild(control.epoch, dist.PrefixStore("heal", meet.store), within=within)


def throwing_constructor(meet: Meeting) -> str:
    """Rebuild with an interface that does not exist on one rank. The other rank is told at once. Returns the error."""
    cpu_settings.meet_at(None if RANK else "127.0.0.1", "nowhere0" if RANK else None)
    control.drain(control.epoch + 1)
    words = said(taskd.errors.TaskdError, lambda: rebuild(meet))
    cpu_settings.meet_at("127.0.0.1", None)
    return words


def go_on(meet: Meeting) -> bool:
    """Do what the manager does after a failed stage: begin the next epoch. Returns whether the groups work."""
    meet()
    before = guard.groups()
    control.drain(control.epoch + 1)
    same = rebuild(meet) == before
    control.resume(control.epoch)
    return same and works()


def groups() -> None:
    guard.install(hostname="127.0.0.1")
    where = f"file://{FOLDER}/store"
    dist.init_process_group("gloo", init_method=where, rank=RANK, world_size=SIZE, timeout=PATIENCE)
    meet, found = Meeting(), {}
    found["unknown backend"] = said(taskd.UsageError, lambda: adapter.of("quux"))
    found["unknown inner"] = said(taskd.UsageError, lambda: config.load(worker_inner="quux"))
    found["unknown backend of torch"] = said(AssertionError, lambda: dist.new_group([0, 1], backend="quux"))
    assert works()
    meet()
    found["constructor"] = throwing_constructor(meet)
    assert go_on(meet)
    meet()
    control.drain(control.epoch + 1)
    if RANK == 0:
        found["never"] = said(taskd.BackendError, lambda: rebuild(meet, SOON))
    assert go_on(meet)
    meet()
    control.drain(control.epoch + 1)
    rebuild(meet)
    found["twice"] = said(ValueError, lambda: rebuild(meet))
    control.resume(control.epoch)
    assert works()
    past = control.epoch - 1
    orders: list[Callable[[], Any]] = [
        lambda: control.drain(past),
        lambda: control.park(past),
        lambda: control.resume(past),
        lambda: guard.rebuild(past, meet.store),
    ]
    found["back"] = " ".join(said(ValueError, order) for order in orders)
    backend: Any = dist.group.WORLD._get_backend(torch.device("cpu"))
    found["two guards"] = said(ValueError, lambda: _c10d.Guard(RANK, SIZE, backend, [0, 1], 7))
    found["adopted twice"] = str(guard.adopt())
    found["rail"] = cpu.switch_rail("a", False).words
    assert works() and guard.groups() == ["0@0-1"]
    print(json.dumps(found), flush=True)
    dist.destroy_process_group()


def rails() -> None:
    names = ("x", "y") if RANK else ("a", "b")
    said_so = ",".join(f"{name}=127.0.0.{number}" for number, name in enumerate(names, 1))
    cpu_settings.configure(config.load(worker_inner="rail", rail_rails=said_so))
    guard.install()
    where = f"file://{FOLDER}/store"
    dist.init_process_group("gloo", init_method=where, rank=RANK, world_size=SIZE, timeout=PATIENCE)
    assert works() and cpu.rails() == names, "paired by their networks; each rank has its own names for them"
    found = {}
    for name in ("green", "a" if RANK else "x"):
        answer = cpu.switch_rail(name, False)
        found[name] = f"{answer.outcome.value}: {answer.words}"
    for in_use in (False, True):
        assert cpu.switch_rail(names[0], in_use).outcome is adapter.Switch.ASKED and works()
    print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"groups": groups, "rails": rails}[HOW]()
