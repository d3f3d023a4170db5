"""`taskd pause [--at-step N] [--timeout S]`: all ranks stand before one step, until a resume or for that time.

Prints when all ranks stand, and before which step; or else which ranks do not, and why. Pausing a paused job renews the
time. Nothing is decided here; the facts and the sentences come from the manager. `taskd resume` is in resume.py.

Exit codes: 0 all ranks stand; 1 they do not, or not in time; 2 it is not possible (a repair is under way, nothing
runs, the step is behind); 3 no manager answered.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from taskd.cli import table
from taskd.cli.ask import EXIT_NO_MANAGER, Asker, NoManager, add_arguments
from taskd.client import PauseResult

HEADERS = ("RANK", "NODE", "STANDS", "NEXT STEP", "NOTE")
RIGHT = ("RANK", "NEXT STEP")


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `taskd pause`."""
    parser = subparsers.add_parser("pause")
    add_arguments(parser)
    parser.add_argument("--at-step", type=int, metavar="N", help="before this step (default: the next possible one)")
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="the job goes on after this (default: pause.limit_ms)"
    )
    parser.add_argument(
        "--wait", type=float, default=60.0, metavar="SECONDS", help="how long to wait until all ranks stand"
    )
    parser.add_argument("--request", default="", metavar="ID", help="a name for this wish; with it, repeat it safely")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Pause the job."""
    with Asker(arguments) as asker:
        try:
            found = asker.pause(
                arguments.at_step, seconds=arguments.timeout, wait_seconds=arguments.wait, request=arguments.request
            )
        except NoManager as error:
            print(f"taskd: {error}", file=sys.stderr)
            return EXIT_NO_MANAGER
    show(found, arguments.json)
    return 0 if found.done else 1


def show(found: PauseResult, as_json: bool) -> None:
    """Print how a pause stands."""
    if as_json:
        print(json.dumps({"request": found.request, "done": found.done, "words": found.words, **found.facts}))
        return
    left = "" if found.left_seconds is None else f"; it goes on in {found.left_seconds:.0f} s unless that is renewed"
    print(table.clean(f"{found.words}{left} (request {found.request})"))
    if found.facts["pause"] is not None:
        rows = [(one.rank, one.node, _yes(one.stands), one.next_step, one.trouble or None) for one in found.ranks]
        table.show(HEADERS, rows, right=RIGHT)


def _yes(stands: bool) -> table.Cell:
    return table.Cell("yes", "green") if stands else table.Cell("no", "yellow")
