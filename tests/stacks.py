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


def of(processes: Mapping[int, str]) -> str:
    """Return the stacks of these processes. The values are their command lines."""
    return "\n".join(f"--- process {pid}: {command[:160]}\n{_of(pid)}" for pid, command in sorted(processes.items()))


def _of(pid: int) -> str:
    try:
        shown = subprocess.run(
            [str(PY_SPY), "dump", "--nonblocking", "--pid", str(pid)], capture_output=True, text=True, timeout=LOOK_S
        )
        if shown.returncode == 0:
            return shown.stdout
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
