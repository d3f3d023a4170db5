"""What stands where torch.distributed has its own backends, so that every group it makes is made guarded.

torch offers no hook for a built-in backend, so the classes that it instantiates (ProcessGroupGloo, ProcessGroupNCCL)
are replaced by ones that make guards and answer every other question as the plain ones do; what torch_npu registers is
wrapped. Each name that is touched stands in `install`. This module makes no guard and keeps none: `make` does.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from taskd import _c10d
from taskd.comm.gloo import without_listener

PlainGloo: Any = dist.ProcessGroupGloo

Make = Callable[[str, Any, int, int, timedelta, Any], Any]
"""Of backend, store, rank, size, timeout and torch's options: a guard."""

members: ContextVar[list[int] | None] = ContextVar("taskd_group_members", default=None)
"""Global ranks of the group that torch is making on this thread; torch tells the backend's class only how many."""

_installed = False


def install(make: Make, of_default_group: Callable[[Any], None]) -> None:
    """From now on `make` makes the backends of all groups; once. `of_default_group` is told the store of each default
    group before it is made."""
    global _installed
    if _installed:
        return
    _installed = True
    replaced: dict[str, Any] = {
        "ProcessGroupGloo": _class("gloo", PlainGloo, make),
        "_new_process_group_helper": _remembering_members(c10d._new_process_group_helper, make, of_default_group),
        "_tensor_to_object": _none_for_nothing(c10d._tensor_to_object),
        "broadcast_object_list": _none_in_rehearsal(c10d.broadcast_object_list),
        "all_gather_object": _own_in_rehearsal(c10d.all_gather_object),
        "gather_object": _own_in_rehearsal(c10d.gather_object),
    }
    for name in ("broadcast_object_list", "all_gather_object", "gather_object"):  # by which scripts know them
        setattr(dist, name, replaced[name])
    if dist.is_nccl_available():
        replaced["ProcessGroupNCCL"] = _class("nccl", dist.ProcessGroupNCCL, make)
    for name, value in replaced.items():
        setattr(c10d, name, value)
    group_type: Any = dist.ProcessGroup
    group_type._register_backend = _registering(group_type._register_backend)


class _GuardingType(type):
    """Makes guards where torch makes the plain backend, and takes both for one in isinstance()."""

    backend: str
    plain: Any
    make: Make

    def __call__(
        cls, store: Any, rank: int, size: int, options: Any = None, timeout: timedelta = c10d.default_pg_timeout
    ) -> Any:
        if isinstance(options, timedelta):
            timeout, options = options, None
        elif options is not None:
            timeout = options._timeout
        return cls.make(cls.backend, store, rank, size, timeout, options)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.plain) or (
            isinstance(instance, _c10d.Guard) and instance.backend == cls.backend
        )

    def __getattr__(cls, name: str) -> Any:
        return getattr(type.__getattribute__(cls, "plain"), name)


def _class(backend: str, plain: Any, make: Make) -> Any:
    return _GuardingType(f"Guarded_{backend}", (), {"backend": backend, "plain": plain, "make": staticmethod(make)})


def plain_of(backend: Any) -> Any:
    """The backend below the wrapper that torch puts around it in its debug mode."""
    return getattr(backend, "wrapped_pg", backend)


def type_of_guards() -> Any:
    """The type under which a guard before gloo is registered: not gloo's, since torch casts what has that to gloo's own
    class, nor CUSTOM, which is what the backend of another device may have in the same group."""
    return dist.ProcessGroup.BackendType.UCC


@functools.cache
def _gloo_of_one() -> Any:
    """A gloo group of one rank, for all guarded groups: what is registered as GLOO, DDP casts to gloo's own class."""
    options = PlainGloo._Options()

    def make() -> Any:
        options._devices = [PlainGloo.create_device(hostname="127.0.0.1", lazy_init=True)]
        return PlainGloo(dist.HashStore(), 0, 1, options)

    return without_listener(make)


def _registering(original: Callable[..., None]) -> Callable[..., None]:
    """ProcessGroup._register_backend that puts guards before gloo, and torch's debug wrapper of one, under another
    type."""

    @functools.wraps(original)
    def register(group: Any, device: Any, kind: Any, backend: Any = None) -> None:
        if kind == dist.ProcessGroup.BackendType.GLOO and isinstance(plain_of(backend), _c10d.Guard):
            original(group, device, kind, _gloo_of_one())
            kind = type_of_guards()
        original(group, device, kind, backend)

    return register


def _remembering_members(
    original: Callable[..., Any], make: Make, of_default_group: Callable[[Any], None]
) -> Callable[..., Any]:
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
            of_default_group(store)
        _guard_hccl(make)
        token = members.set(list(global_ranks_in_group) or None)
        try:
            return original(group_size, group_rank, global_ranks_in_group, backend, store, *args, **more)
        finally:
            members.reset(token)

    return helper


def _guard_hccl(make: Make) -> None:
    """torch_npu registers its backend when it is imported, which may be later than we are installed."""
    plugins: dict[str, Any] = c10d.Backend._plugins
    plugin = plugins.get("HCCL")
    if plugin is None or not plugin.extended_api or getattr(plugin.creator_fn, "makes_guards", False):
        return

    @functools.wraps(plugin.creator_fn)
    def creator(options: Any, _: Any = None) -> Any:
        return make("hccl", options.store, options.group_rank, options.group_size, options.timeout, options)

    creator.makes_guards = True  # type: ignore[attr-defined]
    plugins["HCCL"] = plugin._replace(creator_fn=creator)


def _none_for_nothing(original: Callable[..., Any]) -> Callable[..., Any]:
    """No pickled object has zero bytes; an object collective of a step that was given up has, and means None."""

    @functools.wraps(original)
    def tensor_to_object(tensor: Any, tensor_size: Any, *args: Any, **more: Any) -> Any:
        return original(tensor, tensor_size, *args, **more) if int(tensor_size) > 0 else None

    return tensor_to_object


def _none_in_rehearsal(original: Callable[..., Any]) -> Callable[..., Any]:
    """In a rehearsal nothing comes from the source, so what is received is None. The lengths, which torch receives
    first into memory that it has not cleared, would be whatever that held."""

    @functools.wraps(original)
    def broadcast_object_list(
        object_list: list[Any], src: int | None = None, group: Any = None, *args: Any, **more: Any
    ) -> Any:
        control = _c10d.control
        if control.rehearsing and control.mode == _c10d.Mode.SANDBOX:
            source = more.get("group_src")
            if source is None:
                source = dist.get_group_rank(group or c10d._get_default_group(), src or 0)
            if dist.get_rank(group) != source:
                object_list[:] = [None] * len(object_list)
            return None
        return original(object_list, src, group, *args, **more)

    return broadcast_object_list


def _own_in_rehearsal(original: Callable[..., Any]) -> Callable[..., Any]:
    """all_gather_object(list, object) and gather_object(object, list): in a rehearsal nobody else says anything, and
    what they would say has most likely the form of what this rank has said."""
    gathers_all = original.__name__ == "all_gather_object"
    name, place = ("object_list", 0) if gathers_all else ("object_gather_list", 1)

    @functools.wraps(original)
    def gather(*args: Any, **more: Any) -> Any:
        control = _c10d.control
        if not (control.rehearsing and control.mode == _c10d.Mode.SANDBOX):
            return original(*args, **more)
        target = args[place] if len(args) > place else more.get(name)
        own = args[1 - place] if len(args) > 1 - place else more["obj"]
        if target is not None:
            target[:] = [copy.deepcopy(own) for _ in target]
        return None

    return gather
