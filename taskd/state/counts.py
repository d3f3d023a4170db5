"""Numbers in a loader that move while the script loads from it: a sampler's own epoch, a loader's position.

They are not registered, and those of a newcomer start anew. So this module looks at the numbers of a loader, of its
samplers, of its dataset and of their parts, before and after the first and the last loads of an epoch. Numbers that
have moved are kept. The next newcomer sets them. A rank that opens an epoch again starts with the numbers from the
beginning of that epoch.

Failure modes: a number that the script sets (`set_epoch`, a step in options that the dataset shares) must stay as the
script sets it, so a number that moves outside of a load is left alone; a number that appears late (`self.file`, and the
flag that it is open) belongs to other things that are made then, so it is left alone, too. *Not seen:* what is no
number (a list that grows), what is nested deeply, and an iterator, whose position nobody can tell (`hides`).
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator
from io import IOBase
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch.utils.data import DataLoader

from taskd.state.places import NUMBERS, space_of
from taskd.state.rng import is_generator

_DEEP = 5
_FEW = 64
"""A list or dict with more items is not looked into."""
_MOST = 256
"""At most this many objects are looked at."""
_ITERATORS = ("builtins", "itertools")
"""Modules of iterators that are not written in Python."""
Numbers = dict[str, float]
"""Numbers by their path in the loader."""
_Found = tuple[str, Any, Any, Any]
"""The path of something, its owner, its key there, and its value."""


class Counts:
    """The moving numbers of one loader."""

    def __init__(self) -> None:
        self.moving: set[str] = set()
        """Paths of the numbers that were seen to move."""
        self._before: Numbers = {}

    def begin(self, loader: Any) -> None:
        """Loading is about to begin."""
        self._before = numbers_in(loader)

    def end(self, loader: Any) -> None:
        """Loading has ended, and nothing else was done since `begin`."""
        before, now = self._before, numbers_in(loader)
        both = before.keys() & now.keys()
        self.moving |= {name for name in both if before[name] != now[name] and type(before[name]) is type(now[name])}

    def of(self, numbers: Numbers) -> Numbers:
        """Return those of these numbers that move."""
        return {name: number for name, number in numbers.items() if name in self.moving}


def numbers_in(loader: Any) -> Numbers:
    """Return all numbers that the search reaches."""
    found = ((name, part) for name, owner, _, part in _walk(loader) if not isinstance(owner, (tuple, type(None))))
    return {name: part for name, part in found if type(part) in NUMBERS}


def put(loader: Any, numbers: Numbers) -> None:
    """Set the numbers of this loader back to these."""
    wanted = [
        (name, owner, key)
        for name, owner, key, part in _walk(loader)
        if name in numbers and type(part) in NUMBERS and part != numbers[name]
    ]
    for name, owner, key in wanted:
        if isinstance(owner, (dict, list)):
            owner[key] = numbers[name]
        elif isinstance(owner, CellType):
            owner.cell_contents = numbers[name]
        else:
            object.__setattr__(owner, key, numbers[name])


def hides(loader: Any) -> str:
    """Return the path of an iterator in this loader, or an empty text. What stands for a loader under @taskd.resilient
    holds the steps of the session, which go on by themselves."""
    if getattr(loader, "takes_steps_early", False) is True:
        return ""
    return next((name for name, _, _, part in _walk(loader) if _is_iterator(part)), "")


def _is_iterator(part: Any) -> bool:
    kind = type(part)
    return hasattr(kind, "__next__") and kind.__module__ in _ITERATORS and not isinstance(part, IOBase)


def _walk(loader: Any) -> Iterator[_Found]:
    """Return the parts of this loader, the least nested first."""
    todo: deque[tuple[str, Any, int]] = deque([("", loader, _DEEP)])
    seen = {id(loader)}
    while todo:
        path, owner, deep = todo.popleft()
        for name, holder, key, part in _parts(path, owner):
            yield name, holder, key, part
            if deep and id(part) not in seen and len(seen) < _MOST and _may_hold(part):
                seen.add(id(part))
                todo.append((name, part, deep - 1))


def _may_hold(part: Any) -> bool:
    others = (str, bytes, float, int, type(None), type, ModuleType, torch.Tensor, torch.nn.Module, torch.Generator)
    return not isinstance(part, others) and not is_generator(part) and not _is_iterator(part)


def _parts(path: str, owner: Any) -> Iterator[_Found]:
    if isinstance(owner, FunctionType):
        for name, cell in zip(owner.__code__.co_freevars, owner.__closure__ or (), strict=False):
            try:
                yield f"{path}.{name}", cell, name, cell.cell_contents
            except ValueError:  # the cell is still empty
                continue
        return
    if isinstance(owner, MethodType):
        yield path, None, "", owner.__self__
        return
    if isinstance(owner, functools.partial):
        yield from ((f"{path}({at})", None, at, part) for at, part in enumerate((owner.func, *owner.args)))
        return
    if isinstance(owner, (dict, list, tuple)) and len(owner) <= _FEW:
        items = dict.items(owner) if isinstance(owner, dict) else enumerate(owner)
        yield from ((f"{path}[{key!r}]", owner, key, part) for key, part in [*items])
    for key, part in [*space_of(owner).items()]:
        if not _is_set_otherwise(owner, key):
            yield f"{path}.{key}", owner, key, part


def _is_set_otherwise(owner: Any, key: str) -> bool:
    """Whether other code restores this: the script sets a sampler's epoch, a DataLoader's iterator is noted apart."""
    return (key == "epoch" and hasattr(owner, "set_epoch")) or (key == "_iterator" and isinstance(owner, DataLoader))
