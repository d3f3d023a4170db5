"""Follows tensors that steps have left behind and no repair gives back, to see whether a later step computes with them.

The source of a script shows most of what its steps hand on, and looks show more. What both have missed is found after a
repair (unaccounted.py). Mostly it is a result that nobody reads again: the attention of the last batch, a loss. Nobody
can tell that from the tensor. So it gets another class, LeftOver, and from then on torch tells each use of it. What is
computed from it is a LeftOver, too, and so is what has the same memory. If it is overwritten as a whole, it is an
ordinary tensor again.

Invariant: before a gradient or a registered tensor gets anything that was computed from a LeftOver, the judge is told,
who makes all ranks start over. A healthy process has no LeftOver, so this costs nothing there.

It does NOT see what is computed where torch asks no class: by foreign kernels, collectives, scripted functions and
functorch, by a class of the script's own with __torch_function__, or where torch takes a tensor for a number (`alpha`).
Nor does it see what becomes of a number that was read: the judge is told of the reading.
"""

from __future__ import annotations

import dis
import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any, Protocol

import torch

from taskd.state.living import living

Function = Callable[..., Any]

ENDS = {"backward", "grad"}
"""Functions that compute gradients."""
_READ = {
    *("item", "tolist", "numpy", "equal", "allclose", "is_nonzero", "__array__", "__contains__"),
    *("__bool__", "__float__", "__int__", "__index__", "__complex__"),
}
"""They make something of a tensor's contents that is no tensor."""
_SAVED = "__reduce_ex__"
_ASK_FOR_THE_CLASS = {_SAVED, "__deepcopy__", "__repr__", "__format__", "__str__"}
_OVERWRITE = {
    *("copy_", "zero_", "fill_", "set_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "log_normal_"),
    *("cauchy_", "geometric_", "_foreach_zero_", "_foreach_copy_"),
}
"""Nothing is left of what such a function finds in its first argument."""
_FRESH = {
    *("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like"),
    *("new_zeros", "new_ones", "new_empty", "new_empty_strided"),
}
"""Their results do not depend on the contents of their arguments."""
_OF_FIRST = {"type_as", "view_as", "expand_as", "reshape_as", "to"}
"""Their results depend on the contents of the first argument only."""
_OPERATORS = (
    "add",
    "sub",
    "mul",
    "matmul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
)
_AUGMENTED = {"__setitem__", *(f"__i{one}__" for one in _OPERATORS)}
_GETS = "__get__"
"""Gets an attribute of a tensor, which is mostly its form."""
_SETS = "__set__"
_NESTED = 4
_TORCHS = str(Path(torch.__file__).parent)
_ENGINE = "_engine_run_backward"
"""The function of torch that runs a backward."""


class Judge(Protocol):
    """The one who is told about leftovers."""

    def holds(self, tensors: list[torch.Tensor]) -> bool:
        """Whether one of these is registered, or a part of something registered."""

    def reaches_weights(self) -> None:
        """A gradient, or a registered tensor, is about to be computed from a leftover. Does not return, except on
        another thread than the training's."""

    def is_read(self) -> None:
        """A leftover is about to be read as a number or an array. May not return."""

    def is_saved(self) -> None:
        """A leftover is about to be written to a file, or sent. May not return."""

    def is_used(self, tensor: torch.Tensor) -> None:
        """One that was given to `follow` is about to be used for the first time."""


class LeftOver(torch.Tensor):
    """A tensor that an earlier step has left."""

    @classmethod
    def __torch_function__(cls, function: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _following.called(function, types, args, kwargs or {})


class LeftOverParameter(torch.nn.Parameter):
    """A parameter that an earlier step has left."""

    @classmethod
    def __torch_function__(cls, function: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _following.called(function, types, args, kwargs or {})


_OF_KIND: dict[type, type] = {torch.Tensor: LeftOver, torch.nn.Parameter: LeftOverParameter}
_PLAIN: dict[type, type] = {left: plain for plain, left in _OF_KIND.items()}
KINDS = tuple(_OF_KIND)
"""The classes of tensors that can be followed."""


class _Nobody:
    """Judges nothing."""

    def holds(self, tensors: list[torch.Tensor]) -> bool:
        return False

    def reaches_weights(self) -> None: ...
    def is_read(self) -> None: ...
    def is_saved(self) -> None: ...
    def is_used(self, tensor: torch.Tensor) -> None: ...


class _Following:
    """What this process follows."""

    def __init__(self) -> None:
        self._judge: weakref.ref[Any] | None = None
        self.first = set[int]()
        """The ids of the tensors that were found."""
        self.known = set[int]()
        """Of those that were used so far."""
        self.used = set[int]()
        """Of those that were used since `begin`."""
        self.called: Function = _called

    @property
    def judge(self) -> Judge:
        found: Judge | None = None if self._judge is None else self._judge()
        return found if found is not None else _Nobody()

    def begin(self, judge: Judge) -> None:
        if self._judge is None:
            self.called = torch.compiler.disable(_called)  # a compiled step must not look into this
            _watch_functions()
        self._judge = weakref.ref(judge)


def follow(tensors: Iterable[torch.Tensor], judge: Judge) -> None:
    """Follow these tensors from now on."""
    _following.begin(judge)
    for one in tensors:
        _mark(one)
        _following.first.add(id(one))


def is_left_over(value: Any) -> bool:
    """Whether this is a leftover."""
    return type(value) in _PLAIN


def among(values: Any) -> bool:
    """Whether a leftover is among these values, or in their lists and dicts."""
    return any(map(is_left_over, _tensors(values)))


def release(tensors: Iterable[torch.Tensor]) -> None:
    """Make ordinary tensors of these: somebody accounts for them."""
    for one in filter(is_left_over, tensors):
        _unmark(one)


def used() -> frozenset[int]:
    """Return the ids of those that were given to `follow` and were used since `begin`."""
    return frozenset(_following.used)


def begin() -> None:
    """Forget which were used."""
    _following.used.clear()


def memory_of(tensor: torch.Tensor) -> int:
    """Return the address of the memory in which a tensor is, or zero: it has none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse, or of a class of its own
        return 0


def _mark(tensor: torch.Tensor) -> None:
    if (kind := _OF_KIND.get(type(tensor))) is not None:
        tensor.__class__ = kind  # type: ignore[assignment]


def _unmark(tensor: torch.Tensor) -> None:
    tensor.__class__ = _PLAIN[type(tensor)]  # type: ignore[assignment]
    for ids in (_following.first, _following.known, _following.used):
        ids.discard(id(tensor))


def _called(function: Function, types: Iterable[type], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function of torch that was given a leftover."""
    name, judge = function.__name__.partition(".")[0], _following.judge
    given = [*_tensors((args, kwargs))]
    left = [one for one in given if is_left_over(one)]
    into = _written_by(function, name, args, kwargs)
    beside = [one for one in left if not any(one is other for other in into)]
    if name != _GETS:
        _note_use(left)
    if name in ENDS or (beside and into and (_in_a_backward() or judge.holds(into))):
        judge.reaches_weights()
    if name in _READ:
        judge.is_read()
    if name == _SAVED:
        judge.is_saved()
    if name in _ASK_FOR_THE_CLASS or not all(map(_is_ordinary, types)):
        result = _as_plain(left, function, args, kwargs)
    else:
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **kwargs)
    if into and not beside:
        _is_written(into, _overwrites(name, args, kwargs))
        return result
    made = [] if name in _FRESH or (name in _OF_FIRST and not is_left_over(args[0])) else [*_tensors(result)]
    if name == _GETS and made:
        _note_use(left)
    if made and _in_a_backward() and not _only_watches():  # it may become a gradient
        judge.reaches_weights()
    same = {id(one) for one in given}
    for one in made:
        if id(one) not in same:
            _mark(one)
    for one in into if not judge.holds(into) else ():
        _mark(one)
        for other in _of_same_memory(one):
            _mark(other)
    return result


def _watch_functions() -> None:
    """See to it that what an autograd.Function of the script makes of a leftover is one, too: torch does not tell."""
    below: Any = torch.autograd.Function.__mro__[1]  # whose `apply` is asked for at each call, under any name

    def applied(kind: Any, *args: Any) -> Any:
        result = super(below, kind).apply(*args)
        for one in _tensors(result) if among(args) else ():
            _mark(one)
        return result

    below.apply = classmethod(applied)


def _note_use(left: Iterable[torch.Tensor]) -> None:
    for one in left:
        if id(one) in _following.first:
            _following.used.add(id(one))
            if id(one) not in _following.known:
                _following.known.add(id(one))
                _following.judge.is_used(one)


def _is_ordinary(kind: type) -> bool:
    """Whether a class has no __torch_function__ of its own."""
    own = getattr(kind, "__torch_function__", None)
    return kind in _PLAIN or own in (torch.Tensor.__torch_function__, torch._C._disabled_torch_function_impl)


def _written_by(function: Function, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors into which a function writes."""
    if "out" in kwargs:
        return [*_tensors(kwargs["out"])]
    in_place = name in _AUGMENTED or (name.endswith("_") and not name.endswith("__")) or _sets_data(function, name)
    return [*_tensors(args[0] if args else kwargs.get("tensor"))] if in_place else []


def _sets_data(function: Any, name: str) -> bool:
    return name == _SETS and function.__self__.__name__ == "data"


def _overwrites(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether nothing is left of what was in those into which it writes."""
    if name == "__setitem__":
        keys = args[1] if type(args[1]) is tuple else (args[1],)
        return all(key is Ellipsis or (type(key) is slice and key == slice(None)) for key in keys)
    return "out" in kwargs or name in _OVERWRITE or name == _SETS


def _is_written(into: list[torch.Tensor], whole: bool) -> None:
    """Ordinary contents were written into these leftovers."""
    for one in filter(is_left_over, into) if whole else ():
        _unmark(one)
        if one.nbytes == one.untyped_storage().nbytes():
            release(_of_same_memory(one))


def _of_same_memory(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the other tensors in the memory of this one."""
    try:
        storage: Any = tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return []
    if torch._C._storage_Use_Count(storage._cdata) <= 2:  # the tensor, and `storage`
        return []
    at, kinds = storage.data_ptr(), (*_OF_KIND, *_PLAIN)
    every = (one for one in living(torch.Tensor) if type(one) in kinds and one is not tensor)
    return [one for one in every if at and memory_of(one) == at]


def _in_a_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _only_watches() -> bool:
    """Whether this backward has called a hook of the script that returns nothing, so it makes no gradient."""
    frame, hook = sys._getframe(), None
    while frame is not None and frame.f_code.co_name != _ENGINE:
        if not frame.f_code.co_filename.startswith((_TORCHS, __file__)):
            hook = frame.f_code
        frame = frame.f_back  # type: ignore[assignment]
    return hook is not None and _returns_nothing(hook)


@functools.cache
def _returns_nothing(code: CodeType) -> bool:
    """Whether each of its returns gives None."""
    last, ends = None, list[bool]()
    for one in dis.get_instructions(code):
        if one.opname in ("RETURN_VALUE", "RETURN_CONST"):
            value = one if one.opname == "RETURN_CONST" else last
            sure = value is one or not one.is_jump_target  # otherwise it may return something else as well
            ends.append(sure and value is not None and value.opname.endswith("_CONST") and value.argval is None)
        last = one
    return all(ends)


def _as_plain(left: list[torch.Tensor], function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function that asks for the class of a tensor."""
    kinds = [(one, type(one)) for one in left]
    for one, kind in kinds:
        one.__class__ = _PLAIN[kind]  # type: ignore[assignment]
    try:
        return function(*args, **kwargs)
    finally:
        for one, kind in kinds:
            one.__class__ = kind  # type: ignore[assignment]


def _tensors(value: Any, depth: int = _NESTED) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, (tuple, list, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors(one, depth - 1)


_following = _Following()
