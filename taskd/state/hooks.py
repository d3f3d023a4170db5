"""Judges whether modules and optimizers have the hooks of the script that they should have when an update begins.

Hooks scale gradients, clip them, and count, so a rank with one too few or one too many computes something else. A look
counts the hooks that there are when a step is handed out (observed.py). No repair makes or removes one: the script may
keep its handle.

Failure modes: a step registers a hook (`if step.number == 5: layer.register_forward_hook(f)`), and is done again, or
the rank's newcomer never comes by there; a rehearsal has registered it already; the life before has removed a hook; a
step is given up before it removes its own. On the other hand, a flag may guard the call, so a step that is done again,
or a newcomer's rehearsal, has registered the hook once and for all. So all are counted at the last moments at which a
step can be refused: before its backward, whether there are too many, and before its update, or at its end, also whether
there are too few. Two hooks of one function at one place count as the same.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from torch.utils.hooks import RemovableHandle

from taskd.state.leaves import GONE
from taskd.state.marks import which_of
from taskd.state.plain import Noted, mark
from taskd.state.sources import passed_over

HOOKED = "hooked "
"""With this begin the names of counts of hooks."""
OF_MODULES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
OF_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")
OF_OPTIMIZERS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
OF_ALL_MODULES = tuple(f"_global{kind}" for kind in OF_MODULES)
_COUNT = mark("hooks ")
Owner = tuple[str, Any, tuple[str, ...]]
"""What may have hooks: its name, the object, and the names of its attributes that have them."""


class _Expected(NamedTuple):
    """What is expected of a step that is done again, or of a newcomer's first one."""

    first: Counter[str]
    """What this process has found at its first look."""
    wanted: Counter[str]
    """What was there when the step was handed out for the first time."""
    left: Counter[str]
    """What is there now."""
    next_id: int
    """The handles of hooks that are registered from now on have this number or a higher one."""


@dataclass(slots=True)
class Hooks:
    """The hooks of one session's script."""

    _found: Noted = field(default_factory=dict)
    _of: tuple[tuple[Owner, ...], int] | None = None
    """The owners that were looked at, and the number of the next handle at that time."""
    _held: list[tuple[Mapping[int, Any], int]] = field(default_factory=list)
    """Where hooks were, and how many."""
    _expected: _Expected | None = None

    def look(self, owners: tuple[Owner, ...]) -> Noted:
        """Return how many hooks there are, by name. Nothing is counted again as long as none comes or goes."""
        now = RemovableHandle.next_id
        same = self._of is not None and self._of[0] is owners and self._of[1] == now
        if not same or any(len(there) != count for there, count in self._held):
            self._held = [(there, len(there)) for _, there in _spaces(owners)]
            self._found = {name: _COUNT + str(count).encode() for name, count in _counted(owners).items()}
            self._of = owners, now
        return self._found

    def expect(self, first: Mapping[str, bytes], changed: Mapping[str, bytes], owners: tuple[Owner, ...]) -> None:
        """Expect what a look has found. `first`: what this process has found at its first look; `changed`: what was
        otherwise in the look. A second call for the same step knows no better: a newcomer has looked by itself since
        then, and found only what it has."""
        known, wanted = _noted(first), _noted({**first, **changed})
        if self._expected is not None:
            known, wanted = self._expected.first, self._expected.wanted
        self._expected = _Expected(known, wanted, _counted(owners), RemovableHandle.next_id)

    @property
    def expects(self) -> bool:
        """Whether anything is expected."""
        return self._expected is not None

    def forget(self) -> None:
        """Expect nothing of the step that is handed out now: it is a new one."""
        self._expected = None

    def unlike(self, owners: tuple[Owner, ...], is_whole: bool) -> list[str]:
        """Return where there is a hook too many. `is_whole`: the step has registered all of its hooks, so none may be
        missing."""
        if self._expected is None:
            return []
        (first, wanted, left, next_id), now = self._expected, _counted(owners)
        fresh = _counted(owners, next_id)
        names = {
            one
            for one in left
            if left[one] > wanted[one] and (fresh[one] or first[one] > wanted[one] or left[one] > max(wanted[one], 1))
        }
        names |= {one for one in wanted if is_whole and now[one] < wanted[one]}
        return sorted(one.removeprefix(HOOKED) for one in names)


def is_own(hook: Any) -> bool:
    """Whether it is the script's."""
    while issubclass(type(hook), (functools.partial, MethodType)):
        hook = hook.func if issubclass(type(hook), functools.partial) else hook.__func__
    kind = type(hook)
    code = hook.__code__ if kind is FunctionType else getattr(vars(kind).get("__call__"), "__code__", None)
    return code is not None and not passed_over(code.co_filename, code.co_name)


def _spaces(owners: tuple[Owner, ...]) -> Iterator[tuple[str, Mapping[int, Any]]]:
    """Return where there are hooks now, with names."""
    for name, owner, kinds in owners:
        for kind in kinds:
            if there := getattr(owner, kind, None):
                yield f"{name} ({kind.strip('_')})", there


def _counted(owners: tuple[Owner, ...], since: int = 0) -> Counter[str]:
    """Count the script's hooks whose handles have this number or a higher one."""
    found = ((where, hook) for where, there in _spaces(owners) for at, hook in there.items() if at >= since)
    own = ((where, which_of(hook)) for where, hook in found if is_own(hook))
    return Counter(f"{HOOKED}{which.text if which is not None else ''} of {where}" for where, which in own)


def _noted(values: Mapping[str, bytes]) -> Counter[str]:
    counts = {name: data for name, data in values.items() if name.startswith(HOOKED) and data != GONE}
    return Counter({name: int(data.removeprefix(_COUNT)) for name, data in counts.items()})
