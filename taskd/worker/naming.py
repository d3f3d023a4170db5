"""Names for what comes from a script: for the objects that it gives to `session.register`, and for its errors.

It looks only at the kind of each object and keeps nothing.
"""

from __future__ import annotations

import traceback
from typing import Any, NamedTuple

import torch

from taskd.errors import UsageError

Objects = dict[str, Any]


class ByKind(NamedTuple):
    """Registered objects that have names of their own."""

    optimizers: Objects
    schedulers: Objects
    scalers: Objects
    rest: Objects


def by_kind(given: Objects) -> ByKind:
    """Sort these objects by what they are. A script may call its second optimizer as it likes."""
    found = ByKind({}, {}, {}, {})
    kinds = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.grad_scaler.GradScaler)
    for name, item in given.items():
        at = next((at for at, kind in enumerate(kinds) if isinstance(item, kind)), -1)
        found[at][name] = item
    return found


def named(label: str, given: Any, kind: type) -> list[tuple[str, Any]]:
    """Return one object, or a list or dict of objects, as (name, object) pairs. Raises UsageError."""
    if given is None:
        return []
    if isinstance(given, dict):
        pairs = [(f"{label} {name}", item) for name, item in given.items()]
    elif isinstance(given, (list, tuple)):
        pairs = [(f"{label} {at}", item) for at, item in enumerate(given)]
    else:
        pairs = [(label, given)]
    for name, item in pairs:
        if not isinstance(item, kind):
            raise UsageError(f"{name} is a {type(item).__name__}, not a {kind.__module__}.{kind.__qualname__}")
    return pairs


def told(error: BaseException) -> str:
    """Return an error as one line, with the place where it was raised."""
    words = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{words[0]}{place}"
