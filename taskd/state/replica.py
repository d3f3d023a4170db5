"""The state of a data-parallel replica (parameters, optimizers, schedulers), and how one rank gives it to another.

A rank that lacks an update (or everything, because it is new) takes it from a rank that has it, over the job's own
process group of the new epoch. Tensors go directly from and into the objects that user code and its frameworks hold,
never into new ones, because DDP, optimizers and schedulers keep references. They are sent in chunks with a checksum per
tensor, or are read in place if both ranks are on one host (nearby.py). The rest is sent as a tree (see tree.py), never
as a pickle. This module does NOT decide which rank gives and which takes.

Invariants: a receiver that raises has not resumed (it reports failure, and the repair is tried again from a whole
source); a source's own state is only read.
"""

from __future__ import annotations

import ctypes
import sys
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from taskd.comm import ours
from taskd.errors import PeerError, UsageError
from taskd.state import exact, shards, tree
from taskd.state.attributes import Attributes
from taskd.state.fully_sharded import FullySharded
from taskd.state.nearby import Memory, Shown

CHUNK_BYTES = 4 << 20
IN_FLIGHT = 4
"""Chunks in flight at once: enough to keep the network busy while a checksum is computed."""
READERS = 2
"""Threads that read in place. The host's processors are free for them while its ranks wait for the taker."""
_TAG = 7_719
"""A tag that user code is not likely to choose."""
_NAMES_BYTES = 64 << 20
_READS, _WAITS = b"reads", b"waits"
"""The answers of the taker: it reads the tensors in place, or waits for them."""
_GRADIENTS = "gradients"
_ATTRIBUTES = "attributes"
_HEADS = 10
"""The number of checksums before those of the tensors: four texts and an answer, each with its length."""


@dataclass(slots=True)
class Replica:
    """The objects of one rank whose state is the same on all ranks with the same part of the model."""

    models: dict[str, torch.nn.Module] = field(default_factory=dict)
    optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)
    others: dict[str, Any] = field(
        default_factory=dict
    )  # schedulers, scalers: anything with state_dict/load_state_dict
    wrappers: list[torch.nn.Module] = field(default_factory=list)
    """DistributedDataParallel modules around registered ones. They were found, not registered."""
    part: int = 0
    """The part of the model, if ranks have different parts: see parts.py."""
    kept: bool = False
    """Whether no other rank has this part, and each rank keeps its own: see kept_shards.py."""
    attributes: Attributes = field(init=False)
    """The attributes of the optimizers."""
    fully_sharded: FullySharded = field(init=False)
    """What `fully_shard` keeps of the models."""

    def __post_init__(self) -> None:
        self.attributes = Attributes(self.optimizers)
        self.fully_sharded = FullySharded(self.models)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Return every tensor of the models, and other tensors that optimizers train. Each comes once, with its name.
        The order is the same on all ranks."""
        seen: set[int] = set()
        for label, model in self.models.items():
            parameters = self.fully_sharded.parameters(model)
            named: Iterable[tuple[str, torch.Tensor]] = (*parameters, *model.named_buffers())
            for name, tensor in named:
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield f"{label}.{name}", tensor
        for label, optimizer in self.optimizers.items():
            for at, parameter in enumerate(one for group in optimizer.param_groups for one in group["params"]):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield f"{label}, parameter {at}", parameter

    def trained(self) -> Iterator[torch.Tensor]:
        """Return the parameters of the optimizers. One may come twice."""
        for optimizer in self.optimizers.values():
            yield from (one for group in optimizer.param_groups for one in group["params"])

    def parallel(self) -> list[DistributedDataParallel]:
        """The modules that reduce gradients, whether they were registered or found."""
        found = (*self.models.values(), *self.wrappers)
        return [model for model in found if isinstance(model, DistributedDataParallel)]

    def small(self) -> dict[str, Any]:
        """The state of the optimizers and the other objects. Shards in it are in their plain form."""
        parts = {f"optimizer {name}": item.state_dict() for name, item in self.optimizers.items()}
        parts |= {f"object {name}": item.state_dict() for name, item in self.others.items()}
        found: dict[str, Any] = shards.plain(parts | {_ATTRIBUTES: self.attributes.tell()})
        return found

    def load_small(self, parts: dict[str, Any]) -> None:
        """Put back what `small` gave, here or on another rank. Raises PeerError."""
        parts = self.split(parts)
        for name, optimizer in self.optimizers.items():
            exact.load(name, optimizer, parts[f"optimizer {name}"])
        for name, item in self.others.items():
            exact.load(name, item, parts[f"object {name}"])
        self.attributes.take(parts[_ATTRIBUTES])

    def describe(self) -> list[list[Any]]:
        """Name, dtype and shape of what this rank has of every model tensor. Two ranks must agree on it before anything
        is moved."""
        return [[name, str(tensor.dtype), list(shards.shard_of(tensor).shape)] for name, tensor in self.tensors()]

    def split(self, value: Any) -> Any:
        """Return a value with the shards that it has in their plain form (shards.py). Raises PeerError."""
        return shards.split(value, (tensor for _, tensor in self.tensors()))


def follows(module: torch.nn.Module) -> bool:
    """Whether a module is an average of another one. No optimizer trains it, it changes after the update, and its
    buffers are not this rank's own. It is kept like a scheduler, not like a model."""
    averages = sys.modules.get("torch.optim.swa_utils")
    return averages is not None and isinstance(module, averages.AveragedModel)


