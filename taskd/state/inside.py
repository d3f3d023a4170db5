"""Finds what the script has put into registered modules and optimizers: hooks, and objects that modules keep.

The source of a loop does not name hooks, and yet they may count, and scale what a step computes. Of modules of the
script's own classes, a repair puts back plain attributes (modules.py), but neither lists nor objects. This module only
finds them: leaves.py looks at what they can reach.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch

from taskd.state.leaves import Thing, is_the_scripts
from taskd.state.places import space_of
from taskd.state.plain import is_scalar
from taskd.state.sources import passed_over

_OF_MODULES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_OF_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_OF_OPTIMIZERS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


_HOOK = "hook "
"""With this begin the names of hooks."""


class Inside(NamedTuple):
    """What is inside of the registered modules and optimizers."""

    hooks: tuple[Thing, ...] = ()
    classes: tuple[Thing, ...] = ()
    """The script's own classes of modules, and with them what their methods use."""
    kept: tuple[tuple[str, torch.nn.Module, str], ...] = ()
    """What modules of the script's own classes keep: its name, the module, and the attribute."""
    modules: frozenset[int] = frozenset()
    """The ids of all modules."""

    @property
    def things(self) -> list[Thing]:
        """The hooks, and what the modules keep now."""
        kept = [(name, space_of(module).get(attribute)) for name, module, attribute in self.kept]
        return [*self.hooks, *self.classes, *kept]


def inside_of(models: Mapping[str, torch.nn.Module], optimizers: Mapping[str, torch.optim.Optimizer]) -> Inside:
    """Return the script's hooks and what its modules keep, each with a name."""
    found, kept, modules = list[Thing](), list[tuple[str, torch.nn.Module, str]](), set[int]()
    classes = dict[str, type]()
    for label, model in models.items():
        for name, module in model.named_modules():
            modules.add(id(module))
            owner = f"{label}.{name}".rstrip(".")
            if is_the_scripts(type(module)):
                kept += _kept(owner, module)
                classes[type(module).__qualname__] = type(module)
            found += _named(owner, space_of(module), _OF_MODULES)
            for parameter_name, parameter in module.named_parameters(recurse=False):
                spaces = {key: getattr(parameter, key, None) for key in _OF_PARAMETERS}
                found += _named(f"{owner}.{parameter_name}", spaces, _OF_PARAMETERS)
    for label, optimizer in optimizers.items():
        found += _named(label, space_of(optimizer), _OF_OPTIMIZERS)
    return Inside(tuple(found), tuple(classes.items()), tuple(kept), frozenset(modules))


def is_of_a_hook(name: str) -> bool:
    """Whether this is the name of something that a hook uses."""
    return name.startswith(_HOOK)


def _kept(owner: str, module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str]]:
    for attribute, item in [*space_of(module).items()]:
        other = not is_scalar(item) and not issubclass(type(item), (torch.nn.Module, torch.Tensor))
        if (other or item is None) and not attribute.startswith("_"):  # what is None may be made later
            yield f"{owner}.{attribute}", module, attribute


def _named(owner: str, space: Mapping[str, Any], kinds: tuple[str, ...]) -> Iterator[Thing]:
    for kind in kinds:
        hooks = space.get(kind) or {}
        own = [one for one in hooks.values() if _is_own(one)]
        yield from ((f"{_HOOK}{at} of {owner}", one) for at, one in enumerate(own, 1))


def _is_own(hook: Any) -> bool:
    while issubclass(type(hook), (functools.partial, MethodType)):
        hook = hook.func if issubclass(type(hook), functools.partial) else hook.__func__
    kind = type(hook)
    code = hook.__code__ if kind is FunctionType else getattr(vars(kind).get("__call__"), "__code__", None)
    return code is not None and not passed_over(code.co_filename, code.co_name)
