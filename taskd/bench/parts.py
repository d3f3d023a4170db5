"""Runs a benchmark of several parts: the wanted parts, one after the other, each with its time on standard error.

One part, "calm", waits for false alarms and is told how long to wait. It measures nothing itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence

from taskd.bench.report import Figure
from taskd.errors import UsageError

CALM = "calm"


def measure(
    parts: Mapping[str, Callable[..., dict[str, Figure]]], only: Sequence[str], calm_s: float
) -> dict[str, Figure]:
    """The figures of the parts in `only`, or of all parts if it is empty. Raises UsageError for an unknown part."""
    unknown = set(only) - parts.keys()
    if unknown:
        raise UsageError(f"{', '.join(sorted(unknown))} is no part of this benchmark; there are {', '.join(parts)}")
    figures: dict[str, Figure] = {}
    for name, part in parts.items():
        if name in only or not only:
            began_s = time.monotonic()
            figures |= part(calm_s) if name == CALM else part()
            print(f"{name}: {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
    return figures
