"""Looks at tensors that are split over ranks (DTensor): what this rank has of one, and which ranks have the same.

A DTensor names a mesh of ranks, and for each dimension of the mesh whether the tensor is split or repeated along it.
Ranks that differ only along dimensions where it is repeated have the same shard: they are twins. With HSDP these are
the ranks with the same shard in other replicas. Shards go to another process as plain tensors with a note of how they
were split. A twin makes shards of them again, with its own mesh.

Failure modes: a shard on a mesh that no parameter has, or with placements of a class of the user's own (UsageError,
before anything is sent). It does NOT communicate, and knows nothing of FSDP (fully_sharded.py) or of optimizers.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from taskd.errors import PeerError, UsageError

_SHARD = "taskd shard"
"""The key by which the plain form of a shard is recognized."""
_PLACEMENT = re.compile(r"R|S(\d+)|P(\w+)|S(\d+)/(\d+)")
_DEPTH = 64
Ranks = frozenset[int]


class Mesh(NamedTuple):
    """What two meshes of the same ranks have in common, on whatever rank."""

    ranks: Any
    names: Any


def kind() -> Any:
    """Return torch's class of tensors that are split over ranks; () if it is not imported, so there are none."""
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ())


def is_shard(value: Any) -> bool:
    """Whether this is a tensor that is split over ranks, or repeated on them, by a mesh."""
    return isinstance(value, kind())


def shard_of(tensor: Any) -> Any:
    """Return the memory that this rank has of a tensor: its shard, or all of it."""
    return tensor._local_tensor if is_shard(tensor) else tensor


def version_of(tensor: torch.Tensor) -> int:
    """Return a number that grows with each write into a tensor or its shard, as far as torch counts them."""
    return tensor._version + tensor._local_tensor._version if is_shard(tensor) else tensor._version


def twins(tensor: Any) -> Ranks:
    """Return the ranks that have the same shard of this tensor, among them this rank."""
    mesh, here = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    if here is None:
        return frozenset()
    pairs = zip(here, tensor.placements, strict=True)
    where = tuple(slice(None) if placement.is_replicate() else at for at, placement in pairs)
    return frozenset(mesh.mesh[where].flatten().tolist())


def alike(tensors: Iterable[Any]) -> Ranks | None:
    """Return the ranks that have the same shards of all of these tensors. None: none of them is a shard."""
    found = [twins(tensor) for tensor in tensors if is_shard(tensor)]
    return frozenset.intersection(*found) if found else None


def inside(value: Any, depth: int = 0) -> Iterator[Any]:
    """Return the shards in a value, as deep as `plain` looks for them."""
    if is_shard(value):
        yield value
    elif depth < _DEPTH and (isinstance(value, dict) or type(value) in (list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from inside(item, depth + 1)


# ---- shards in a state that goes to another process ------------------------------------------------------------------


def plain(value: Any, path: str = "state", depth: int = 0) -> Any:
    """Return a value with each shard in it in its plain form: the shard's memory, and how it was split.
    Raises UsageError."""
    if not kind():
        return value
    if is_shard(value):
        form = [_text_of(one, path) for one in value.placements]
        mesh = [*_mesh_of(value.device_mesh)]
        return {_SHARD: form, "mesh": mesh, "of": [[*value.shape], [*value.stride()]], "here": shard_of(value).detach()}
    if isinstance(value, dict) and depth < _DEPTH:
        return {key: plain(item, f"{path}[{key!r}]", depth + 1) for key, item in value.items()}
    if type(value) in (list, tuple) and depth < _DEPTH:
        return type(value)(plain(item, f"{path}[{at}]", depth + 1) for at, item in enumerate(value))
    return value


def split(value: Any, owners: Iterable[Any]) -> Any:
    """Return a value that `plain` made, with its shards. They get the meshes that these tensors have.
    Raises PeerError."""
    meshes = {repr(_mesh_of(one.device_mesh)): one.device_mesh for one in owners if is_shard(one)}
    return _split(value, meshes) if meshes else value


def _split(value: Any, meshes: dict[str, Any]) -> Any:
    if type(value) is dict and _SHARD in value:
        mesh = meshes.get(repr(Mesh(*value["mesh"])))
        if mesh is None:
            raise PeerError("a state has a shard on a mesh of ranks that no parameter of this rank has")
        shape, stride = value["of"]
        placements = [_placement_of(text) for text in value[_SHARD]]
        return kind().from_local(
            value["here"], mesh, placements, run_check=False, shape=torch.Size(shape), stride=tuple(stride)
        )
    if type(value) is dict:
        return {key: _split(item, meshes) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_split(item, meshes) for item in value)
    return value


def _mesh_of(mesh: Any) -> Mesh:
    return Mesh(mesh.mesh.tolist(), list(mesh.mesh_dim_names) if mesh.mesh_dim_names else None)


def _text_of(placement: Any, path: str) -> str:
    name = type(placement).__name__
    if name == "Replicate":
        return "R"
    if name == "Shard":
        return f"S{placement.dim}"
    if name == "_StridedShard":
        return f"S{placement.dim}/{placement.split_factor}"
    if name == "Partial" and _PLACEMENT.fullmatch(f"P{placement.reduce_op}"):
        return f"P{placement.reduce_op}"
    raise UsageError(f"{path} is split over ranks as {placement!r}, which taskd does not know")


def _placement_of(text: str) -> Any:
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    found = _PLACEMENT.fullmatch(text)
    if found is None:
        raise PeerError(f"a state has a shard with the unknown placement {text!r}")
    whole, operation, strided, factor = found.groups()
    if strided is not None:
        return _StridedShard(int(strided), split_factor=int(factor))
    if operation is not None:
        return Partial(operation)
    return Shard(int(whole)) if whole is not None else Replicate()
