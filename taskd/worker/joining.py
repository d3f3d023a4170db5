"""Knows whether the script is inside of torch's Join, which lets ranks end a loop after unlike numbers of steps.

A rank that has ended waits in Join for the collectives of those that still train, and answers them. If it met them in
a collective of taskd's instead, all would wait for ever. A model's own flag does not tell: it stays on behind the
`with`. So entering and leaving are counted here.
"""

from __future__ import annotations

import functools
from typing import Any

from torch.distributed.algorithms.join import Join

_inside: list[Join] = []
"""Those that the script has entered and not left."""


def watch() -> None:
    """Begin to see which of them the script enters."""
    if hasattr(Join.__enter__, "__wrapped__"):
        return
    enter, leave = Join.__enter__, Join.__exit__

    @functools.wraps(enter)
    def entered(join: Join) -> Any:
        if join._enable:
            _inside.append(join)
        return enter(join)

    @functools.wraps(leave)
    def left(join: Join, *error: Any) -> Any:
        try:
            return leave(join, *error)
        finally:
            _inside[:] = [one for one in _inside if one is not join]

    Join.__enter__, Join.__exit__ = entered, left  # type: ignore[method-assign]


def is_joined() -> bool:
    """Whether the script is inside of one."""
    return bool(_inside)
