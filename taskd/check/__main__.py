"""`python -m taskd.check PARENT`: the probe of a node. It stays for all rounds of a check, so it is started once.

It reads orders as lines of JSON from its standard input, one at a time, and writes an answer for each. Its first line
says where it can be reached. Whatever libraries print goes to its standard error. It does NOT judge anything.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from typing import Any

import torch

from taskd import _native
from taskd import config as configuration
from taskd.check import probe
from taskd.errors import TaskdError


def main(arguments: list[str]) -> int:
    """Answer orders until there are no more."""
    [parent] = arguments
    _native.set_parent_death_signal(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.getppid() != int(parent):
        return 0
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(answer: dict[str, Any]) -> None:
        out.write(json.dumps(answer) + "\n")
        out.flush()

    try:
        one = probe.Probe(configuration.load())
    except (TaskdError, OSError, torch.OutOfMemoryError) as error:  # something else than this node's hardware
        say({"cannot": str(error)})
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    say(one.introduction())
    for line in sys.stdin:
        order = json.loads(line)
        try:
            say(one.answer(order))
        except Exception as error:  # the next order may be a better one
            traceback.print_exc()
            say({"number": order.get("number"), "cannot": str(error)})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
