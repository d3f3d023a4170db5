"""Puts a guard around every CPU group of this process and swaps what is behind it.

install() goes first, before user code: whatever init_process_group, new_group or a DeviceMesh makes from then on is a
guard around an inner group, while get_backend() keeps the user's word "gloo". adopt() does it for groups that exist.
rebuild() gives every living guard a new inner group under a new epoch. torch offers no hook for a built-in backend, so
the class that torch.distributed instantiates is replaced by one that makes guards; each name that is touched stands in
install().

Nothing here decides that an epoch has come, restores state or talks to an agent.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from taskd import _c10d
from taskd.comm import cpu
from taskd.errors import BackendError, UsageError

_PlainGloo: Any = dist.ProcessGroupGloo

_members: ContextVar[list[int] | None] = ContextVar("taskd_group_members", default=None)
"""Global ranks of the group that torch is making on this thread; torch tells the backend's class only how many."""


class _Place:
    """Where the guards of this process meet and which ranks already had how many groups."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.installed = False
        self.base: Any = None  # the store under which new inner groups meet
        self.where: dict[str, str | None] = {}
        self.counts: dict[tuple[int, ...], int] = {}
        self.rebuilt = -1  # the last epoch that a rebuild was begun for

    def next_ordinal(self, members: Sequence[int]) -> int:
        with self.lock:
            ordinal = self.counts.get(tuple(members), 0)
            self.counts[tuple(members)] = ordinal + 1
            return ordinal


_place = _Place()


def _meeting(epoch: int, identity: str, store: Any) -> Any:
    return dist.PrefixStore(f"epoch{epoch}/{identity}", store)


def _make_guard(rank: int, size: int, timeout: timedelta) -> _c10d.Guard:
    """A guard for the group that torch is making, joined to its peers unless this process is in a sandbox."""
    _c10d.control.wait_until_running()
    members = _members.get() or list(range(size))
    ordinal = _place.next_ordinal(members)
    if _c10d.control.mode == _c10d.Mode.SANDBOX:
        return _c10d.Guard(rank, size, None, members, ordinal, timeout=timeout)
    epoch, identity = _c10d.control.epoch, _c10d.identity_of(members, ordinal)
    store = _meeting(epoch, identity, _place.base)
    inner = cpu.make_inner(store, rank, size, timeout, epoch=epoch, identity=identity, members=members, **_place.where)
    return _c10d.Guard(rank, size, inner.backend, members, ordinal, timeout=timeout, sockets=inner.sockets)


@functools.cache
def _stand_in() -> Any:
    """A gloo group of one rank, for all guarded groups: what is registered as GLOO, DDP casts to gloo's own class."""
    options = _PlainGloo._Options()
    options._devices = [_PlainGloo.create_device(hostname="127.0.0.1", lazy_init=True)]
    return _PlainGloo(dist.HashStore(), 0, 1, options)


def _registering(original: Callable[..., None]) -> Callable[..., None]:
    """ProcessGroup._register_backend that puts guards, and torch's debug wrapper of one, under the type CUSTOM."""

    @functools.wraps(original)
    def register(group: Any, device: Any, kind: Any, backend: Any = None) -> None:
        kinds = dist.ProcessGroup.BackendType
        if kind == kinds.GLOO and isinstance(getattr(backend, "wrapped_pg", backend), _c10d.Guard):
            original(group, device, kind, _stand_in())
            kind = kinds.CUSTOM
        original(group, device, kind, backend)

    return register


class _GuardingType(type):
    """Makes guards where torch makes ProcessGroupGloo, and takes both for one in isinstance()."""

    def __call__(
        cls, store: Any, rank: int, size: int, options: Any = None, timeout: timedelta = c10d.default_pg_timeout
    ) -> Any:
        if isinstance(options, timedelta):
            timeout = options
        elif options is not None:
            timeout = options._timeout
        if _place.base is None:
            _place.base = store
        return _make_guard(rank, size, timeout)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, (_PlainGloo, _c10d.Guard))

    def __getattr__(cls, name: str) -> Any:
        return getattr(_PlainGloo, name)


class _GuardedGloo(metaclass=_GuardingType):
    """Stands where torch.distributed.distributed_c10d has its ProcessGroupGloo."""


