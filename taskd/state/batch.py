"""Notes how a batch was handed out, so that a step that is done again finds it in that state.

Loops write into their batch: `batch["x"] = batch["x"] / 255` puts another tensor there, `x.div_(255)` changes the one
that is there. When a batch is handed out, this module notes which objects are in which container. Later it puts them
back in place. A tensor that was written into is recognized by its version. Then the batch has to be loaded again. The
same holds for a batch with something in it whose changes cannot be seen: an array, or an object that keeps its contents
in another way.

A digest shows whether a batch that was loaded again is the same. It covers the layout, the numbers and the text, and
some elements of the tensors and arrays in this process' memory.

This module does NOT copy contents and does not load.
"""

from __future__ import annotations

import enum
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from datetime import date
from functools import partial
from itertools import islice
from pathlib import PurePath
from types import FunctionType, ModuleType
from typing import Any

import torch

from taskd.state.held import digest_of, is_array
from taskd.state.plain import is_scalar
from taskd.state.strange import strange

MOST = 4096
"""At most this many objects of one batch are looked at. A batch with more is loaded again instead."""
_PLAIN: tuple[type, ...] = (
    bool, int, float, complex, str, bytes, range, slice, type(None), type, enum.Enum, date, PurePath,
    torch.dtype, torch.device, torch.Size, torch.nn.Module, torch.optim.Optimizer, FunctionType, ModuleType,
)  # fmt: skip
_OF_PYTHON = 1 << 9
"""The flag of a class that was made by Python code (Py_TPFLAGS_HEAPTYPE)."""


class Handed:
    """One batch in its state when this object was made."""

    def __init__(self, batch: Any) -> None:
        self._puts: list[Callable[[], None]] = []
        self._tensors: list[tuple[torch.Tensor, int]] = []
        self.known = True
        """Whether all of it can be put back, unless tensors were written into."""
        seen: set[int] = set()
        todo: deque[Any] = deque((batch,))
        while todo:
            item = todo.popleft()
            if isinstance(item, _PLAIN) or id(item) in seen:
                continue
            if len(seen) >= MOST:
                self.known = False
                break
            seen.add(id(item))
            todo.extend(self._look(item))

    def written(self) -> list[torch.Tensor]:
        """Return the tensors that were written into since."""
        return [tensor for tensor, version in self._tensors if tensor._version != version]

    def tensors(self) -> list[torch.Tensor]:
        """Return all tensors that were in it."""
        return [tensor for tensor, _ in self._tensors]

    def put_back(self) -> bool:
        """Give every container its contents again. Return False if that does not restore the whole batch."""
        for put in self._puts:
            put()
        return self.known and not self.written()

    def _look(self, item: Any) -> Iterable[Any]:
        """Note one object, and return the objects in it."""
        if isinstance(item, torch.Tensor):
            if item.is_inference():
                self.known = False
            else:
                self._tensors.append((item, item._version))
            return ()
        if isinstance(item, dict):
            self._puts.append(partial(_refill, item, item.update, dict(item)))
            return item.values()
        if isinstance(item, (list, deque)):
            self._puts.append(partial(_refill, item, item.extend, [*item]))
            return tuple(item)
        if isinstance(item, set):
            self._puts.append(partial(_refill, item, item.update, [*item]))
            return tuple(item)
        if isinstance(item, (tuple, frozenset)):
            return item
        if not _is_plain_object(item):
            self.known = False
            return ()
        own = vars(item)
        self._puts.append(partial(_refill, own, own.update, dict(own)))
        return own.values()


def digest(batch: Any) -> int:
    """Return a digest of a batch's contents, the same in every process."""
    words: list[str] = []
    numbers: list[Any] = []
    todo: deque[Any] = deque((batch,))
    while todo and len(words) < MOST:
        item = todo.popleft()
        kind = type(item)
        if kind is str:
            words.append(f"{len(item)} {item}")
        elif isinstance(item, torch.Tensor):
            odd = strange(item)  # and may have no shape, or another one in each object
            words.append(odd or f"{kind.__qualname__} {tuple(item.shape)}")
            if not odd and item.device.type == "cpu":
                numbers.append(item)
        elif is_scalar(item) or isinstance(item, (bytes, range)):
            words.append(f"{kind.__qualname__} {item!r}")
        else:
            words.append(kind.__qualname__)
            if isinstance(item, dict):
                todo.extend(islice(item, MOST))
                todo.extend(islice(item.values(), MOST))
            elif isinstance(item, (list, tuple, deque)):
                todo.extend(islice(item, MOST))
            elif is_array(item):
                numbers.append(item)
            elif _is_plain_object(item):
                todo.extend(vars(item).values())
    return zlib.crc32("\n".join(words).encode(errors="replace")) << 31 ^ digest_of(numbers)


def _refill(container: Any, fill: Callable[[Any], Any], contents: Any) -> None:
    container.clear()
    fill(contents)


def _is_plain_object(item: Any) -> bool:
    """Whether all contents of this object are in its `__dict__`."""
    kinds = [kind for kind in type(item).__mro__ if kind is not object]
    return hasattr(item, "__dict__") and all(
        kind.__flags__ & _OF_PYTHON and not vars(kind).get("__slots__") for kind in kinds
    )
