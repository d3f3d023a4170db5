"""Finds what a step changes and nobody registered: the one mistake that a repair would turn into wrong weights.

A newcomer takes over what was registered. Whatever else its script trains would start anew there and silently differ
from then on, so such a job must not be healed in place, and the user is told at the first step. Four things are seen:
an optimizer that steps (torch tells of every one), a module that has other contents than when its loop began, after the
first step or when the next loop begins, a scheduler or scaler that has moved (movers.py), and a DistributedDataParallel
around registered modules, which is not a mistake but must be known, because its buckets are part of the state and its
hook may keep some of its own. All are found once, when a loop begins, among all objects that live then.
What is registered must also be the same on every rank, else nobody could give a newcomer what the dead rank had: shards
are seen by their types, and by the ranks over which DistributedDataParallel spans.

What it does NOT see: tensors that a loop keeps where flow.py does not look, and modules made later in the loop whose
optimizer is registered. It repairs nothing.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from taskd.state import movers, parts
from taskd.state.held import Held, is_array, leaves_of, place_of
from taskd.state.living import living
from taskd.state.movers import Mover
from taskd.state.replica import Replica
from taskd.state.strange import STARTS_OVER, strange

_UNKNOWN = "where nothing is put back or done again"
_CONSEQUENCE = f"{STARTS_OVER}; name it in taskd.session().register()"
_SAMPLE = 32
"""Elements of each tensor that are compared: a version alone does not grow when a script writes through `.data`."""
_DEPTH = 8
_MOST_NAMES = 6
_TAKES = (
    "the loop takes what comes next from {names} by itself, and no repair puts an iterator back: {over}; let "
    "taskd.session().steps() go over one loader that gives all that a step needs"
)
_SHARED_BY_SOME = "the model's replicas are on some ranks, not on all, and which ranks hold the same is not known"
_HANDED_ON = (
    "the loop hands {names} on from step to step, and nobody registered that: {over}; keep it in an object with "
    "state_dict() and load_state_dict(), and name that in taskd.session().register(local=...)"
)


@dataclass(slots=True)
class _Tensor:
    """One tensor outside of what is registered, and how it was. It may be thrown away at any time."""

    tensor: weakref.ref[torch.Tensor]
    version: int
    sample: torch.Tensor

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Tensor:
        return cls(weakref.ref(tensor), tensor._version, _sample(tensor))

    def changed(self) -> bool:
        tensor = self.tensor()
        if tensor is None:
            return False
        return tensor._version != self.version or not torch.equal(_sample(tensor), self.sample)

    def is_at(self, places: Set[int]) -> bool:
        """Whether its contents lie at one of these."""
        tensor = self.tensor()
        return tensor is not None and tensor.data_ptr() in places


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    row = tensor.detach()
    while row.dim() > 1:
        row = row[0]
    # As bytes, because not-a-number is unequal to itself.
    return row.reshape(-1)[:_SAMPLE].cpu().clone().view(torch.uint8)


@dataclass(slots=True)
class Coverage:
    """What is registered (`replica`, and `local`, the rank's own objects) against what lives and moves."""

    replica: Replica
    local: dict[str, Any]
    flaws: list[str] = field(default_factory=list)
    """What was found, one sentence each."""
    _outside: list[tuple[str, list[_Tensor]]] = field(default_factory=list)
    _movers: list[Mover] = field(default_factory=list)
    _told: set[int] = field(default_factory=set)
    _held: dict[str, Held] = field(default_factory=dict)
    """What the loop hands on, by its name there."""
    _put_back: set[str] = field(default_factory=set)
    """What of it was registered."""
    _unsure: set[str] = field(default_factory=set)
    """What of it may have moved, and was not."""
    _looks: int = 0
    """At what this loop hands on."""

    def look(self) -> list[str]:
        """Find the modules that live now: those around registered ones, and those that nobody registered. What is wrong
        with the registered ones already."""
        for held in self._held.values():
            held.begin()
        self._looks = 0
        known = self.known_places()
        found_out = self._changed("the loop, or what stands between two of them,", known)
        alive = living(torch.nn.Module, *movers.KINDS)
        # One whose constructor has not come to Module's has no contents yet.
        found = [item for item in alive if issubclass(type(item), torch.nn.Module) and "_parameters" in vars(item)]
        inner = {id(child) for module in found for child in module.children()}
        trained = {place_of(tensor) for _, tensor in self.replica.tensors()}
        wrappers, outside = [], []
        for module in found:
            outer, wraps = id(module) not in inner, isinstance(module, DistributedDataParallel)
            if not outer and not wraps:
                continue  # what it has belongs to the one around it, whose tensors are compared
            unknown = [tensor for tensor in _tensors_of(module) if tensor.data_ptr() not in known]
            if wraps and trained.issuperset(tensor.data_ptr() for tensor in _tensors_of(module)):
                wrappers.append(module)  # not the copy of one that an average holds
            if outer and unknown:
                outside.append((type(module).__name__, [_Tensor.of(tensor) for tensor in unknown]))
        self.replica.wrappers = wrappers
        self._outside = outside
        self._movers = movers.unregistered(alive, (*self.replica.others.values(), *self.local.values()))
        found_out += [] if self.flaws else self._shards()
        self.flaws += found_out
        return found_out

    def _shards(self) -> list[str]:
        """What of the registered objects only this rank, or only some ranks, have; one sentence at most."""
        for name, optimizer in self.replica.optimizers.items():
            if isinstance(optimizer, _kind("torch.distributed.optim", "ZeroRedundancyOptimizer")):
                return [f"{name} is sharded ({type(optimizer).__name__}), and shards have no copy: {STARTS_OVER}"]
        self.replica.part = parts.part_of(self.replica) if dist.is_initialized() else parts.WHOLE
        if self.replica.part == parts.UNKNOWN:
            return [f"{_SHARED_BY_SOME}: {STARTS_OVER}"]
        kept = movers.hook_with_state((*self.replica.models.values(), *self.replica.wrappers))
        if kept:
            return [
                f"the model's communication hook keeps state of its own ({kept}), of which no copy is: {STARTS_OVER}"
            ]
        return []

    def standing(self) -> dict[str, int]:
        """Digests of schedulers and scalers that nobody registered, as they stood when the loop began."""
        return movers.digests(self._movers)

    def check(self) -> list[str]:
        """What has turned out since the last time: what was changed or has moved though nobody registered it."""
        if self.flaws:
            return []  # one is enough, and the others may be its consequences
        found = self._changed("the step")
        for kind in filter(None, (mover.moved() for mover in self._movers)):
            found.append(f"the step moves a {kind} that is not registered: {_CONSEQUENCE}")
        self.flaws += found
        return found

    def _changed(self, who: str, known: Set[int] = frozenset()) -> list[str]:
        """Modules that nobody registered and that have other contents than when this loop began. `known`: places of
        what was registered since."""
        found = []
        for name, tensors in self._outside if not self.flaws else ():
            if count := sum(tensor.changed() for tensor in tensors if not tensor.is_at(known)):
                what = "a tensor" if count == 1 else f"{count} tensors"
                found.append(f"{who} changes {what} of a module that is not registered ({name}): {_CONSEQUENCE}")
        return found

    def takes_from(self, names: list[str]) -> list[str]:
        """The loop takes what comes next from these, which are no loaders of steps(). A sentence, if that is new."""
        if not names or self.flaws:
            return []
        self.flaws.append(_TAKES.format(names=listed(names), over=STARTS_OVER))
        return self.flaws[-1:]

    def outside(self, done: list[str]) -> list[str]:
        """What of this, done in the loop and outside of its steps, is new."""
        sentences = [f"{what} in the loop and outside of `with step:`, {_UNKNOWN}: {STARTS_OVER}" for what in done]
        found = [sentence for sentence in sentences if sentence not in self.flaws]
        self.flaws += found
        return found

    def hands_on(self, held: dict[str, Any], closely: bool = False, again: bool = False) -> list[str]:
        """What of this, that the loop hands on from step to step by its name, has tensors that have moved, and that
        nobody registered. For `closely` and `again` see Held.look."""
        if self.flaws:
            return []  # there will be no repair: one is enough, and looking takes contents from the device
        if closely:
            self._look_again({name: value for name, value in held.items() if name in self._put_back})
        moved, unsure = list[str](), list[str]()
        for name, value in held.items():
            if name not in self._put_back:
                one = self._held.setdefault(name, Held(self._looks))
                one.look(value, closely, again)
                moved += [name] if one.moved else []
                unsure += [name] if one.perhaps else []
        self._looks += 1
        fresh = {name: held[name] for name in unsure if name not in self._unsure}
        self._unsure.update(self.unknown(fresh), (name for name, value in fresh.items() if not leaves_of(value)))
        new = self.unknown({name: held[name] for name in moved})
        self._put_back |= {name for name in moved if name not in new and leaves_of(held[name])}
        if new:
            self.flaws.append(_HANDED_ON.format(names=listed(new), over=STARTS_OVER))
        return self.flaws[-1:] if new else []

    def handed(self) -> dict[str, int]:
        """What the step that begins finds of what the loop hands on: by name, a digest."""
        return {name: held.digest for name, held in self._held.items() if held.looks} if not self.flaws else {}

    def _look_again(self, put_back: dict[str, Any]) -> None:
        """A name that stood for something registered may stand for something else by now."""
        for name in self.unknown(put_back):
            self._put_back.remove(name)
            self._held.pop(name)

    def perhaps(self, held: dict[str, Any]) -> list[str]:
        """The names of what a repair may leave behind: of this, and of all that hands_on has seen."""
        return sorted({*self.unknown(held), *self._unsure})

    def unknown(self, held: dict[str, Any]) -> list[str]:
        """The names of what has tensors that nobody registered."""
        known = self.known_places() if held else set[int]()
        places = {name: map(place_of, leaves_of(value)) for name, value in held.items()}
        return sorted(name for name, found in places.items() if any(place not in known for place in found))

    def rebase(self) -> None:
        """What happened so far (a newcomer's rehearsal) changed nothing that counts."""
        for at, (name, tensors) in enumerate(self._outside):
            left = [one.tensor() for one in tensors]
            self._outside[at] = name, [_Tensor.of(tensor) for tensor in left if tensor is not None]
        self._movers = [mover.again() for mover in self._movers]

    def steps(self, optimizer: torch.optim.Optimizer) -> str:
        """An optimizer steps by itself; a sentence when it is not registered and was not seen before."""
        if id(optimizer) in self._told or any(optimizer is one for one in self.replica.optimizers.values()):
            return ""
        self._told.add(id(optimizer))
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        kind = f"{type(optimizer).__name__} of {count} parameter{'' if count == 1 else 's'}"
        self.flaws.append(f"the step uses an optimizer that is not registered ({kind}): {_CONSEQUENCE}")
        return self.flaws[-1]

    def known_places(self) -> set[int]:
        """Where the contents of registered tensors lie: views and wrappers show the same place."""
        known = {place_of(tensor) for _, tensor in self.replica.tensors()}
        for item in (*self.replica.others.values(), *self.local.values()):
            state = item.state_dict() if hasattr(item, "state_dict") else item
            known |= {place_of(tensor) for tensor in _tensors_in(state, _DEPTH)}
        return known


def listed(names: Iterable[str]) -> str:
    """In a sentence."""
    shown = sorted(names)
    return ", ".join(shown[:_MOST_NAMES]) + (
        f" and {len(shown) - _MOST_NAMES} more" if len(shown) > _MOST_NAMES else ""
    )


def _kind(module: str, name: str) -> type | tuple[()]:
    """A class that no object here has unless somebody has imported its module, which takes a second: nobody for us."""
    found: type | tuple[()] = getattr(sys.modules.get(module), name, ())
    return found


def _tensors_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Those that have contents to be compared."""
    for tensor in (*module.parameters(), *module.buffers()):
        if not torch.nn.parameter.is_lazy(tensor) and not strange(tensor) and tensor.numel():
            yield tensor


def _tensors_in(value: Any, depth: int) -> Iterator[Any]:
    """And arrays."""
    if isinstance(value, torch.Tensor) or is_array(value):
        yield value
    elif depth and isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(item, depth - 1)
