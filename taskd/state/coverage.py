"""Finds what a step changes without being registered: the one mistake that a repair would turn into wrong weights.

A newcomer takes over what was registered. Anything else that its script trains would start anew there and silently
differ from then on. So such a job must not be healed in place, and the user is told at the first step. Four things are
seen: an optimizer that steps (torch reports every one); a module whose contents differ from those at the loop's
beginning, after the first step or when the next loop begins; a scheduler or scaler that has moved (movers.py); and a
DistributedDataParallel around registered modules. The last is not a mistake. But it must be known, because its buckets
are part of the state, and its hook may keep state of its own. All are found once, when a loop begins, among all objects
that exist then.
What is registered must also be the same on every rank. Otherwise no rank could give a newcomer what the dead rank had.
Shards are recognized by their types, and which ranks have the same by the ranks of a DistributedDataParallel's process
group or by the mesh of the shards.

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

from taskd.state import fully_sharded, movers, parts, shards
from taskd.state.held import Held, is_array, leaves_of, place_of
from taskd.state.living import living
from taskd.state.movers import Mover
from taskd.state.replica import Replica
from taskd.state.strange import STARTS_OVER, strange

_UNKNOWN = "where nothing is put back or done again"
_CONSEQUENCE = f"{STARTS_OVER}; name it in taskd.session().register()"
_SAMPLE = 32
"""Elements of each tensor that are compared. The version is not enough: writing through `.data` does not raise it."""
_DEPTH = 8
_MOST_NAMES = 6
_TAKES = (
    "the loop takes what comes next from {names} by itself, and no repair puts an iterator or a queue back: {over}; "
    "let taskd.session().steps() go over one loader that gives all that a step needs"
)
SEALED = (
    "steps change {names} and compute with what it gives, and nobody can see what is in it, so no repair puts it back: "
    "{over}; keep what steps need of it in an object with state_dict() and load_state_dict(), and name that in "
    "taskd.session().register(local=...)"
)
IN_FILES = (
    "steps read {names}, which was written while the loops ran, and no repair puts a file back: {over}; keep what "
    "steps need of it in an object with state_dict() and load_state_dict(), and name that in "
    "taskd.session().register(local=...), or let session.between() read it"
)
_SHARED_BY_SOME = "the model's replicas are on some ranks, not on all, and which ranks hold the same is not known"
_HANDED_ON = (
    "the loop hands {names} on from step to step, and nobody registered that: {over}; keep it in an object with "
    "state_dict() and load_state_dict(), and name that in taskd.session().register(local=...)"
)


@dataclass(slots=True)
class _Tensor:
    """One tensor that is not registered, and how it was. The script may free the tensor at any time."""

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
        """Whether its contents lie at one of these addresses."""
        tensor = self.tensor()
        return tensor is not None and tensor.data_ptr() in places


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    row = tensor.detach()
    while row.dim() > 1:
        row = row[0]
    # As bytes, because NaN is unequal to itself.
    return row.reshape(-1)[:_SAMPLE].cpu().clone().view(torch.uint8)


@dataclass(slots=True)
class Coverage:
    """Compares what is registered (`replica`, and the rank's own objects in `local`) with what exists and changes."""

    replica: Replica
    local: dict[str, Any]
    flaws: list[str] = field(default_factory=list)
    """The flaws that were found, one sentence each."""
    _outside: list[tuple[str, list[_Tensor]]] = field(default_factory=list)
    _movers: list[Mover] = field(default_factory=list)
    _told: set[int] = field(default_factory=set)
    _held: dict[str, Held] = field(default_factory=dict)
    """What the loop hands on, by its name in the loop."""
    put_back: set[str] = field(default_factory=set)
    """Names of things handed on that were registered."""
    _unsure: set[str] = field(default_factory=set)
    """Names of things handed on that may have moved and were not registered."""
    _looks: int = 0
    """How often this loop's handed-on things were looked at."""

    def look(self) -> list[str]:
        """Find the modules that exist now: wrappers of registered ones, and modules that are not registered. Return the
        flaws that can be seen already."""
        for held in self._held.values():
            held.begin()
        self._looks = 0
        known = self.known_places()
        found_out = self._changed("the loop, or what stands between two of them,", known)
        alive = living(torch.nn.Module, *movers.KINDS)
        # A module whose constructor has not called Module.__init__ yet has no contents.
        found = [item for item in alive if issubclass(type(item), torch.nn.Module) and "_parameters" in vars(item)]
        inner = {id(child) for module in found for child in module.children()}
        trained = {place_of(tensor) for _, tensor in self.replica.tensors()}
        wrappers, outside = [], []
        for module in found:
            outer, wraps = id(module) not in inner, isinstance(module, DistributedDataParallel)
            if not outer and not wraps:
                continue  # its tensors belong to the module around it and are compared there
            unknown = [tensor for tensor in _tensors_of(module) if tensor.data_ptr() not in known]
            if wraps and trained.issuperset(tensor.data_ptr() for tensor in _tensors_of(module)):
                wrappers.append(module)  # the copy of a wrapper inside an average does not count
            if outer and unknown:
                outside.append((type(module).__name__, [_Tensor.of(tensor) for tensor in unknown]))
        self.replica.wrappers = wrappers
        self._outside = outside
        self._movers = movers.unregistered(alive, (*self.replica.others.values(), *self.local.values()))
        found_out += [] if self.flaws else self._shards()
        self.flaws += found_out
        return found_out

    def _shards(self) -> list[str]:
        """Return a sentence, at most one, about registered objects that only this rank or only some ranks have."""
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
        """Return digests of the unregistered schedulers and scalers, as they were when the loop began."""
        return movers.digests(self._movers)

    def check(self) -> list[str]:
        """Return what is new since the last check: things that were changed or have moved without being registered."""
        if self.flaws:
            return []  # one flaw is enough, and others may follow from it
        found = [*self._changed("the step"), *self._own_shards()]
        for kind in filter(None, (mover.moved() for mover in self._movers)):
            found.append(f"the step moves a {kind} that is not registered: {_CONSEQUENCE}")
        self.flaws += found
        return found

    def _own_shards(self) -> list[str]:
        """Return a sentence, at most one, about a state of an optimizer that is split in another way than the model, so
        that the ranks with this rank's part have other shards of it."""
        ranks = shards.alike(tensor for _, tensor in self.replica.tensors())
        if ranks is None:
            return []
        for name, optimizer in self.replica.optimizers.items():
            for state in optimizer.state.values():
                for key, value in state.items():
                    if any(not ranks <= shards.twins(one) for one in shards.inside(value)):
                        return [f"{name} keeps {key} in shards that have no copy: {STARTS_OVER}"]
        return []

    def _changed(self, who: str, known: Set[int] = frozenset()) -> list[str]:
        """Return a sentence for each unregistered module whose contents have changed since this loop began. `known`:
        addresses of tensors that were registered since."""
        found = []
        for name, tensors in self._outside if not self.flaws else ():
            if count := sum(tensor.changed() for tensor in tensors if not tensor.is_at(known)):
                what = "a tensor" if count == 1 else f"{count} tensors"
                found.append(f"{who} changes {what} of a module that is not registered ({name}): {_CONSEQUENCE}")
        return found

    def takes_from(self, names: list[str]) -> list[str]:
        """Note that the loop takes items from these iterators and queues, beside the loader of steps(). Return a
        sentence, if that is new."""
        if not names or self.flaws:
            return []
        self.flaws.append(_TAKES.format(names=listed(names), over=STARTS_OVER))
        return self.flaws[-1:]

    def keeps(self, where: str, names: list[str]) -> list[str]:
        """Note that steps keep something where no repair puts it back. `where`: SEALED or IN_FILES. Return a sentence
        about that."""
        found = [where.format(names=listed(names), over=STARTS_OVER)] if names else []
        self.flaws += [] if self.flaws else found
        return found

    def outside(self, done: list[str]) -> list[str]:
        """Return sentences about actions in the loop and outside of its steps, if they are new."""
        sentences = [f"{what} in the loop and outside of `with step:`, {_UNKNOWN}: {STARTS_OVER}" for what in done]
        found = [sentence for sentence in sentences if sentence not in self.flaws]
        self.flaws += found
        return found

    def hands_on(self, held: dict[str, Any], closely: bool = False, again: bool = False) -> list[str]:
        """Look at what the loop hands on from step to step (`held`, by name). Return a sentence if some of it has
        tensors that have moved and are not registered. For `closely` and `again` see Held.look."""
        if self.flaws:
            return []  # one flaw rules out a repair, and looking would copy from the device
        if closely:
            self._look_again({name: value for name, value in held.items() if name in self.put_back})
        moved, unsure = list[str](), list[str]()
        for name, value in held.items():
            if name not in self.put_back:
                one = self._held.setdefault(name, Held(self._looks))
                one.look(value, closely, again)
                moved += [name] if one.moved else []
                unsure += [name] if one.perhaps else []
        self._looks += 1
        fresh = {name: held[name] for name in unsure if name not in self._unsure}
        self._unsure.update(self.unknown(fresh), (name for name, value in fresh.items() if not leaves_of(value)))
        new = self.unknown({name: held[name] for name in moved})
        self.put_back |= {name for name in moved if name not in new and leaves_of(held[name])}
        if new:
            self.flaws.append(_HANDED_ON.format(names=listed(new), over=STARTS_OVER))
        return self.flaws[-1:] if new else []

    def handed(self) -> dict[str, int]:
        """Return, by name, a digest of each handed-on thing that the beginning step finds, unless a repair puts it back
        (then nobody looks at it any more)."""
        held = {name: held for name, held in self._held.items() if held.looks and name not in self.put_back}
        return {name: one.digest for name, one in held.items()} if not self.flaws else {}

    def _look_again(self, put_back: dict[str, Any]) -> None:
        """A name that stood for something registered may stand for something else by now."""
        for name in self.unknown(put_back):
            self.put_back.remove(name)
            self._held.pop(name)

    def perhaps(self, held: dict[str, Any]) -> list[str]:
        """Return the names of things that a repair may leave unrestored: among `held`, and all that hands_on saw."""
        return sorted({*self.unknown(held), *self._unsure})

    def unknown(self, held: dict[str, Any]) -> list[str]:
        """Return the names of things with unregistered tensors."""
        known = self.known_places() if held else set[int]()
        places = {name: map(place_of, leaves_of(value)) for name, value in held.items()}
        return sorted(name for name, found in places.items() if any(place not in known for place in found))

    def rebase(self) -> None:
        """Forget all changes so far: they come from a newcomer's rehearsal and do not count."""
        for at, (name, tensors) in enumerate(self._outside):
            left = [one.tensor() for one in tensors]
            self._outside[at] = name, [_Tensor.of(tensor) for tensor in left if tensor is not None]
        self._movers = [mover.again() for mover in self._movers]

    def steps(self, optimizer: torch.optim.Optimizer) -> str:
        """An optimizer steps. Return a sentence if it is not registered and was not seen before."""
        if id(optimizer) in self._told or any(optimizer is one for one in self.replica.optimizers.values()):
            return ""
        self._told.add(id(optimizer))
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        kind = f"{type(optimizer).__name__} of {count} parameter{'' if count == 1 else 's'}"
        self.flaws.append(f"the step uses an optimizer that is not registered ({kind}): {_CONSEQUENCE}")
        return self.flaws[-1]

    def known_places(self) -> set[int]:
        """Return the addresses of registered tensors. Views and wrappers have the same address."""
        known = {place_of(tensor) for _, tensor in self.replica.tensors()}
        for item in (*self.replica.others.values(), *self.local.values()):
            state = item.state_dict() if hasattr(item, "state_dict") else item
            known |= {place_of(tensor) for tensor in _tensors_in(state, _DEPTH)}
        return known


def listed(names: Iterable[str]) -> str:
    """Return the names as a text for a sentence."""
    shown = sorted(names)
    return ", ".join(shown[:_MOST_NAMES]) + (
        f" and {len(shown) - _MOST_NAMES} more" if len(shown) > _MOST_NAMES else ""
    )


def _kind(module: str, name: str) -> type | tuple[()]:
    """Return a class if its module is imported already. We do not import it ourselves, because that takes a second."""
    found: type | tuple[()] = getattr(sys.modules.get(module), name, ())
    return found


def _tensors_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Return the tensors of this module that have contents to compare."""
    for tensor in map(shards.shard_of, (*fully_sharded.parameters_of(module), *module.buffers())):
        if not torch.nn.parameter.is_lazy(tensor) and not strange(tensor) and tensor.numel():
            yield tensor


def _tensors_in(value: Any, depth: int) -> Iterator[Any]:
    """Return the tensors and arrays in this value."""
    if isinstance(value, torch.Tensor) or is_array(value):
        yield value
    elif depth and isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(item, depth - 1)