def _remembering_members(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def helper(
        group_size: int,
        group_rank: int,
        global_ranks_in_group: list[int],
        backend: Any,
        store: Any,
        *args: Any,
        **more: Any,
    ) -> Any:
        if not global_ranks_in_group:
            # The default group: every later group of this job meets in its store, too.
            _place.base = store
        token = _members.set(list(global_ranks_in_group) or None)
        try:
            return original(group_size, group_rank, global_ranks_in_group, backend, store, *args, **more)
        finally:
            _members.reset(token)

    return helper


def _none_for_nothing(original: Callable[..., Any]) -> Callable[..., Any]:
    """No pickled object has zero bytes; an object collective of a step that was given up has, and means None."""

    @functools.wraps(original)
    def tensor_to_object(tensor: Any, tensor_size: Any, *args: Any, **more: Any) -> Any:
        return original(tensor, tensor_size, *args, **more) if int(tensor_size) > 0 else None

    return tensor_to_object


def install(*, hostname: str | None = None, interface: str | None = None) -> None:
    """From now on every gloo group is made guarded, at this address or on this interface if one is given.

    May be called again; only the address is then taken over.
    """
    _place.where = {"hostname": hostname, "interface": interface}
    if _place.installed:
        return
    _place.installed = True
    replaced: dict[str, Any] = {
        "ProcessGroupGloo": _GuardedGloo,
        "_new_process_group_helper": _remembering_members(c10d._new_process_group_helper),
        "_tensor_to_object": _none_for_nothing(c10d._tensor_to_object),
    }
    for name, value in replaced.items():
        setattr(c10d, name, value)
    group_type: Any = dist.ProcessGroup
    group_type._register_backend = _registering(group_type._register_backend)


def adopt() -> list[str]:
    """Guards the gloo groups that exist and those made later; returns the identities of the newly guarded ones.

    To be called on every rank at the same point of the program, while nothing is under way. Raises UsageError before
    init_process_group.
    """
    if not dist.is_initialized():
        raise UsageError("there is no process group yet; call this after init_process_group, on every rank.")
    install(**_place.where)
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
        if not isinstance(getattr(backend, "wrapped_pg", backend), _PlainGloo):
            continue
        if guard is None:
            timeout = getattr(backend, "wrapped_pg", backend).options._timeout
            ordinal = _place.next_ordinal(members)
            guard = _c10d.Guard(group.rank(), group.size(), backend, members, ordinal, timeout=timeout)
            yield guard.identity
        # Under another type than gloo's own: torch ignores a second backend of a type that a group already has.
        group._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, guard)
    if guard is not None:
        # torch looks a group up by the name that its backend knows.
        group._set_group_name(name)
        group._set_group_desc(description)


def rebuild(epoch: int, store: Any, *, within: timedelta | None = None) -> list[str]:
    """Gives every living guard, in the order they were made, a new inner group that meets in `store`; says which.

    All members have to do it for the same epoch. `within` bounds the meeting of each group, else the group's timeout
    does. Raises BackendError if a group does not come together, ValueError if a newer epoch has begun or this one's
    rebuild was begun before: what it left in the store would mislead the second one.
    """
    with _place.lock:
        newest = max(_place.rebuilt + 1, _c10d.control.epoch)
        if epoch < newest:
            raise ValueError(f"the groups cannot be rebuilt for epoch {epoch}; the next one is {newest} or later.")
        _place.rebuilt = epoch
    rebuilt = []
    cpu.end_epochs_before(epoch)
    for guard in _c10d.live_guards():
        inner = cpu.make_inner(
            _meeting(epoch, guard.identity, store),
            guard.rank(),
            guard.size(),
            within or guard.timeout,
            epoch=epoch,
            identity=guard.identity,
            members=guard.members,
            **_place.where,
        )
        inner.backend._set_default_timeout(guard.timeout)
        guard.reconfigure(epoch, inner.backend, sockets=inner.sockets)
        rebuilt.append(guard.identity)
    _place.base = store
    return rebuilt


def quiesce(within: timedelta) -> None:
    """Returns once no operation of a step that was given up may touch a tensor any more; only then restore state.

    Raises BackendError if one does not end within this time.
    """
    if not _c10d.quiesce(within):
        busy = [guard.identity for guard in _c10d.live_guards() if not guard.idle]
        raise BackendError(f"operations in group {', '.join(busy)} do not end; restart this rank.")


def meeting_store() -> Any:
    """The store in which the groups of this process meet; None before there is one."""
    return _place.base


def groups() -> list[str]:
    """Identities of the living guarded groups in the order they were made: the group forest of this process."""
    return [guard.identity for guard in _c10d.live_guards()]
