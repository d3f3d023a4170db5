"""Computes digests of what a replica holds, unit by unit. Ranks compare them to prove that they hold the same.

Units are parameters, the optimizers' state and settings, the state of schedulers and other registered objects, and the
modes of modules. All of these must be equal on all ranks, and their order is the same on all ranks. Buffers of modules
are this rank's own and are not included. A large tensor is several units. If there are too many units, neighbours are
joined. The units stay the same as long as nothing new is registered and no optimizer makes new state. A tensor is
looked up again each time, because optimizers may replace it.

Tensors on the host are read in place, at the speed of memory (csrc/native/digest.hpp). Tensors on a device are summed
up there, and one number is fetched. What cannot be read (a tensor of a strange class, an object in a state) has no
digest and is named in `missing`. This module does NOT compare anything.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from taskd.core import limits
from taskd.core.words import cut, join
from taskd.errors import UsageError
from taskd.state import tree
from taskd.state.parts import WHOLE
from taskd.state.replica import Replica, follows
from taskd.state.shards import shard_of

_ODD = 0x1E3779B97F4A7C15
_PLAIN_WEIGHT = 32 << 10
"""The cost of a value that is not a tensor, in bytes of a tensor."""
_LEAST_WEIGHT = 16 << 10
_DEPTH = 6
_SHOWN = 3
_KINDS = (torch.Tensor, torch.nn.Parameter)

States = dict[str, Any]
"""The states that objects gave for this proof. No object is asked twice."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A value, or a part of a tensor."""

    name: str
    fetch: Callable[[States], Any]
    weight: int
    form: str = ""
    begin: int = 0
    length: int = -1  # bytes; -1: to the end
    of: str = ""  # of a part: what it is a part of

    @property
    def whole(self) -> str:
        """The name of the whole value."""
        return self.of or self.name


