"""Puts a guard around every group of this process and replaces the inner group behind it.

install() is called first, before user code. From then on, init_process_group, new_group and a DeviceMesh make guards
around inner groups (stand_in.py). get_backend() still returns the user's name. adopt() guards gloo groups that exist
already. rebuild() gives every living guard a new inner group under a new epoch. The adapter of an inner group
(adapter.py) makes it, ends it, asks for its state and sorts its errors, whatever device it serves.

Nothing here decides that an epoch has come, restores state or talks to an agent.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from taskd import _c10d
from taskd.comm import adapter, aside, cpu_settings, stand_in
from taskd.comm.adapter import Fault
from taskd.errors import BackendError, UsageError


class _Place:
    """Where the guards of this process meet, and how many groups each set of ranks has had."""

    def __init__(self, kin: str = "") -> None:
        self.lock = threading.Lock()
        self.kin = kin  # in a forked child: what tells its meetings from its parent's, should they share a store
        self.installed = False
        self.base: Any = None  # the store under which new inner groups meet
        self.counts: dict[tuple[int, ...], int] = {}
        self.options: dict[str, Any] = {}  # torch's options of each group on a device, by its identity
        self.prepared: set[str] = set()  # backends whose settings are in the environment
        self.training = False  # the set-up is over
        self.late: dict[str, tuple[int, ...]] = {}  # groups made since then, or in a rehearsal: members, by identity
        self.ahead: list[_c10d.Guard] = []  # guards made before the script asks for them
        self.fleeting: set[tuple[int, ...]] = set()  # members of groups that come and go while the job trains
        self.rebuilt = -1  # the last epoch for which a rebuild was begun
        self.ending = threading.Lock()  # inner groups are ended by one thread at a time
        self.ended: dict[str, int] = {}  # by backend: the last epoch for which its inner groups were ended

    def next_ordinal(self, members: Sequence[int]) -> int:
        with self.lock:
            ordinal = self.counts.get(tuple(members), 0)
            self.counts[tuple(members)] = ordinal + 1
            return ordinal

    def take_ahead(self, backend: str, members: Sequence[int]) -> _c10d.Guard | None:
        """Return the guard that was made ahead for the group that the script makes now."""
        if tuple(members) not in self.fleeting:
            for at, guard in enumerate(self.ahead):
                if (guard.backend, guard.members) == (backend, list(members)):
                    return self.ahead.pop(at)
        return None

    def note(self, identity: str, members: Sequence[int]) -> None:
        """Note that the script makes this group."""
        if self.training or _c10d.control.rehearsing:
            self.late[identity] = tuple(members)


_place = _Place()


def _after_fork() -> None:
    """Begin anew in a forked child: the groups that it has inherited are its parent's."""
    global _place
    parents = _place
    if parents.installed:
        _place = _Place(f"forked/{parents.kin}")
        _place.installed, _place.prepared = True, set(parents.prepared)


os.register_at_fork(after_in_child=_after_fork)


def _meeting(epoch: int, identity: str, store: Any) -> Any:
    return dist.PrefixStore(f"{_place.kin}epoch{epoch}/{identity}", store)


def _make_guard(backend: str, store: Any, rank: int, size: int, timeout: timedelta, options: Any) -> _c10d.Guard:
    """A guard for the group that torch is making, joined to its peers unless this process is in a sandbox."""
    transport = adapter.of(backend)
    if _place.base is None:
        _place.base = store
    _prepare(backend)
    _c10d.control.wait_until_running()
    members = stand_in.members.get() or list(range(size))
    if (ahead := _place.take_ahead(backend, members)) is not None:
        _place.note(ahead.identity, members)
        return ahead
    ordinal = _place.next_ordinal(members)
    epoch, identity = _c10d.control.epoch, _c10d.identity_of(members, ordinal)
    _place.note(identity, members)
    if transport.STREAM_ORDERED:
        living = {guard.identity for guard in _c10d.live_guards()}
        _place.options = {name: kept for name, kept in _place.options.items() if name in living} | {identity: options}
    inner = adapter.InnerGroup(None)
    if _c10d.control.mode != _c10d.Mode.SANDBOX:
        meeting = _meeting(epoch, identity, _place.base)
        inner = aside.do(
            lambda: transport.make_inner(
                meeting, rank, size, timeout, epoch=epoch, identity=identity, members=members, options=options
            ),
            lambda: _c10d.control.mode == _c10d.Mode.DRAINING,
            f"group {identity} belongs to a step that is given up",
        )
    return _c10d.Guard(
        rank,
        size,
        inner.backend,
        members,
        ordinal,
        timeout=timeout,
        sockets=inner.sockets,
        backend=backend,
        stream_ordered=transport.STREAM_ORDERED,
    )


