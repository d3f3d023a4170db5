"""`taskd restart-rank R`: the process of a rank is replaced in place, between two steps.

The answer comes when all ranks train again, or with the reason why nothing was done. Nothing is decided here; the facts
and the sentences come from the manager. drain_node.py shows its result in the same way.

Exit codes: 0 the rank is replaced; 1 it is not, or not in time; 2 it is not possible (unknown rank, a repair is under
way, nothing runs, all ranks would start over); 3 no manager answered.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from taskd.cli import table
from taskd.cli.ask import EXIT_NO_MANAGER, Asker, NoManager, add_arguments
from taskd.client import ErrandResult

HEADERS = ("RANK", "REPLACED", "NODE", "INCARNATION", "NODE NOW", "INCARNATION NOW")
RIGHT = ("RANK", "INCARNATION", "INCARNATION NOW")


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `taskd restart-rank`."""
    parser = subparsers.add_parser("restart-rank")
    parser.add_argument("rank", type=int, metavar="RANK", help="the rank")
    add_options(parser)
    parser.set_defaults(run=run)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what all errands have."""
    add_arguments(parser)
    parser.add_argument(
        "--wait", type=float, default=300.0, metavar="SECONDS", help="how long to wait until it is done"
    )
    parser.add_argument("--request", default="", metavar="ID", help="a name for this wish; with it, repeat it safely")


def run(arguments: argparse.Namespace) -> int:
    """Replace the rank."""
    wait, request = arguments.wait, arguments.request
    return ask(arguments, lambda asker: asker.restart_rank(arguments.rank, wait_seconds=wait, request=request))


def ask(arguments: argparse.Namespace, wish: Callable[[Asker], ErrandResult]) -> int:
    """Ask for an errand, print what has become of it, and return the exit code."""
    with Asker(arguments) as asker:
        try:
            found = wish(asker)
        except NoManager as error:
            print(f"taskd: {error}", file=sys.stderr)
            return EXIT_NO_MANAGER
    if arguments.json:
        print(json.dumps({"request": found.request, "done": found.done, "words": found.words, **found.facts}))
        return 0 if found.done else 1
    how = "done" if found.done else "under way" if found.under_way else "failed"
    print(table.clean(f"{how}: {found.words} (request {found.request})"))
    rows = [
        (one.rank, _yes(one.replaced), one.node, one.incarnation, one.node_now, one.incarnation_now)
        for one in found.ranks
    ]
    if rows:
        table.show(HEADERS, rows, right=RIGHT)
    return 0 if found.done else 1


def _yes(replaced: bool) -> table.Cell:
    return table.Cell("yes", "green") if replaced else table.Cell("no", "yellow")
