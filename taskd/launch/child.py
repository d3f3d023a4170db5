"""`python -m taskd.launch.child PARENT module NAME` or `... PARENT program WORD...`: ends with its launcher.

The launcher starts its manager, and programs that are no Python scripts, in this way. A launcher that is killed with
SIGKILL cannot clean up, so the system must signal its children. It does NOT know what they do.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys

from taskd import _native


def main(arguments: list[str]) -> None:
    """Run a module or a program. When the launcher ends, a module gets SIGTERM, and an unknown program SIGKILL."""
    parent, kind, *words = arguments
    _native.set_parent_death_signal(signal.SIGTERM if kind == "module" else signal.SIGKILL)
    if os.getppid() != int(parent):
        return
    if kind == "module":
        sys.argv = list(words)
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        return
    try:
        os.execvp(words[0], words)
    except OSError as error:
        sys.exit(f"{words[0]} cannot be run: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
