"""`python -m taskd.devices PARENT KIND`: writes the events of a node's devices as lines, until its agent has gone.

A vendor's library may hang or crash. Then only this process hangs or crashes, and its agent sees that. What the library
prints goes nowhere. It does NOT restart itself or judge events.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from taskd import _native
from taskd.devices import lines
from taskd.devices.choice import opened
from taskd.devices.source import Unusable

WAIT_S = 1.0
"""How long the library waits for an event at a time."""
BEAT_S = 5.0
"""Time between two signs of life, if there are no events."""


def main(arguments: list[str]) -> int:
    """Write events until the end."""
    parent, kind = arguments
    _native.set_parent_death_signal(signal.SIGKILL)  # also if a library keeps this process from running Python
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.getppid() != int(parent):
        return 0
    out = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        serve(out, kind)
    except Unusable as why:
        os.write(out, lines.unusable(str(why)))
    except BrokenPipeError:
        pass  # the agent has gone, or does not want to know any more
    return 0


def serve(out: int, kind: str) -> None:
    """Write the events of these devices. Raises Unusable, and BrokenPipeError when nobody reads."""
    source, beat_at = opened(kind), 0.0
    while True:
        found = source.look(WAIT_S)
        for event in found:
            os.write(out, lines.line_of(event))
        now = time.monotonic()
        if found or now >= beat_at:
            os.write(out, lines.BEAT)
            beat_at = now + BEAT_S


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
