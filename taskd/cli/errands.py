"""`taskd restart-rank R`, `taskd drain-node N`, `taskd stop`: what an operator wants done between two steps.

Three commands in one table, since they differ only in what they name. The answer comes when the errand is over, or with
the reason why nothing was done. Nothing is decided here; the facts and the sentences come from the manager. `stop` ends
all launchers with exit code 75; with `--dump` the script's last checkpoint is written before, or the job goes on.

Exit codes: 0 it is done; 1 it is not, or not in time; 2 it is not possible (unknown rank or node, no spare with room,
the first node of the job, a repair is under way, nothing runs, all ranks would start over, nobody can write a last
checkpoint); 3 no manager answered.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from taskd.cli import table
from taskd.cli.ask import EXIT_NO_MANAGER, Asker, NoManager, add_arguments
from taskd.client import ErrandResult

HEADERS = ("RANK", "REPLACED", "NODE", "INCARNATION", "NODE NOW", "INCARNATION NOW")
RIGHT = ("RANK", "INCARNATION", "INCARNATION NOW")


@dataclass(frozen=True)
class Errand:
    """One command: the argument that no other errand has, how it is declared, and what is asked of the manager."""

    name: str
    argument: str
    declared: Mapping[str, Any]
    wish: Callable[..., ErrandResult]


ERRANDS = (
    Errand(
        "restart-rank",
        "rank",
        {"type": int, "metavar": "RANK", "help": "the rank"},
        lambda asker, given, **how: asker.restart_rank(given.rank, **how),
    ),
    Errand(
        "drain-node",
        "node",
        {"metavar": "NODE", "help": "the node, by the name that `taskd status` shows"},
        lambda asker, given, **how: asker.drain_node(given.node, **how),
    ),
    Errand(
        "stop",
        "--dump",
        {
            "action": "store_true",
            "help": "first let the script write its last checkpoint; if it cannot, the job goes on",
        },
        lambda asker, given, **how: asker.stop(dump=given.dump, **how),
    ),
)


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add all errands."""
    for errand in ERRANDS:
        parser = subparsers.add_parser(errand.name)
        parser.add_argument(errand.argument, **errand.declared)
        add_arguments(parser)
        parser.add_argument(
            "--wait", type=float, default=300.0, metavar="SECONDS", help="how long to wait until it is done"
        )
        parser.add_argument(
            "--request", default="", metavar="ID", help="a name for this wish; with it, repeat it safely"
        )
        parser.set_defaults(run=partial(run, errand))


def run(errand: Errand, arguments: argparse.Namespace) -> int:
    """Ask for the errand, print what has become of it, and return the exit code."""
    with Asker(arguments) as asker:
        try:
            found = errand.wish(asker, arguments, wait_seconds=arguments.wait, request=arguments.request)
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