class _Stream:
    """Chunks to or from one peer, a few in flight at once."""

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self.pending: deque[tuple[Any, torch.Tensor, int]] = deque()
        self.sums: list[int] = []

    def send(self, data: torch.Tensor) -> None:
        index = len(self.sums)
        self.sums.append(0)
        for chunk in data.split(CHUNK_BYTES) if data.numel() else ():
            self._add(ours.send(chunk, self.peer, _TAG), chunk, index)
            self.sums[index] = _checksum(chunk, self.sums[index])

    def receive(self, data: torch.Tensor) -> None:
        index = len(self.sums)
        self.sums.append(0)
        for chunk in data.split(CHUNK_BYTES) if data.numel() else ():
            self._add(ours.receive(chunk, self.peer, _TAG), chunk, -1 - index)

    def keep(self, data: torch.Tensor) -> None:
        """Note the checksum of data that the peer reads in place."""
        self.sums.append(_checksum(data, 0) if data.numel() else 0)

    def read(self, memory: Memory, targets: list[torch.Tensor]) -> None:
        """The other side of `keep`, with several threads, because fresh memory costs more than reading into it."""
        with ThreadPoolExecutor(READERS) as pool:
            self.sums += pool.map(lambda one: _read(memory, *one), zip(memory.places, targets, strict=True))

    def _add(self, work: Any, chunk: torch.Tensor, index: int) -> None:
        self.pending.append((work, chunk, index))
        if len(self.pending) > IN_FLIGHT:
            self._finish_one()

    def _finish_one(self) -> None:
        work, chunk, index = self.pending.popleft()
        work.wait()
        if index < 0:
            self.sums[-1 - index] = _checksum(chunk, self.sums[-1 - index])

    def drain(self) -> None:
        while self.pending:
            self._finish_one()

    def send_bytes(self, data: bytes) -> None:
        self.send(torch.tensor([len(data)], dtype=torch.int64, device="cpu").view(torch.uint8))
        empty = torch.empty(0, dtype=torch.uint8, device="cpu")
        self.send(torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else empty)

    def receive_bytes(self) -> bytes:
        head = torch.zeros(1, dtype=torch.int64, device="cpu")
        self.receive(head.view(torch.uint8))
        self.drain()
        length = int(head.item())
        if not 0 <= length <= _NAMES_BYTES:
            raise PeerError(f"rank {self.peer} announced {length} bytes of state beside tensors")
        data = torch.empty(length, dtype=torch.uint8, device="cpu")
        self.receive(data)
        self.drain()
        return tree.bytes_of(data)


def _read(memory: Memory, place: int, data: torch.Tensor) -> int:
    """Read one tensor's bytes and return their checksum, by chunks, so that each is still in the processor's cache."""
    total = 0
    for chunk in data.split(CHUNK_BYTES) if data.numel() else ():
        memory.read(place, chunk.data_ptr(), chunk.numel())
        place += chunk.numel()
        total = _checksum(chunk, total)
    return total


