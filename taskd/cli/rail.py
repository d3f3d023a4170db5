"""`taskd rail list | out NAME | back NAME | switch`: the state of the rails, and an operator's orders for them.

`out` and `back` are handled like the manager's own decisions: one change at a time, and every rank answers. `back` is
proved by bytes that flow, and undone if no bytes flow. `switch` is another name for these two. They wait until the
change has ended, and print the result. Nothing is decided here; the facts and the sentences come from the manager. It
does NOT touch any interface.

Exit codes: 0; 1 if the change was undone, or did not end in time; 2 if it is not possible (busy, unknown, the only
rail left); 3 if no manager answered.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from taskd.cli import table
from taskd.cli.ask import EXIT_NO_MANAGER, Asker, NoManager, add_arguments
from taskd.cli.status import span
from taskd.cli.table import Cell

HEADERS = ("NODE", "RAIL", "STATE", "USE", "SINCE", "BORROWED BY", "IN", "OUT", "RTT", "LAST ERROR", "NOTE")
RIGHT = ("SINCE", "IN", "OUT", "RTT")
STATE_STYLES = {"up": "green", "suspect": "yellow", "probing": "cyan", "down": "red"}
USE_STYLES = {"borrowed": "yellow", "out": "yellow", "returning": "cyan"}


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `taskd rail`."""
    parser = subparsers.add_parser("rail")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    shown = actions.add_parser("list", help="every rail of every node: state, since when, who borrows, bytes, error")
    shown.add_argument("--lines", action="store_true", help="each rail toward each peer node on a line of its own")
    out = actions.add_parser("out", help="let a rail carry nothing")
    back = actions.add_parser("back", help="put a rail back into use")
    for order in (out, back):
        order.add_argument("name", metavar="NAME", help="the rail")
        order.add_argument("--node", default="", help="only on this node (default: on all that have it)")
        order.add_argument(
            "--timeout", type=float, default=90.0, metavar="SECONDS", help="how long to wait for its end"
        )
    switch = actions.add_parser("switch", help="out (to standby) or back (to primary), in the words of other tools")
    switch.add_argument("--node", required=True, help="the node")
    which = switch.add_mutually_exclusive_group(required=True)
    which.add_argument("--rail", default="", help="the rail")
    which.add_argument("--device", type=int, help="the device of the node whose own rail it is")
    switch.add_argument(
        "--to", required=True, choices=("standby", "primary"), help="standby: out of use; primary: back"
    )
    switch.add_argument("--timeout", type=float, default=90.0, metavar="SECONDS", help="how long to wait for its end")
    for one in (shown, out, back, switch):
        add_arguments(one)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Carry out one action."""
    with Asker(arguments) as asker:
        try:
            if arguments.action == "list":
                return _list(asker.ask("rails"), arguments)
            return _order(asker, arguments)
        except NoManager as error:
            print(f"taskd: {error}", file=sys.stderr)
            return EXIT_NO_MANAGER


def _list(answer: dict[str, Any], arguments: argparse.Namespace) -> int:
    if arguments.json:
        print(json.dumps(answer))
    elif not answer["rails"]:
        print("no rail is reported: the groups of this job run over another backend, or have not been made yet")
    elif arguments.lines:
        headers = ("NODE", "RAIL", "PEER", "STATE", "SINCE", "PAIRS UP", "IN", "OUT")
        rows = [_line(rail, line) for rail in answer["rails"] for line in rail["lines"]]
        table.show(headers, rows, right=("SINCE", "PAIRS UP", "IN", "OUT"))
    else:
        table.show(HEADERS, [_row(rail) for rail in answer["rails"]], right=RIGHT)
    return 0


def _row(rail: dict[str, Any]) -> tuple[Any, ...]:
    return (
        rail["node"],
        rail["rail"],
        Cell(rail["state"], STATE_STYLES.get(rail["state"], "")),
        Cell(rail["use"], USE_STYLES.get(rail["use"], "")),
        None if rail["age_ms"] is None else span(rail["age_ms"]),
        " ".join(rail["borrowers"]) or None,
        amount(rail["bytes_in"]),
        amount(rail["bytes_out"]),
        f"{rail['round_trip_ns'] / 1e6:.2f} ms" if rail["round_trip_ns"] else None,
        os.strerror(rail["last_error"]) if rail["last_error"] else None,
        rail["reason"],
    )


def _line(rail: dict[str, Any], line: dict[str, Any]) -> tuple[Any, ...]:
    return (
        rail["node"],
        rail["rail"],
        line["peer"],
        Cell(line["state"], STATE_STYLES.get(line["state"], "")),
        span(line["age_ms"]),
        f"{line['pairs_up']}/{line['pairs']}",
        amount(line["bytes_in"]),
        amount(line["bytes_out"]),
    )


def amount(count: int) -> str:
    """`512 B`, `3.2 MiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _order(asker: Asker, arguments: argparse.Namespace) -> int:
    """Send the order and wait for its end. A refusal by the manager is a usage error."""
    if arguments.action == "switch":
        which = {"rail": arguments.rail, "device": arguments.device}
        found = asker.rail_switch(arguments.node, **which, to=arguments.to, wait_seconds=arguments.timeout)
    else:
        order = asker.rail_out if arguments.action == "out" else asker.rail_back
        found = order(arguments.name, arguments.node, wait_seconds=arguments.timeout)
    words = table.clean(f"rail {found.rail}: {found.words}")
    print(json.dumps(found.facts or None) if arguments.json else words)
    return 0 if found.done else 1
