"""`taskd drain-node N`: the ranks of a node go on on a node that waits as a spare, and the node's launcher ends.

No fault is needed for that, and no step is lost: the ranks are moved between two steps. A file of its own, like every
command; restart_rank.py prints the result.

Exit codes: 0 the node is not used any more; 1 it is, or not in time; 2 it is not possible (unknown node, no spare with
room, the first node of the job, a repair is under way, nothing runs); 3 no manager answered.
"""

from __future__ import annotations

import argparse
from typing import Any

from taskd.cli.restart_rank import add_options, ask


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `taskd drain-node`."""
    parser = subparsers.add_parser("drain-node")
    parser.add_argument("node", metavar="NODE", help="the node, by the name that `taskd status` shows")
    add_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Move the ranks away."""
    wait, request = arguments.wait, arguments.request
    return ask(arguments, lambda asker: asker.drain_node(arguments.node, wait_seconds=wait, request=request))
