"""The start of a worker, before the user's code runs. The worker was forked from the standby or started cold.

The process becomes what the launcher asked for (environment, streams, its own session, and it ends with the launcher).
It connects to the launcher's agent, makes every new process group guarded, and gives its repair to taskd.session(). A
newcomer gets the records of its life before and runs its set-up apart from the other ranks. Then the script runs as if
Python had been started with it.

If the guard does not fit the installed torch, or recovery is off, the script runs unguarded, and one log message says
so. It does NOT decide anything and returns when the script does.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # `-m` put this folder there; it is not the script's folder

import contextlib
import ctypes
import importlib
import json
import logging
import os
import random
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, Store

from taskd import _native, config, log
from taskd.backup import slots
from taskd.backup.copier import Copier
from taskd.core import limits
from taskd.core.messages import Covered, FromWorker, StageReached, ToSession
from taskd.core.types import Kept
from taskd.core.worker import Worker
from taskd.errors import PeerError
from taskd.state.ledger import Ledger
from taskd.state.record import Record
from taskd.state.shard_file import ShardFile
from taskd.wire import local
from taskd.worker import current, presence, reads, script
from taskd.worker.failures import Failures
from taskd.worker.finish import Finish
from taskd.worker.groups import Groups
from taskd.worker.heal import LaunchedRepair
from taskd.worker.identity import Identity
from taskd.worker.link import Link
from taskd.worker.orders import Orders
from taskd.worker.unled import Unled

AHEAD = ("taskd.worker.session", "taskd.state.restore", "taskd.comm.rail")
"""What a script's session imports. A newcomer is forked with it, and need not wait for it."""

try:
    from taskd import _c10d
    from taskd.comm import cpu_settings, forest, guard

    for _module in AHEAD:
        importlib.import_module(_module)
    _UNFIT = ""
except ImportError as error:
    _UNFIT = str(error)

REQUEST_BYTES_MAX = 1 << 22
_logger = log.get(__name__)


@dataclass(frozen=True)
class Request:  # large: one field for each value that the launcher sends
    """The launcher's request: one JSON object in a memory file."""

    environment: dict[str, str]
    kind: str
    target: str
    arguments: list[str]
    parent: int  # the launcher's process
    descriptors: dict[str, int]  # name -> index in the list of the descriptors that were sent along
    guarded: bool
    job: str
    node: str
    rank: int
    world_size: int
    local_rank: int
    incarnation: int
    epoch: int
    newcomer: bool
    run: str  # a name that is unique to this run of the job
    generation: int  # how often all ranks have been started together before
    copies: list[tuple[str, int]]  # host and port of the keepers of record copies; empty: records are not copied
    copies_key: str


def begin(descriptors: list[int], forked: bool = True) -> None:
    """Serve the request in the first descriptor: become a worker and run the script to its end."""
    request = _read(descriptors[0])
    _become(request, descriptors, forked)
    settings = config.load(job_id=request.job, job_node=request.node)
    log.configure()
    log.identify(f"rank {request.rank}")
    _attach(request, descriptors, settings)
    finish = Finish(request.rank)
    if request.guarded and not _UNFIT:
        finish.watch()
    try:
        script.run(request.kind, request.target, request.arguments)
    except SystemExit as end:
        there = presence.current()
        if not end.code:
            finish.script_is_through()
        else:
            finish.script_has_failed()
            if there is not None:
                there.failed(end.code)
        raise
    except BaseException:
        finish.script_has_failed()
        raise
    finish.script_is_through()


def _read(descriptor: int) -> Request:
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return Request(**json.loads(file.read(REQUEST_BYTES_MAX)))


# ---- becoming the process that was asked for ------------------------------------------------------------------


def _become(request: Request, descriptors: list[int], forked: bool) -> None:
    # SIGKILL: a signal handler of the user must not keep a worker alive that nobody watches any more.
    _native.set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != request.parent:
        os._exit(1)
    if os.getsid(0) != os.getpid():
        os.setsid()
    os.environ.clear()
    os.environ.update(request.environment)
    for name, target in (("stdout", 1), ("stderr", 2)):
        if name in request.descriptors:
            fd = descriptors[request.descriptors[name]]
            os.dup2(fd, target)
            os.close(fd)
    if forked:
        _be_fresh()
        flag = ["-m"] if request.kind == script.MODULE else []
        _show_as([sys.executable, "-u", *flag, request.target, *request.arguments])


