"""`taskd resume`: the ranks of a paused job go on.

Resuming a job that is not paused changes nothing and says so. A file of its own, like most commands; pause.py prints
the result.

Exit codes: 0; 1 if the job is still paused; 3 if no manager answered.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from taskd.cli.ask import EXIT_NO_MANAGER, Asker, NoManager, add_arguments
from taskd.cli.pause import show


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `taskd resume`."""
    parser = subparsers.add_parser("resume")
    add_arguments(parser)
    parser.add_argument("--request", default="", metavar="ID", help="a name for this wish; with it, repeat it safely")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Resume the job."""
    with Asker(arguments) as asker:
        try:
            found = asker.resume(request=arguments.request)
        except NoManager as error:
            print(f"taskd: {error}", file=sys.stderr)
            return EXIT_NO_MANAGER
    show(found, arguments.json)
    return 0 if found.done else 1
