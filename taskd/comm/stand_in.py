"""Replacements for torch.distributed's own backends, so that every group it makes is made guarded.

torch offers no hook for a built-in backend. So the classes that it instantiates (ProcessGroupGloo, ProcessGroupNCCL)
are replaced by classes that make guards. In all other respects they behave like the plain classes. The backend that
torch_npu registers is wrapped. `install` lists each name that is replaced. This module makes no guard and keeps none:
`make` does.
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
from taskd.comm import ours
from taskd.comm.adapter import HOMES
from taskd.comm.gloo import LOOPBACK, without_listener

PlainGloo: Any = dist.ProcessGroupGloo

Make = Callable[[str, Any, int, int, timedelta, Any], Any]
"""A function that makes a guard from backend, store, rank, size, timeout and torch's options."""

members: ContextVar[list[int] | None] = ContextVar("taskd_group_members", default=None)
"""Global ranks of the group that torch is making on this thread; torch gives the backend's class only their number."""

_installed = False


def install(make: Make, of_default_group: Callable[[Any], None]) -> None:
    """Let `make` make the backends of all groups from now on; a second call does nothing. `of_default_group` is called
    with the store of each default group before that group is made. ours.py is told of the group afterwards."""
    global _installed
    if _installed:
        return
    _installed = True
    replaced: dict[str, Any] = {
        "ProcessGroupGloo": _class("gloo", PlainGloo, make),
        "_new_process_group_helper": _remembering_members(c10d._new_process_group_helper, make, of_default_group),
        "_get_split_source": _no_guard(c10d._get_split_source),
        "_tensor_to_object": _none_for_nothing(c10d._tensor_to_object),
        "broadcast_object_list": _none_in_rehearsal(c10d.broadcast_object_list),
        "all_gather_object": _own_in_rehearsal(c10d.all_gather_object),
        "gather_object": _own_in_rehearsal(c10d.gather_object),
    }
    for name in ("broadcast_object_list", "all_gather_object", "gather_object"):  # scripts use these names
        setattr(dist, name, replaced[name])
    if dist.is_nccl_available():
        replaced["ProcessGroupNCCL"] = _class("nccl", dist.ProcessGroupNCCL, make)
    replaced["destroy_process_group"] = dist.destroy_process_group = _ending_ours(c10d.destroy_process_group)
    for name, value in replaced.items():
        setattr(c10d, name, value)
    group_type: Any = dist.ProcessGroup
    group_type._register_backend = _registering(group_type._register_backend)
    group_type.split_group = _splitting(group_type.split_group)


class _GuardingType(type):
    """Makes guards where torch makes the plain backend; isinstance() is true for both."""

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
    """The type under which a guard around gloo is registered. It is not gloo's type: torch casts a backend of that type
    to gloo's own class. Nor is it CUSTOM: the backend of another device in the same group may have that type."""
    return dist.ProcessGroup.BackendType.UCC


@functools.cache
def _gloo_of_one() -> Any:
    """Return a gloo group of one rank, shared by all guarded groups: DDP casts the GLOO backend to gloo's own class."""
    options = PlainGloo._Options()

    def make() -> Any:
        options._devices = [PlainGloo.create_device(hostname=LOOPBACK, lazy_init=True)]
        return PlainGloo(dist.HashStore(), 0, 1, options)

    return without_listener(make)


def _registering(original: Callable[..., None]) -> Callable[..., None]:
    """Wrap ProcessGroup._register_backend: a guard around gloo, or torch's debug wrapper of one, gets another type."""

    @functools.wraps(original)
    def register(group: Any, device: Any, kind: Any, backend: Any = None) -> None:
        if kind == dist.ProcessGroup.BackendType.GLOO and isinstance(plain_of(backend), _c10d.Guard):
            original(group, device, kind, _gloo_of_one())
            kind = type_of_guards()
        original(group, device, kind, backend)

    return register


def _splitting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ProcessGroup.split_group: in C++ it registers a guard around gloo under its parent's type alone."""

    @functools.wraps(original)
    def split_group(group: Any, *args: Any, **more: Any) -> Any:
        made = original(group, *args, **more)
        for device in made._device_types if made is not None else ():
            backend = made._get_backend(device)
            if isinstance(backend, _c10d.Guard) and backend.backend == "gloo":
                made._register_backend(device, dist.ProcessGroup.BackendType.GLOO, backend)
        return made

    return split_group


def _no_guard(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap _get_split_source. In new_group() torch splits a world that is bound to a device by NCCL's own means. For
    that, all its ranks must call the library, and a guard's inner groups come and go. So new groups are made apart."""

    @functools.wraps(original)
    def get_split_source(group: Any) -> Any:
        found = original(group)
        return None if isinstance(plain_of(found), _c10d.Guard) else found

    return get_split_source


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
            timeout = more.get("timeout") or c10d.default_pg_timeout
            ours.default_group_begins(
                _backends_of(backend), lambda: make("gloo", store, group_rank, group_size, timeout, None)
            )
        _guard_hccl(make)
        token = members.set(list(global_ranks_in_group) or None)
        try:
            return original(group_size, group_rank, global_ranks_in_group, backend, store, *args, **more)
        finally:
            members.reset(token)

    return helper


def _ending_ours(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def destroy_process_group(group: Any = None) -> None:
        if group is None or group is dist.group.WORLD:
            ours.default_group_is_gone()
        original(group)

    return destroy_process_group


def _backends_of(backend: Any) -> dict[str, str]:
    """The backend of each type of device, as torch reads this name; none if none of them can be ours."""
    if backend != c10d.Backend.UNDEFINED and not any(name in str(backend).lower() for name in HOMES):
        return {}
    return {device: str(name) for device, name in c10d.BackendConfig(c10d.Backend(backend)).device_backend_map.items()}


def _guard_hccl(make: Make) -> None:
    """Wrap torch_npu's backend. It is registered when torch_npu is imported, which may be after `install`."""
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
    """Read zero bytes as None. No pickled object has zero bytes; only a step that was given up receives them."""

    @functools.wraps(original)
    def tensor_to_object(tensor: Any, tensor_size: Any, *args: Any, **more: Any) -> Any:
        return original(tensor, tensor_size, *args, **more) if int(tensor_size) > 0 else None

    return tensor_to_object


def _none_in_rehearsal(original: Callable[..., Any]) -> Callable[..., Any]:
    """Receive None in a rehearsal, because the source sends nothing. torch receives the lengths first, into memory that
    it has not cleared, so they would be arbitrary."""

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
    """Wrap all_gather_object(list, object) and gather_object(object, list). In a rehearsal no other rank sends. This
    rank's own object is used instead: the others' objects most likely have the same form."""
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
