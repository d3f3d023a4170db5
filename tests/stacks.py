"""Shows what the processes of a hanging test do: their Python stacks, or where in the kernel they wait.

py-spy reads the stacks from outside. So it can also read a process that holds its interpreter's lock or is stopped. It
judges nothing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

PY_SPY = Path(sys.executable).with_name("py-spy")
LOOK_S = 30.0
"""The time limit for one process. A debugger that hangs must not make the hang worse."""


def of(processes: Mapping[int, str], how: str = "--nonblocking") -> str:
    """Return the stacks of these processes. The values are their command lines. `how`: "--native" also shows frames of
    C++, and where each thread is in the kernel, but waits for a process that is stopped."""
    every = sorted(processes.items())
    return "\n".join(f"--- process {pid}: {command[:160]}\n{_of(pid, how)}" for pid, command in every)


def _of(pid: int, how: str) -> str:
    try:
        shown = subprocess.run(
            [str(PY_SPY), "dump", how, "--pid", str(pid)], capture_output=True, text=True, timeout=LOOK_S
        )
        if shown.returncode == 0:
            return shown.stdout + (_in_the_kernel(pid) if how == "--native" else "")
        trouble = shown.stderr.strip().splitlines()[-1:]
    except (OSError, subprocess.TimeoutExpired) as error:
        trouble = [str(error)]
    return f"(no Python stacks: {' '.join(trouble)})\n{_in_the_kernel(pid)}"


def _in_the_kernel(pid: int) -> str:
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        try:
            name, where = (task / "comm").read_text().strip(), (task / "wchan").read_text()
        except OSError:
            continue  # it has ended, or belongs to another user
        lines.append(f"{name}: {where or 'running'}")
    return "\n".join(lines)