def split(parent: _c10d.Guard, store: Any, ranks: list[int], options: Any) -> _c10d.Guard | None:
    """Make the guard of a group that torch splits off another one, on all ranks of the latter.

    `ranks` are those of the new group, as the old group numbers them. Returns None on any other rank.
    """
    if parent.rank() not in ranks:
        return None
    token = stand_in.members.set([parent.members[rank] for rank in ranks])
    timeout, own = options._timeout, options if parent.stream_ordered else None
    try:
        return _make_guard(parent.backend, store, ranks.index(parent.rank()), len(ranks), timeout, own)
    finally:
        stand_in.members.reset(token)


def options_of(identity: str) -> Any:
    """Return the options with which torch has made this group on a device; None if it gave none."""
    return _place.options.get(identity)


def _prepare(backend: str) -> None:
    """Set a backend's settings in the environment, before its first group."""
    if backend not in _place.prepared:
        _place.prepared.add(backend)
        adapter.of(backend).prepare(os.environ, cpu_settings.current())


def _default_group_meets_in(store: Any) -> None:
    """Let every later group of this job meet in the default group's store, too."""
    _place.base = store


def install(*, hostname: str | None = None, interface: str | None = None) -> None:
    """Guard every group over gloo, NCCL or HCCL that is made from now on. Groups on the CPU meet at this address or on
    this interface, if one is given.

    It may be called again. A later call only changes the address.
    """
    cpu_settings.meet_at(hostname, interface)
    _place.installed = True
    stand_in.install(_make_guard, _default_group_meets_in)


def adopt() -> list[str]:
    """Guard the gloo groups that exist and those made later; return the identities of the newly guarded ones.

    Call it on every rank at the same point of the program, while no operation is under way. Raises UsageError before
    init_process_group.
    """
    if not dist.is_initialized():
        raise UsageError("there is no process group yet; call this after init_process_group, on every rank.")
    if not _place.installed:
        install()
    world = c10d._world
    if _place.base is None:
        _place.base = world.pg_map[c10d._get_default_group()][1]
    return [identity for group in list(world.pg_map) for identity in _adopt_group(group)]


def _adopt_group(group: Any) -> Iterator[str]:
    ranks = c10d._world.pg_group_ranks[group]
    name, description = group.group_name, group.group_desc
    members = sorted(ranks, key=ranks.__getitem__)
    guard = None
    for device in group._device_types:
        backend = group._get_backend(device)
        if not isinstance(stand_in.plain_of(backend), stand_in.PlainGloo):
            continue
        if guard is None:
            timeout = stand_in.plain_of(backend).options._timeout
            ordinal = _place.next_ordinal(members)
            guard = _c10d.Guard(group.rank(), group.size(), backend, members, ordinal, timeout=timeout)
            yield guard.identity
        # The type is not gloo's own: torch ignores a second backend of a type that a group already has.
        group._register_backend(torch.device(device), stand_in.type_of_guards(), guard)
    if guard is not None:
        # torch looks a group up by the name that its backend knows.
        group._set_group_name(name)
        group._set_group_desc(description)


def training_begins() -> None:
    """Note that the set-up is over: groups made from now on are in no record of it."""
    _place.training = True


@dataclass(frozen=True)
class Late:
    """What a rank knows of the groups that were made since the set-up, or in a rehearsal."""

    living: list[tuple[list[int], int, str, float]]
    """Members, ordinal, backend and timeout in seconds of each group that lives."""
    counts: list[tuple[list[int], int]]
    """How many groups of the same members were made so far."""
    fleeting: list[list[int]]
    """Members of groups that were made and destroyed."""


def late() -> Late | None:
    """What this rank knows of late groups; None if there were none. Unused guards that were made ahead are dropped."""
    _place.ahead.clear()
    alive = {one.identity: one for one in _c10d.live_guards()}
    _place.fleeting |= {members for identity, members in _place.late.items() if identity not in alive}
    _place.late = {identity: members for identity, members in _place.late.items() if identity in alive}
    concerned = _place.fleeting | {*_place.late.values()}
    if not concerned:
        return None
    found = [alive[identity] for identity in _place.late if not alive[identity].stream_ordered]
    return Late(
        [(one.members, one.ordinal, one.backend, one.timeout.total_seconds()) for one in found],
        [([*members], _place.counts[members]) for members in sorted(concerned)],
        [[*members] for members in sorted(_place.fleeting)],
    )


