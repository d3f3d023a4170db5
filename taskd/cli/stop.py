"""`taskd stop`: the job ends between two steps, on all ranks, and all of its launchers end.

They end with exit code 75. Nothing is decided here; the facts and the sentences come from the manager. `--dump` is
refused, since taskd has nothing that writes a checkpoint: the script has.

Exit codes: 0 the job has ended; 1 it goes on, or has not ended in time; 2 it is not possible (nothing runs, a repair is
under way, --dump); 3 no manager answered.
"""

from __future__ import annotations

import argparse
from typing import Any

from taskd.cli.restart_rank import add_options, ask


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `taskd stop`."""
    parser = subparsers.add_parser("stop")
    parser.add_argument("--dump", action="store_true", help="refused: taskd has nothing that writes a checkpoint")
    add_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Stop the job."""
    wait, request = arguments.wait, arguments.request
    return ask(arguments, lambda asker: asker.stop(dump=arguments.dump, wait_seconds=wait, request=request))
