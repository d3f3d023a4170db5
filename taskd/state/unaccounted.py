"""Finds tensors for which nobody accounts: steps have left them, and no repair puts them back or gives them.

All tensors of the process are noted when the first step is handed out, and once more when the second one is (what the
first step made is mostly a mask or a table that each process makes for itself). After a repair, those are left over
that are not registered, not kept (rows.py), not looked at (leaves.py, held.py), and otherwise than they were noted.
Whether a later step computes with them is not judged here (leftover.py).

A note keeps nothing alive, not even a weak reference, with which torch could not swap the tensor for another one. It
has the tensor's id, address, version and a digest. So one that is made later in the same place counts as noted only if
it is the same in all of these. It does NOT see arrays of numpy, tensors of classes of their own, and what `gc.freeze()`
has hidden. What the first step leaves, and no later step changes, counts as made by each process for itself.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterable, Iterator, Set
from types import CellType, FrameType, FunctionType, GeneratorType, MethodType
from typing import Any, NamedTuple

import torch

from taskd.state.held import digest_of
from taskd.state.leftover import KINDS, memory_of
from taskd.state.living import living
from taskd.state.places import space_of
from taskd.state.plain import is_scalar
from taskd.state.strange import strange

_MOST = 4096
"""Of more tensors, only addresses and versions are compared."""
_WALKED = 1 << 20
"""At most this many objects are visited."""
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)


class _Noted(NamedTuple):
    memory: int
    version: int
    digest: int


class Census:
    """The tensors of this process that were there when its training began."""

    def __init__(self) -> None:
        self._noted: dict[int, _Noted] = {}

    def note(self, registered: Set[int]) -> None:
        """Note all that are there now, and were not noted before. `registered`: the memory of registered tensors."""
        for one in _followed(registered):
            noted = self._noted.get(id(one))
            if noted is None or noted.memory != memory_of(one):
                self._noted[id(one)] = _noted(one, close=len(self._noted) < _MOST)

    def accept(self, found: Iterable[Any]) -> None:
        """Note these as they are now: a newcomer gets them, or compares what it finds there."""
        for one in found:
            if type(one) in KINDS and _has_contents(one):
                self._noted[id(one)] = _noted(one, close=True)

    def left(self, registered: Set[int], accounted: Set[int]) -> list[torch.Tensor]:
        """Return those for which nobody accounts. `accounted`: ids of others that are seen to."""
        every = (one for one in _followed(registered) if id(one) not in accounted)
        return [one for one in every if not self._is_as_noted(one)]

    def _is_as_noted(self, tensor: torch.Tensor) -> bool:
        noted = self._noted.get(id(tensor))
        return noted is not None and noted == _noted(tensor, close=bool(noted.digest))


def reached(roots: Iterable[Any], classes: tuple[str, ...] = (), but: Set[int] = frozenset()) -> list[torch.Tensor]:
    """Return the tensors in these, and in their containers. `classes`: the beginnings of names of modules: objects of
    classes from there are searched, too. `but`: ids of objects that are not searched."""
    found, seen, todo = list[torch.Tensor](), {*but}, deque(roots)
    while todo and len(seen) < _WALKED:
        one = todo.popleft()
        kind = type(one)
        if id(one) in seen:
            continue
        seen.add(id(one))
        if issubclass(kind, torch.Tensor):
            found.append(one)
        elif issubclass(kind, _CONTAINERS) or (classes and kind.__module__.startswith(classes)):
            parts = gc.get_referents(one)
            todo.extend(part for part in parts if gc.is_tracked(part) or issubclass(type(part), torch.Tensor))
    return found


def _noted(tensor: torch.Tensor, close: bool) -> _Noted:
    version = -1 if tensor.is_inference() else tensor._version
    return _Noted(memory_of(tensor), version, digest_of([tensor]) if close else 0)


def _followed(registered: Set[int]) -> Iterator[torch.Tensor]:
    """Return the tensors that can be followed, and are in other memory."""
    for one in living(*KINDS):
        if type(one) in KINDS and memory_of(one) not in registered and _has_contents(one):
            yield one


def _has_contents(tensor: torch.Tensor) -> bool:
    if strange(tensor) or not tensor.numel() or torch.nn.parameter.is_lazy(tensor):
        return False
    return memory_of(tensor) != 0  # it may have been freed for a while


# ---- names ------------------------------------------------------------------------------------------------------


def name_of(value: Any, depth: int = 3) -> str:
    """Return where a value is kept, in words for the script's author. Empty: nobody can tell."""
    for holder in gc.get_referrers(value) if depth else ():
        kind = type(holder)
        if issubclass(kind, dict):
            found = _in_dict(holder, value, depth)
        elif kind in (list, tuple, deque, set):
            found = (_of_function(holder) if kind is tuple else "") or name_of(holder, depth - 1)
        elif kind is CellType:
            rows = [one for one in gc.get_referrers(holder) if type(one) is tuple]
            found = next((name for one in rows if (name := _of_function(one))), "")
        elif kind is GeneratorType:
            found = f"a variable of the generator {holder.__qualname__}"
        elif kind in (FrameType, MethodType, FunctionType) or kind.__module__.startswith("taskd."):
            found = ""
        else:
            found = _attribute(holder, value)
        if found:
            return found
    return ""


def _in_dict(holder: dict[Any, Any], value: Any, depth: int) -> str:
    key = next((key for key, item in [*holder.items()] if item is value), None)
    if "__name__" in holder and "__builtins__" in holder:
        return str(key)
    for owner in gc.get_referrers(holder):
        if type(owner) is not FrameType and space_of(owner) is holder:
            return f"{type(owner).__name__}.{key}"
    base = name_of(holder, depth - 1)
    shown = repr(key) if is_scalar(key) else f"a {type(key).__name__}"
    return f"{base}[{shown}]" if base else ""


def _of_function(holder: Any) -> str:
    """Return in which function these are the defaults, or the variables of the closure."""
    for one in gc.get_referrers(holder):
        if type(one) is FunctionType and one.__defaults__ is holder:
            return f"a default of {one.__qualname__}"
        if type(one) is FunctionType and one.__closure__ is holder:
            return f"a variable around {one.__qualname__}"
    return ""


def _attribute(holder: Any, value: Any) -> str:
    key = next((key for key, item in [*space_of(holder).items()] if item is value), None)
    return "" if key is None else f"{type(holder).__name__}.{key}"