def join_late(told: Sequence[Late], rank: int) -> None:
    """Count groups as the others do, and make ahead the groups that the others have and this rank may still make.

    A newcomer has made the groups of one rehearsed step, or none. Of the ranks that gave up a step, some had come
    further in it than others. A group of members whose groups come and go is not handed out: the step makes a new one.
    """
    for members, count in (pair for one in told for pair in one.counts):
        if rank in members:
            _place.counts[tuple(members)] = max(count, _place.counts.get(tuple(members), 0))
    _place.fleeting |= {tuple(members) for one in told for members in one.fleeting}
    alive = {one.identity for one in _c10d.live_guards()}
    for members, ordinal, backend, seconds in (group for one in told for group in one.living):
        identity = _c10d.identity_of(members, ordinal)
        if rank not in members or identity in alive:
            continue
        alive.add(identity)
        _prepare(backend)
        place, timeout = members.index(rank), timedelta(seconds=seconds)
        _place.ahead.append(
            _c10d.Guard(place, len(members), None, members, ordinal, timeout=timeout, sockets=(), backend=backend)
        )


@contextlib.contextmanager
def counting_apart() -> Iterator[None]:
    """Do not count the groups made in the body: only this rank makes them, and the others do not count them."""
    kept = dict(_place.counts)
    try:
        yield
    finally:
        _place.counts = kept


def rebuild(epoch: int, store: Any, *, within: timedelta | None = None) -> list[str]:
    """Give every living guard a new inner group that meets in `store`; return the identities of the guards.

    The order of the groups is the same on all ranks, and all members must do this for the same epoch. `within` bounds
    the meeting of each group, else the group's timeout does. Raises BackendError if a group does not come together.
    Raises ValueError if a newer epoch has begun, or if a rebuild for this epoch was begun before: its remains in the
    store would mislead a second one.
    """
    with _place.lock:
        newest = max(_place.rebuilt + 1, _c10d.control.epoch)
        if epoch < newest:
            raise ValueError(f"the groups cannot be rebuilt for epoch {epoch}; the next one is {newest} or later.")
        _place.rebuilt = epoch
    rebuilt = []
    end_inner_groups(epoch, f"epoch {epoch} has begun")
    for guard in sorted(_c10d.live_guards(), key=lambda one: (-one.size(), one.ordinal, one.members)):
        transport, identity = adapter.of(guard.backend), guard.identity
        inner = transport.rebuild(
            guard,
            _meeting(epoch, identity, store),
            within or guard.timeout,
            epoch=epoch,
            options=_place.options.get(identity),
        )
        guard.reconfigure(epoch, inner.backend, sockets=inner.sockets)
        rebuilt.append(identity)
    _place.base = store
    return rebuilt


def end_inner_groups(epoch: int, reason: str, *, on_devices_alone: bool = False) -> None:
    """End the operations in the inner groups of this process, because this epoch begins; once for each epoch.

    On a device nothing else ends the queued operations, and a training thread that waits for its device waits for them.
    Raises BackendError.
    """
    with _place.ending:
        by_backend: dict[str, list[_c10d.Guard]] = {}
        for guard in _c10d.live_guards():
            if guard.stream_ordered or not on_devices_alone:
                by_backend.setdefault(guard.backend, []).append(guard)
        for backend, guards in by_backend.items():
            if _place.ended.get(backend, 0) < epoch:
                adapter.of(backend).abort(guards, epoch, reason)
                _place.ended[backend] = epoch


def probe() -> list[tuple[str, Fault]]:
    """The groups that know of a fault of their own, with the fault. A device reports a failure only when asked."""
    found = ((guard.identity, adapter.of(guard.backend).probe(guard)) for guard in _c10d.live_guards())
    return [(identity, fault) for identity, fault in found if fault is not None]


def on_devices() -> bool:
    """Whether a living group is on a device, so that it must be asked for its faults."""
    return any(guard.stream_ordered for guard in _c10d.live_guards())


def classify(identity: str, error: str | BaseException) -> Fault:
    """Sort an error of the group with this identity. A group that is gone is treated as one on the CPU."""
    backends = [guard.backend for guard in _c10d.live_guards() if guard.identity == identity]
    return adapter.of(backends[0] if backends else "gloo").classify(error)


def quiesce(within: timedelta) -> None:
    """Return once no operation of a step that was given up can touch a tensor any more. Restore state only then.

    Raises BackendError if an operation does not end within this time.
    """
    if not _c10d.quiesce(within):
        busy = [guard.identity for guard in _c10d.live_guards() if not guard.idle]
        raise BackendError(f"operations in group {', '.join(busy)} do not end; restart this rank.")


def meeting_store() -> Any:
    """The store in which the groups of this process meet; None before there is one."""
    return _place.base


def begun() -> int:
    """How many operations this process has begun in guarded groups, including groups that are gone."""
    return _c10d.control.begun


def groups() -> list[str]:
    """Identities of the living guarded groups in the order they were made: the group forest of this process."""
    return [guard.identity for guard in _c10d.live_guards()]