def _be_fresh() -> None:
    """Seed anew what a new interpreter seeds: it must differ between the children of one standby.

    A new process' torch seeds its CPU generator from the system's randomness, too. The generators of accelerators begin
    with a fixed seed when they are first used, so they are left alone.
    """
    import multiprocessing.process

    random.seed()
    torch.default_generator.seed()
    multiprocessing.process.current_process().authkey = os.urandom(32)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _show_as(words: list[str]) -> None:
    """Let `ps` and `pkill -f` find the script: overwrite the standby's own arguments, as far as there is room."""
    with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5), which counts from 1
    data = b"\0".join(os.fsencode(word) for word in words)[: end - start - 1]
    if start:
        ctypes.memmove(start, data.ljust(end - start, b"\0"), end - start)


# ---- joining the job ------------------------------------------------------------------------------------------


def _attach(request: Request, descriptors: list[int], settings: config.Config) -> None:
    """Set up link, guard and repair, in this order: each needs the one before."""
    identity = Identity(
        request.job, request.node, request.rank, request.world_size, request.local_rank, request.incarnation
    )
    guarded = request.guarded and not _UNFIT
    if request.guarded and _UNFIT:
        log.once(_logger, logging.WARNING, "unfit", "this job runs unguarded, no rank can be replaced: %s", _UNFIT)
    if not guarded:
        there = presence.Presence(settings, identity, newcomer=request.newcomer, launched=True)
        there.link.introduction.epoch = request.epoch
        presence.establish(there)
        there.start()
        return
    record, setup, shards = _records(request, descriptors)
    bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    files = (record.descriptor, setup, shards.descriptor, bell)
    there = presence.Presence(settings, identity, newcomer=request.newcomer, records=files, launched=True)
    core = Worker(request.rank, request.incarnation, request.epoch, request.newcomer)
    line = _Line(there.link, core)
    inherited = record if request.newcomer else None
    orders = Orders(core, _c10d.control, line.say)
    orders.hold.unread = there.link.channel.unread
    orders.hold.unattended = lambda: there.link.connector.unattended
    groups = Groups(orders, _c10d.control, _rebuild(request))
    repair = LaunchedRepair(orders, groups, _c10d.control, line.say, record, inherited)
    repair.shards = shards if settings.recover.keep_shards != "never" else None
    repair.keeps_always = settings.recover.keep_shards == "always"
    repair.never_retry = settings.recover.meant
    repair.losses_may_differ = settings.recover.another_loss == "say"
    there.link.on_message = line.to(orders)
    _copy(request, record, bell)
    cpu_settings.configure(settings, ran_before=request.incarnation > 1)
    guard.install()
    _offer_store(request)
    _c10d.control.attached = True
    _c10d.control.attach_page(there.link.page.fd)
    if request.newcomer:
        _c10d.control.sandbox(setup)
    else:
        _c10d.control.start_record(setup)
        Unled(_c10d.control, orders).watch()
    current.establish(repair)
    _note_reads(repair)
    presence.establish(there)
    there.start()
    failures = Failures(orders, _c10d.control, line.say, settings.recover.unrepaired_ms / 1000)
    threading.Thread(target=failures.watch, name="taskd-failures", daemon=True).start()


def _records(request: Request, descriptors: list[int]) -> tuple[Record, int, ShardFile]:
    """Return this rank's local record, the record of its set-up and the file for its shards: new ones, or those of the
    life before.

    A newcomer continues the old ones. If it dies before it has trained, they must still hold what its life before has
    left. Shards have no copy on another node, so one that comes from there begins a new file for them.
    """
    named = request.descriptors
    if not request.newcomer:
        return Record.create(), os.memfd_create("taskd-setup", os.MFD_CLOEXEC), ShardFile.create()
    if "record" not in named or "setup" not in named:
        raise PeerError(f"rank {request.rank} cannot be replaced: the records of its life before are lost")
    shards = ShardFile(descriptors[named["shards"]]) if "shards" in named else ShardFile.create()
    return Record(descriptors[named["record"]]), descriptors[named["setup"]], shards


