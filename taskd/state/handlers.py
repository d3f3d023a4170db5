"""Which values the script's handlers of signals may set: no repair takes them back, since no step has set them.

A handler may set a variable, an attribute, or an item of a dict (`run["stop"] = True`). The other items of such a dict
are the training's own. Names count, since a handler's objects are not known before it runs. A name that stands for two
things is taken for both. No code of the script is run.
"""

from __future__ import annotations

import dis
import functools
import re
import signal
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType
from typing import Any

from taskd.state.leaves import GONE
from taskd.state.plain import can_be_given, packed, unpacked
from taskd.state.sources import is_the_scripts, passed_over

_STORES = frozenset({"STORE_GLOBAL", "STORE_ATTR", "STORE_DEREF", "STORE_NAME"})


@dataclass(slots=True)
class Handlers:
    """What the handlers may set."""

    names: set[str] = field(default_factory=set)
    """Names of variables and attributes."""
    items: dict[str, set[str]] = field(default_factory=dict)
    """Names of what may have items set, and the keys that the code has."""

    def sets(self, name: str) -> bool:
        """Whether a handler may set the value of this name (leaves.py)."""
        return _last(name) in self.names

    def kept(self, name: str, wanted: bytes, there: bytes) -> bytes:
        """Return the wanted value, but with the items that a handler may have set as they are there."""
        keys = self.items.get(_last(name))
        if keys is None or GONE in (wanted, there):
            return wanted
        values: list[Any] = [unpacked(data) if can_be_given(data) else None for data in (wanted, there)]
        if not all(type(value) is dict for value in values):
            return there
        return packed(values[0] | {key: values[1][key] for key in keys & values[1].keys()}) or there

    def read(self, function: Any, met: set[CodeType]) -> None:
        """Add what a function sets, and what it calls."""
        while not isinstance(function, FunctionType):
            if isinstance(function, (MethodType, functools.partial)):
                function = function.func if isinstance(function, functools.partial) else function.__func__
            elif not isinstance(function := vars(type(function)).get("__call__"), FunctionType):
                return
        code = function.__code__
        if code in met or passed_over(code.co_filename, code.co_name):
            return
        met.add(code)
        steps = [*dis.get_instructions(code)]
        self.names.update(one.argval for one in steps if one.opname in _STORES)
        if any(one.opname == "STORE_SUBSCR" for one in steps):
            keys = {one for one in code.co_consts if type(one) is str}
            for name in (*code.co_names, *code.co_freevars):
                self.items.setdefault(name, set()).update(keys)
        spaces = [function.__globals__, *(vars(type(one)) for one in function.__globals__.values() if _is_own(one))]
        for name in code.co_names:
            for space in spaces:
                if isinstance(called := space.get(name), FunctionType):
                    self.read(called, met)


def of_signals() -> Handlers:
    """Return what the handlers may set that are installed now."""
    found, met = Handlers(), set[CodeType]()
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if callable(handler):
            found.read(handler, met)
    return found


def _last(name: str) -> str:
    return re.sub(r"(\[[^]]*\])*(, too)*$", "", name).rpartition(".")[2].rpartition(" ")[2]


def _is_own(one: Any) -> bool:
    return not isinstance(one, (type, FunctionType)) and is_the_scripts(type(one))
