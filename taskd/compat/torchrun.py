"""Lets torchrun start a job as taskd-run does, where PROCESS_RECOVER is on: the command line and the script stay.

The finder in taskd.compat gives `torch.distributed.run` this loader. The module itself is torch's own. Only its two
entrances are others: main(), which `torchrun` calls with a command line, and run(), which other launchers call with
parsed arguments (`accelerate launch`, `torch.distributed.launch`).

Failure modes: taskd lacks its extensions here, or its configuration is off; the job is elastic, or asks for something
that only torchrun has; torchrun runs inside of a worker, or in a thread. Invariant: then torchrun starts the job as
always, and one sentence says why. This module does NOT decide whether it is asked for.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, ModuleType
from typing import Any

from taskd import log
from taskd.errors import TaskdError

SAYS = "PROCESS_RECOVER is on, so torchrun starts this job as taskd-run does: a worker that dies is replaced"
STAYS = "PROCESS_RECOVER is on, but torchrun starts this job itself, so no worker is replaced: %s"
ONLY_TORCHRUN = ("TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_HEALTH_CHECK_PORT")
_PROGRAMS = ("torchrun", "torchrun.exe")
_PROGRAM = """
if __name__ == "__main__":
    import sys
    from {name} import main
    sys.argv[0] = "torchrun"
    main()
"""
_logger = log.get(__name__)


class Loader:
    """torch's loader of this module, with other entrances."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create_module(self, spec: Any) -> ModuleType | None:
        made: ModuleType | None = self._inner.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        own: Any = module
        own.main, own.run = _main_instead_of(own.main, own), _run_instead_of(own.run)

    def get_code(self, name: str) -> CodeType:
        """Return what `python -m` runs."""
        return compile(_PROGRAM.format(name=name), __file__, "exec")


def _main_instead_of(own: Callable[[Any], Any], module: Any) -> Callable[..., None]:
    def main(args: Sequence[str] | None = None) -> None:
        """Run a job with these words, or with those of the command line."""
        words = [*(sys.argv[1:] if args is None else args)]
        program = None if {"-h", "--help"} & {*words} else _program(lambda: _parsed(words, module))
        if program is None:
            own(args)
        elif args is None and os.path.basename(sys.argv[0]) in _PROGRAMS:
            program.command()
        else:
            program.called(words)

    return main


def _run_instead_of(own: Callable[[Any], Any]) -> Callable[[Any], None]:
    def run(args: Any) -> None:
        """Run a job with arguments that torchrun's parser has read."""
        by_taskd = getattr(args, "of_taskd", False)  # taskd-run itself, because taskd is switched off
        program = None if by_taskd else _program(lambda: args)
        if program is None:
            own(args)
        else:
            program.called(Namespace(**vars(args)))

    return run


def _parsed(words: list[str], module: Any) -> Any:
    from taskd.launch.options import extend

    return extend(module.get_args_parser()).parse_args(words)


def _program(arguments: Callable[[], Any]) -> Any:
    """Return the module of taskd-run. None: torchrun itself runs this job."""
    log.identify("launcher")
    try:
        from taskd import _native, config, run

        del _native  # it only had to be there
        given = config.load()
    except (ImportError, TaskdError) as error:
        why = str(error)
    else:
        if not (given.enabled and given.recover.process_recover):
            return None
        why = _why_not(arguments(), os.environ)
    log.once(_logger, logging.WARNING, "compat.torchrun", *((STAYS, why) if why else ("%s", SAYS)))
    return None if why else run


def _why_not(args: Any, environ: Mapping[str, str]) -> str:
    """Return why torchrun must run this job itself, or an empty text."""
    fewest, _, most = str(args.nnodes).partition(":")
    if most not in ("", fewest):
        return f"with --nnodes {args.nnodes} it trains on up to {most} nodes; taskd-run would keep them as spares"
    if "TORCHELASTIC_RUN_ID" in environ and "LOCAL_RANK" in environ:
        return "it was started inside of a worker"
    if asked := [name for name in ONLY_TORCHRUN if environ.get(name)]:
        return f"{asked[0]} is set, and only torchrun has such a part"
    if threading.current_thread() is not threading.main_thread():
        return "it was called in a thread"
    return ""