def _checksum(chunk: torch.Tensor, start: int) -> int:
    return zlib.crc32((ctypes.c_ubyte * chunk.numel()).from_address(chunk.data_ptr()), start)


def _host(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's bytes on the host, without a copy if it is there already."""
    return tree.flat_bytes(tensor.detach().cpu().contiguous())


def give(
    replica: Replica, peers: Iterable[int], extra: bytes, gradients: dict[str, torch.Tensor] | None = None
) -> None:
    """Send the whole state, with the session's `extra` and gradients, to `peers` (ranks of the default group)."""
    for peer in peers:
        stream = _Stream(peer)
        text, small = tree.flatten(replica.small() | {_GRADIENTS: shards.plain(gradients or {})}, "replicated state")
        names, _ = tree.flatten(replica.describe(), "model")
        tensors = [*(shards.shard_of(tensor) for _, tensor in replica.tensors()), *small]
        shown = Shown(tensors)
        for part in (extra, names, text, shown.text):
            stream.send_bytes(part)
        stream.drain()
        give_one = stream.keep if stream.receive_bytes() == _READS else stream.send
        for tensor in tensors:
            give_one(_host(tensor))
        sums = list(stream.sums)
        stream.send_bytes(tree.flatten(sums)[0])
        stream.drain()
        stream.receive_bytes()  # the peer has everything: from now on the tensors may change


def take(replica: Replica, source: int) -> tuple[bytes, dict[str, torch.Tensor]]:
    """Receive the state of `source` into this rank's objects. Returns its extra and gradients. Raises PeerError."""
    stream = _Stream(source)
    extra, names, text, shown = (stream.receive_bytes() for _ in range(4))
    _compare(replica.describe(), tree.unflatten(names, []), source)
    memory = Memory.open(shown)
    stream.send_bytes(_WAITS if memory is None else _READS)
    stream.drain()
    small = [torch.empty(shape, dtype=dtype, device="cpu") for dtype, shape, _device in tree.layout(text)]
    tensors = [shards.shard_of(tensor).detach() for _, tensor in replica.tensors()]
    if memory is None:
        for tensor in (*tensors, *small):
            _receive_into(stream, tensor)
        stream.drain()
    else:
        hosts = [_host(tensor) for tensor in (*tensors, *small)]
        stream.read(memory, hosts)
        for tensor, host in zip(tensors, hosts, strict=False):
            if host.data_ptr() != tensor.data_ptr():
                tensor.copy_(host.view(tensor.dtype).view(tensor.shape))
    sums = list(stream.sums)
    theirs = tree.unflatten(stream.receive_bytes(), [])
    stream.send_bytes(_READS)
    stream.drain()
    if sums != theirs:
        wrong = [index for index, (mine, other) in enumerate(zip(sums, theirs, strict=False)) if mine != other]
        first = wrong[0] - _HEADS if wrong else len(sums)
        labels = [name for name, _ in replica.tensors()]
        what = labels[first] if 0 <= first < len(labels) else "the optimizers' state"
        raise PeerError(f"the state from rank {source} arrived changed: the checksum of {what} differs")
    parts = tree.unflatten(text, small)
    replica.load_small(parts)
    return extra, replica.split(parts[_GRADIENTS])


def _receive_into(stream: _Stream, target: torch.Tensor) -> None:
    if target.device.type == "cpu" and target.is_contiguous():
        stream.receive(tree.flat_bytes(target))
        return
    staging = torch.empty(target.shape, dtype=target.dtype, device="cpu")
    stream.receive(tree.flat_bytes(staging))
    stream.drain()
    target.copy_(staging)


def _compare(mine: list[list[Any]], theirs: Any, source: int) -> None:
    if mine == theirs:
        return
    here, there = {entry[0]: entry[1:] for entry in mine}, {entry[0]: entry[1:] for entry in theirs}
    for name in (*here, *there):
        if here.get(name) != there.get(name):
            raise UsageError(
                f"the model is not the same on every rank: {name} is {here.get(name, 'absent')} here "
                f"and {there.get(name, 'absent')} on rank {source}; set it up from the same arguments everywhere"
            )
    raise UsageError(f"the model lists its parameters in another order here than on rank {source}")
