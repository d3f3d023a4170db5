"""taskd-run, or `python -m taskd.run`: torchrun's command line, with workers that are replaced one by one.

The first thing it does is to start the standby, which imports torch while this process does the same: on two cores
both are ready at once. Everything else is taskd.launch.launcher's. It does NOT import torch itself.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import NoReturn

from taskd import log
from taskd.launch.manager import with_taskd
from taskd.launch.options import Glance, glance, seen_in
from taskd.launch.standby import Standby
from taskd.launch.standby_process import uncollected


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a job; the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    log.identify("launcher")
    return _run(words, glance(words, os.environ))


def called(arguments: list[str] | Namespace) -> None:
    """Run a job for a caller of torchrun's functions, with words or with what its parser has read. Raises what torchrun
    raises if the job fails."""
    log.identify("launcher")
    seen = glance(arguments, os.environ) if isinstance(arguments, list) else seen_in(arguments)
    code = _run(arguments, seen, called=True)
    if code:
        sys.exit(code)


def _run(arguments: list[str] | Namespace, seen: Glance | None, called: bool = False) -> int:
    standby = _standby(seen) if seen is not None and seen.python else None
    try:
        with uncollected():
            from taskd.launch.launcher import launch  # which imports torch, as the standby does at the same time

        return launch(arguments, standby, called)
    finally:
        if standby is not None:
            standby.close()


def command() -> NoReturn:
    """taskd-run as a program: the job's exit code is this process' own, whatever a library would do at its end.

    torch's rendezvous beats in a thread. One that the end of the interpreter meets inside of torch is ended there, and
    takes the process along by abort(): a job that had ended well would be reported as failed.
    """
    code = main()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or there was none
            stream.flush()
    os._exit(code)


def _standby(seen: Glance) -> Standby:
    environment = with_taskd(dict(os.environ))
    environment.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if seen.several:
        environment.setdefault("OMP_NUM_THREADS", "1")
    interpreter = os.getenv("PYTHON_EXEC", sys.executable)
    standby = Standby(interpreter, environment, seen.folder, seen.preload)
    standby.start()
    return standby


if __name__ == "__main__":
    command()