@dataclass(slots=True)
class Digests:
    """The units of one rank's replica."""

    replica: Replica
    read: Callable[[Sequence[tuple[int, int]]], list[int]]
    """Returns the digests of places in memory, each with its address and its number of bytes."""
    units: list[list[Piece]] = field(default_factory=list)
    number: int = 0
    """A number that is the same on ranks with the same units."""
    harmless: int = 0
    """How many of the first units change no weight by themselves."""
    missing: str = ""
    taken: bool = False
    """The contents came from another rank in a repair."""
    on_device: bool = False
    """Some tensor is not on the host, so its digest has to be waited for."""
    _signature: tuple[Any, ...] = ()

    def look(self) -> bool:
        """Find the units again, if they may have changed. Return whether it was done."""
        replica = self.replica
        optimizers = tuple((len(one.state), len(one.param_groups)) for one in replica.optimizers.values())
        signature = (len(replica.models), len(replica.others), optimizers)
        if signature == self._signature:
            return False
        self._signature = signature
        whole = [*_modes(replica), *_others(replica)]
        harmless = {piece.name for piece in whole}
        # Causes come before their consequences, because the first unit that differs gives an incident its name.
        whole += [*_settings(replica), *_parameters(replica), *_optimizers(replica)]
        states: States = {}
        unread = [(piece.name, why) for piece in whole if (why := _unreadable(piece, states))]
        self.missing = _missing(unread)
        strange = {name for name, _ in unread}
        pieces = [piece for piece in whole if piece.name not in strange]
        most = max(limits.PROOF_UNIT_BYTES, -(-2 * sum(piece.weight for piece in pieces) // limits.PROOF_UNITS))
        pieces = [part for piece in pieces for part in _parts(piece, most, states)]
        each = max(-(-len(pieces) // (limits.PROOF_UNITS - 1)), 1)
        border = sum(piece.whole in harmless for piece in pieces)
        joined = [pieces[at : min(at + each, border)] for at in range(0, border, each)]
        self.harmless = len(joined)
        self.units = joined + [pieces[at : at + each] for at in range(border, len(pieces), each)]
        values = (shard_of(piece.fetch(states)) for piece in pieces if piece.form)
        self.on_device = any(isinstance(one, torch.Tensor) and one.device.type != "cpu" for one in values)
        forms = [[piece.name, piece.form, piece.begin, piece.length] for piece in pieces]
        part = [replica.part] if replica.part > WHOLE else []
        self.number = _number([forms[border:], *part]) >> 1 << limits.PROOF_HALF | _number([each, forms, *part])
        return True

    def forget(self) -> None:
        """Find the units again when they are next needed. A newcomer finds what there is now, so all ranks must."""
        self._signature = ()

    def sizes(self) -> list[int]:
        """Return the cost of each unit, in bytes."""
        return [sum(piece.weight for piece in unit) for unit in self.units]

    def names(self, first: int, end: int) -> str:
        """Return the names of these units, one per line."""
        units = self.units[first:end]
        most = min(limits.MAX_NAME, limits.PROOF_NAMES // max(len(self.units), 1)) - 1
        return "\n".join(_shortened(_name(unit), most) for unit in units)

    def of(self, first: int, end: int) -> bytes:
        """Return the digests of these units, one after another."""
        states: States = {}
        words: list[int] = []
        places: list[tuple[int, int]] = []
        holders: list[torch.Tensor] = []  # keeps the tensors alive while they are read
        for piece in (piece for unit in self.units[first:end] for piece in unit):
            value = shard_of(piece.fetch(states))
            if not isinstance(value, torch.Tensor):
                words.append(_plain(value))
                continue
            if value.device.type != "cpu":
                words.append(_on_device(value, piece.begin, piece.length))
                continue
            held = value if _dense(value) else value.detach().contiguous()
            holders.append(held)
            length = held.nbytes - piece.begin if piece.length < 0 else piece.length
            places.append((held.data_ptr() + piece.begin, length))
            words.append(-1)
        found = iter(self.read(places))
        words = [next(found) if word < 0 else word for word in words]
        data = b"".join(word.to_bytes(limits.DIGEST_WORD, "little") for word in words)
        return data if len(words) == end - first else self._put_together(first, end, data)

    def _put_together(self, first: int, end: int, data: bytes) -> bytes:
        found, at, size = b"", 0, limits.DIGEST_WORD
        for unit in self.units[first:end]:
            found += hashlib.blake2b(data[at : at + size * len(unit)], digest_size=size).digest()
            at += size * len(unit)
        return found


# ---- what there is ------------------------------------------------------------------------------------------------


def _number(value: Any) -> int:
    """Return a number of half a layout's bits for a value of plain objects."""
    data = hashlib.blake2b(json.dumps(value).encode(), digest_size=limits.PROOF_HALF // 8).digest()
    return int.from_bytes(data, "little")


def _modes(replica: Replica) -> Iterator[Piece]:
    for label, model in replica.models.items():
        modules, parameters = [*model.modules()], [*model.parameters()]
        weight = _PLAIN_WEIGHT + 64 * (len(modules) + len(parameters))
        yield Piece(f"{label}, the modes of its modules", partial(_training, modules), weight, str(len(modules)))
        yield Piece(f"{label}, what learns", partial(_learns, parameters), weight, str(len(parameters)))


def _training(modules: list[torch.nn.Module], _: States) -> Any:
    return bytes(module.training for module in modules)


def _learns(parameters: list[torch.nn.Parameter], _: States) -> Any:
    return bytes(parameter.requires_grad for parameter in parameters)


def _parameters(replica: Replica) -> Iterator[Piece]:
    for name, tensor in replica.tensors():
        if isinstance(tensor, torch.nn.Parameter):
            yield _tensor(name, tensor, partial(_same, tensor))


def _same(value: Any, _: States) -> Any:
    return value


def _settings(replica: Replica) -> Iterator[Piece]:
    for label, optimizer in replica.optimizers.items():
        for at, group in enumerate(optimizer.param_groups):
            for key in sorted(key for key in group if key != "params"):
                yield from _leaves(f"{label}, {key} of group {at}", group[key], partial(_setting, optimizer, at, key))


def _optimizers(replica: Replica) -> Iterator[Piece]:
    names = {id(tensor): name for name, tensor in replica.tensors()}
    for label, optimizer in replica.optimizers.items():
        for group in optimizer.param_groups:
            for number, parameter in enumerate(group["params"]):
                state = optimizer.state.get(parameter, {})
                owner = names.get(id(parameter), f"parameter {number}")
                for key in sorted(state, key=str):
                    fetch = partial(_state_item, optimizer, parameter, key)
                    yield from _leaves(f"{label}, {key} of {owner}", state[key], fetch)


def _setting(optimizer: torch.optim.Optimizer, at: int, key: str, _: States) -> Any:
    """Return a setting of the current group: an optimizer that loads a state makes new groups."""
    return optimizer.param_groups[at][key]


def _state_item(optimizer: torch.optim.Optimizer, parameter: Any, key: Any, _: States) -> Any:
    return optimizer.state[parameter][key]


def _others(replica: Replica) -> Iterator[Piece]:
    for label, item in replica.others.items():
        if follows(item):  # its buffers are this rank's own
            yield from _leaves(f"{label}, n_averaged", item.n_averaged, partial(_attribute, item, "n_averaged"))
            for name, tensor in item.module.named_parameters():
                yield _tensor(f"{label}.{name}", tensor, partial(_same, tensor))
        else:
            yield from _leaves(label, item.state_dict(), partial(_state_of, label, item), top=True)


def _attribute(item: Any, name: str, _: States) -> Any:
    return getattr(item, name)


def _state_of(label: str, item: Any, states: States) -> Any:
    if label not in states:
        states[label] = item.state_dict()
    return states[label]


def _leaves(
    name: str, value: Any, fetch: Callable[[States], Any], depth: int = _DEPTH, top: bool = False
) -> Iterator[Piece]:
    """Return pieces for each tensor in a value, and for the rest. The top of a state is split by its keys."""
    if isinstance(value, torch.Tensor):
        yield _tensor(name, value, fetch)
    elif isinstance(value, (dict, list, tuple)) and depth and (top or _has_tensors(value, depth)):
        pairs = sorted(value.items(), key=str) if isinstance(value, dict) else [*enumerate(value)]
        for key, inner in pairs:
            yield from _leaves(f"{name}[{key!r}]", inner, partial(_inner, fetch, key), depth - 1)
    else:
        yield Piece(name, fetch, _PLAIN_WEIGHT)


def _inner(fetch: Callable[[States], Any], key: Any, states: States) -> Any:
    return fetch(states)[key]


def _has_tensors(value: Any, depth: int) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if not depth or not isinstance(value, (dict, list, tuple)):
        return False
    return any(_has_tensors(one, depth - 1) for one in (value.values() if isinstance(value, dict) else value))


def _tensor(name: str, tensor: torch.Tensor, fetch: Callable[[States], Any]) -> Piece:
    tensor = shard_of(tensor)  # a digest is made of what this rank has, and compared with its twins
    form = f"{tensor.dtype}{list(tensor.shape)}"
    try:
        size = tensor.numel() * tensor.element_size()
    except (RuntimeError, TypeError):  # its class has no contents, or none here
        size = 0
    return Piece(name, fetch, max(size, _LEAST_WEIGHT), form)


def _parts(piece: Piece, most: int, states: States) -> Iterator[Piece]:
    """Split a large tensor into pieces of at most this many bytes."""
    if piece.weight <= most or not piece.form or not isinstance(piece.fetch(states), torch.Tensor):
        yield piece
        return
    step = most - most % limits.DIGEST_WORD
    for at, begin in enumerate(range(0, piece.weight, step)):
        length = min(step, piece.weight - begin)
        name = f"{piece.name}, MiB {begin >> 20} to {(begin + length) >> 20}" if at or length < piece.weight else ""
        yield Piece(name or piece.name, piece.fetch, length, piece.form, begin, length, piece.name)


# ---- what cannot be read ------------------------------------------------------------------------------------------


def _unreadable(piece: Piece, states: States) -> str:
    """Return why no digest of this can be computed. Empty: it can."""
    value = shard_of(piece.fetch(states))
    if isinstance(value, torch.Tensor):
        if type(value) not in _KINDS:
            return f"a {type(value).__name__}"
        return "" if value.layout is torch.strided and not value.is_meta else f"a tensor with layout {value.layout}"
    try:
        tree.flatten(value)
    except UsageError:
        return f"a {type(value).__name__}"
    return ""


def _missing(unread: list[tuple[str, str]]) -> str:
    if not unread:
        return ""
    names = [f"{name} ({why})" for name, why in unread[:_SHOWN]]
    more = [f"{len(unread) - _SHOWN} more"] if len(unread) > _SHOWN else []
    return cut(f"no digest can be computed of {join([*names, *more])}")


# ---- digests ------------------------------------------------------------------------------------------------------


def _plain(value: Any) -> int:
    text, tensors = tree.flatten(value)
    data = text + b"".join(map(tree.bytes_of, tensors))
    return int.from_bytes(hashlib.blake2b(data, digest_size=limits.DIGEST_WORD).digest(), "little") or 1


def _dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill their memory without gaps, in any order. The order is the same on all ranks."""
    if tensor.is_contiguous():
        return True
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs if size > 1) == tensor.numel()


def _on_device(tensor: torch.Tensor, begin: int, length: int) -> int:
    """Return a sum of all words, each mixed with its position in an invertible way: no change of one word is missed."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    flat = flat[begin:] if length < 0 else flat[begin : begin + length]
    rest = -flat.numel() % limits.DIGEST_WORD
    words = torch.nn.functional.pad(flat, (0, rest)).view(torch.int64)
    odd = torch.arange(words.numel(), device=words.device, dtype=torch.int64) * (2 * _ODD) + 1
    mixed = words * odd
    mixed = (mixed ^ ((mixed >> 32) & 0xFFFFFFFF)) * odd
    return (int(mixed.sum().item()) + length) % 2**64 or 1


def _name(unit: list[Piece]) -> str:
    return unit[0].name if len(unit) == 1 else f"{unit[0].name} to {unit[-1].name}"


def _shortened(name: str, most: int) -> str:
    """Return the name without its middle, if it is too long, because both ends say more."""
    name = " ".join(name.split())
    return name if len(name) <= most else f"{name[: most // 2 - 2]}...{name[-(most // 2 - 2) :]}"
