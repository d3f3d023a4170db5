"""Numbers in what a script loads from that move while it is loaded from: a sampler's own epoch, a loader's position.

Nobody registered them, and a newcomer's begin anew. So the numbers of a loader, of its samplers, its dataset and of
what these have are looked at before and behind the first and the last loads of an epoch, and those that have moved are
kept: the next newcomer sets them, and whoever opens an epoch again begins with those of its beginning.

Failure modes: a number that the script sets (`set_epoch`, a step in options that a dataset knows, too) must stay what
the script says, so one that moves at other times than in a load is left; one that comes into being late (`self.file`,
and the flag that says that it is open) belongs to what else is made then, so it is left, too. *Not seen:* what is no
number (a list that grows), what is far inside, and an iterator, which nobody can tell the place of (`hides`).
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
"""Items of one list or dict."""
_MOST = 256
"""Objects that are looked at."""
_ITERATORS = ("builtins", "itertools")
"""Modules of iterators that are not written in Python."""
Numbers = dict[str, float]
"""By where they are."""
_Found = tuple[str, Any, Any, Any]
"""Where something is, whose it is and under which key, and what it is."""


class Counts:
    """Of one loader."""

    def __init__(self) -> None:
        self.moving: set[str] = set()
        """Where those are that were seen to move."""
        self._before: Numbers = {}

    def begin(self, loader: Any) -> None:
        """It is about to be loaded from."""
        self._before = numbers_in(loader)

    def end(self, loader: Any) -> None:
        """It was loaded from, and nothing else was done."""
        before, now = self._before, numbers_in(loader)
        both = before.keys() & now.keys()
        self.moving |= {name for name in both if before[name] != now[name] and type(before[name]) is type(now[name])}

    def of(self, numbers: Numbers) -> Numbers:
        """Those that move."""
        return {name: number for name, number in numbers.items() if name in self.moving}


def numbers_in(loader: Any) -> Numbers:
    """All that are near."""
    found = ((name, part) for name, owner, _, part in _walk(loader) if not isinstance(owner, (tuple, type(None))))
    return {name: part for name, part in found if type(part) in NUMBERS}


def put(loader: Any, numbers: Numbers) -> None:
    """Let them be these again."""
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
    """Where there is an iterator in it, or nothing."""
    return next((name for name, _, _, part in _walk(loader) if _is_iterator(part)), "")


def _is_iterator(part: Any) -> bool:
    kind = type(part)
    return hasattr(kind, "__next__") and kind.__module__ in _ITERATORS and not isinstance(part, IOBase)


def _walk(loader: Any) -> Iterator[_Found]:
    """What is near comes first."""
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
            except ValueError:  # nothing is in it yet
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
    """The epoch of a sampler is the script's, and what a loader of torch's keeps of its processes is noted apart."""
    return (key == "epoch" and hasattr(owner, "set_epoch")) or (key == "_iterator" and isinstance(owner, DataLoader))
