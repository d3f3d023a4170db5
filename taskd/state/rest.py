"""Keeps what the rest of a step's body may change in the script, and puts it back after a rehearsal.

These are numbers, texts and the contents of containers, in the names that it sets and in the objects that it changes.
Flags, and what was None or not there, stay as the rest has left them: what a script does only once is guarded by them
(`if hook is None:`), and it has been done. Objects of the script are looked at one level deep.
It does NOT decide what is needed (behind.py), and puts no state of the training back.
"""

from __future__ import annotations

import copy
import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch

from taskd.state.places import NUMBERS, Place, space_of
from taskd.state.plain import filled
from taskd.state.script import Script
from taskd.state.sources import passed_over

CONTAINERS = (list, dict, set, deque)
_KEPT = (*NUMBERS, str)
_OTHERS = (type, torch.nn.Module, torch.Tensor, torch.optim.Optimizer)
"""Kinds of objects of the script that are put back in other ways, or never change."""
_MOST = 1 << 20
"""Longer containers are not copied."""


@dataclass(slots=True)
class Rest:
    """What the rest of a body may change, as it was before."""

    code: CodeType
    names: dict[Place, Any] = field(default_factory=dict)
    parts: list[tuple[Place, Any, Any]] = field(default_factory=list)
    """Places inside of objects: the place, the object that it begins with, and the value."""
    spaces: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    """Attributes of objects: where they are, and their values."""
    containers: list[tuple[Any, Any]] = field(default_factory=list)
    """Containers, each with a copy."""

    @classmethod
    def of(cls, code: CodeType, script: Script, places: Iterable[Place], objects: Iterable[Any]) -> Rest:
        """Note what is at these places and in these objects."""
        rest = cls(code)
        everywhere = [*places]
        for place, root in script.rooted([one for one in everywhere if one.is_exact]):
            value = place.found(root)
            if type(value) in _KEPT and place.path:
                rest.parts.append((place, root, value))
            elif type(value) in _KEPT:
                rest.names[place] = value
            else:
                rest._note(value)
        for value in [*objects, *(script.at(place.base) for place in everywhere)]:
            rest._note(value)
            if is_own(value):
                space = space_of(value)
                rest.spaces.append((space, {key: one for key, one in space.items() if type(one) in _KEPT}))
                for one in space.values():
                    rest._note(one)
        return rest

    def _note(self, value: Any) -> None:
        if type(value) in CONTAINERS and len(value) <= _MOST:
            self.containers.append((value, copy.copy(value)))

    def put_back(self) -> None:
        """Set it all to what it was."""
        script = frame_of(self.code, Script.asking())
        if script is not None and self.names:
            script.give(self.names)
        for place, root, value in self.parts:
            place.set(root, value)
        for space, values in self.spaces:
            space.update(values)
        for value, before in self.containers:
            filled(value, before)


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
