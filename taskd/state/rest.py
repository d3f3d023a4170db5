"""Keeps what the rest of a step's body may change in the script, and puts it back after a rehearsal.

It covers the places that the rest sets, the objects that it changes or passes on, and all places that the loop may set
in functions and methods which it calls (flow.py). Names and attributes get their values back, and containers get their
contents back. Objects of the script's own classes are looked at one level deep.

A script may have done something only once. If the guard of that was put back, it would be done again; if a decision by
weights that nobody has trained was not put back, it would stay. So what was None stays as the rest has left it (`if
hook is None:`): a number there is replaced later, and other values are compared (counters.py, held.py). A flag is put
back if the body sets it and does not guard it by itself. If another flag has changed, its name is told.
It does NOT decide what is needed (behind.py), and puts no state of the training back.
"""

from __future__ import annotations

import copy
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch

from taskd.state.places import NOTHING, Place, space_of
from taskd.state.plain import filled
from taskd.state.script import Script
from taskd.state.sources import passed_over

CONTAINERS = (list, dict, set, deque)
_COPIED = (*CONTAINERS, Counter, OrderedDict, defaultdict, bytearray)
_OTHERS = (type, torch.nn.Module, torch.Tensor, torch.optim.Optimizer)
"""Kinds of objects of the script that are put back in other ways, or never change."""
_MOST = 1 << 20
"""Longer containers are not copied."""
Loops = list[tuple[CodeType, tuple[Place, ...]]]
"""The functions around a step, the innermost first: their code, and all places that their loops may set."""


@dataclass(slots=True)
class _Kept:
    """One place, as it was."""

    place: Place
    root: Any
    """The object that it begins with. A name by itself is looked up in its function."""
    value: Any
    guards: bool
    """Whether it may be a flag that guards what is done only once."""


@dataclass(slots=True)
class Rest:
    """What the rest of a body may change, as it was before."""

    functions: list[tuple[CodeType, list[_Kept]]] = field(default_factory=list)
    spaces: list[tuple[str, dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    """Objects of the script: their names, their attributes, and a copy of these."""
    containers: list[tuple[Any, Any]] = field(default_factory=list)
    """Containers, each with a copy."""

    def note(self, script: Script, places: Iterable[Place], plain: Set[Place] = frozenset()) -> None:
        """Note what is at these places of a function. `plain`: those of them that are no guards."""
        kept = list[_Kept]()
        for place, root in script.rooted([one for one in {*places} if one.is_exact]):
            value = place.found(root)
            if value is not NOTHING and value is not None:
                kept.append(_Kept(place, root, value, type(value) is bool and place not in plain))
                self._copy(value)
        self.functions.append((script.loop[0], kept))

    def note_object(self, name: str, value: Any) -> None:
        """Note an object that the rest may change: the contents of a container, or the attributes of the script's own
        object."""
        self._copy(value)
        if is_own(value):
            space = space_of(value)
            self.spaces.append((name, space, dict(space)))
            for one in space.values():
                self._copy(one)

    def _copy(self, value: Any) -> None:
        if type(value) in _COPIED and len(value) <= _MOST:
            self.containers.append((value, copy.copy(value)))

    def put_back(self) -> list[str]:
        """Set it all to what it was. Return the names of what nobody can put back."""
        unsure = set[str]()
        for code, kept in self.functions:
            script = frame_of(code, Script.asking())
            names = dict[Place, Any]()
            for one in kept:
                now = one.place.found(one.root) if one.place.path else NOTHING
                if not one.place.path:
                    now = NOTHING if script is None else script.at(one.place)
                if now is NOTHING or now is one.value:
                    continue
                if one.guards:
                    unsure.add(one.place.text)
                elif one.place.path:
                    one.place.set(one.root, one.value)
                else:
                    names[one.place] = one.value
            if script is not None and names:
                script.give(names)
        for name, space, before in self.spaces:
            there = ((key, value) for key, value in before.items() if value is not None and key in space)
            changed = {key: value for key, value in there if space[key] is not value}
            flags = {key for key, value in changed.items() if type(value) is bool}
            unsure |= {f"{name}.{key}" for key in flags}
            space.update({key: value for key, value in changed.items() if key not in flags})
        for value, before in self.containers:
            filled(value, before)
        return sorted(unsure)


def frame_of(code: CodeType, script: Script | None) -> Script | None:
    """Return the function of the script with this code: this one, or one that waits for it."""
    while script is not None and script.loop[0] is not code:
        script = script.caller()
    return script


def is_own(value: Any) -> bool:
    """Whether it is an object of one of the script's own classes."""
    kind = type(value)
    if issubclass(kind, _OTHERS):
        return False
    module = sys.modules.get(str(kind.__module__))
    return not passed_over(getattr(module, "__file__", None) or "<frozen>", kind.__name__)