def _note_reads(repair: LaunchedRepair) -> None:
    """Note which files a newcomer's set-up reads that its life before cannot have read."""
    if (found := repair.ledger()) is not None:
        ledger = Ledger(repair.record_ledger)
        with contextlib.suppress(PeerError):  # the session says it
            ledger.adopt(found)
            if ledger.set_up.over:
                reads.watch(ledger.set_up.over, ledger.set_up.made)


def _copy(request: Request, record: Record, bell: int) -> None:
    """Protect the records against the loss of this node: send copies of each. Tell the agent about the first one."""
    if not request.copies:
        return
    places = [(host, port) for host, port in request.copies]
    lineage = slots.lineage(record.descriptor)
    copier = Copier(places, bytes.fromhex(request.copies_key), request.rank, request.incarnation, lineage)
    rung = False

    def copy(slot: int, step: int, data: bytes) -> None:
        nonlocal rung
        copier.send(slot, step, data)
        if not rung and slot < slots.STEP_SLOTS:  # a step begins, so the record of the set-up is whole
            rung = True
            os.eventfd_write(bell, 1)

    record.on_write = copy
    copier.start()


class _Line:
    """Connects the link and the orders. The next hello must not contradict what was said before."""

    def __init__(self, link: Link, core: Worker) -> None:
        self._channel, self._introduction, self._core = link.channel, link.introduction, core
        self._introduction.reached(core.epoch, core.stage)

    def say(self, message: FromWorker) -> bool:
        if isinstance(message, StageReached):
            part = message.part or self._introduction.part
            kept = Kept(message.kept_from, message.kept_to)
            self._introduction.reached(message.epoch, message.stage, message.updates, part, kept)
        elif isinstance(message, Covered):
            self._introduction.cover, self._introduction.saves = message.cover, message.saves
            self._introduction.part = message.part
        return self._channel.say(message)

    def to(self, orders: Orders) -> Any:
        def hear(message: ToSession) -> None:
            orders.take(message)  # type: ignore[arg-type]
            self._introduction.epoch = self._core.epoch

        return hear


# ---- the store in which groups meet ---------------------------------------------------------------------------


def job_store(request: Request, part: str, timeout: timedelta) -> Store:
    """Open a new connection to one part of the store. The store outlives every worker, and even the run itself if the
    manager lives on."""
    store = _c10d.AgentStore(local.store_address(request.job, request.node).encode(), timeout)
    return PrefixStore(f"{request.run}/{part}", store)


def _offer_store(request: Request) -> None:
    """Let `init_process_group` by environment use the job's store."""
    # torch.distributed has a function of this name, too.
    rendezvous: Any = importlib.import_module("torch.distributed.rendezvous")
    original = rendezvous._create_c10d_store

    def create(
        hostname: str, port: int, rank: int, world_size: int, timeout: timedelta, use_libuv: bool = True
    ) -> Store:
        if (hostname, str(port)) == (os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")):
            # A generation does not see what earlier generations have left.
            return job_store(request, f"generation{request.generation}", timeout)
        return original(hostname, port, rank, world_size, timeout, use_libuv)

    rendezvous._create_c10d_store = create


def _rebuild(request: Request) -> Callable[[int], None]:
    """Return the function that makes the groups of an epoch. Each attempt opens its own connection: an abandoned
    attempt may still wait on the previous one."""
    within = timedelta(microseconds=limits.DEADLINE_REBUILD_NS // 1000)

    def rebuild(epoch: int) -> None:
        store = job_store(request, "repair", within)
        forest.agree(store, epoch, request.rank, request.world_size, within)
        guard.rebuild(epoch, store, within=within)

    return rebuild


def main(arguments: list[str]) -> None:
    """`python -m taskd.worker.boot FD,FD...`: the cold start, in an interpreter of its own."""
    begin([int(number) for number in arguments[0].split(",")], forked=False)


if __name__ == "__main__":
    main(sys.argv[1:])
