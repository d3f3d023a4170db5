"""`taskd incidents [ID]`: every fault of the job: what happened, which ranks, why this strategy, its phases, its end.

Without an ID it prints one line for each incident. With an ID it prints the whole story, with the phases in
milliseconds. The sentences come from the core. It does NOT act on incidents.

Exit codes: 0; 2 if there is no such incident; 3 if no manager answered.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from taskd.cli import table
from taskd.cli.ask import EXIT_NO_MANAGER, Asker, NoManager, add_arguments
from taskd.cli.events import clock
from taskd.cli.status import span
from taskd.cli.table import Cell
from taskd.core.words import lost_words

HEADERS = ("ID", "OPENED", "KIND", "RANKS", "STRATEGY", "OUTCOME", "TOOK", "REASON")
OUTCOME_STYLES = {"healed": "green", "open": "red", "exited": "red", "observed": "yellow", "started over": "yellow"}
RANKS_SHOWN = 8


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `taskd incidents`."""
    parser = subparsers.add_parser("incidents")
    parser.add_argument("id", nargs="?", metavar="ID", help="only this one, with its whole story")
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print all incidents, or one."""
    with Asker(arguments) as asker:
        try:
            answer = asker.ask("incidents", arguments.id or "")
        except NoManager as error:
            print(f"taskd: {error}", file=sys.stderr)
            return EXIT_NO_MANAGER
    incidents = answer["incidents"]
    if arguments.json:
        print(json.dumps(incidents[0] if arguments.id else answer))
    elif arguments.id:
        sys.stdout.write(story(incidents[0], table.wants_colour()))
    elif not incidents:
        print("no incident: nothing has failed")
    else:
        table.show(HEADERS, [_row(incident) for incident in incidents], right=("ID", "TOOK"), fit=True)
    return 0


def _row(incident: dict[str, Any]) -> tuple[Any, ...]:
    return (
        incident["id"],
        clock(incident["opened_wall_ns"]),
        incident["kind"],
        _ranks(incident["ranks"]),
        incident["strategy"],
        Cell(_outcome(incident), OUTCOME_STYLES.get(incident["outcome"], "")),
        span(int(incident["duration_ms"])),
        incident["reason"],
    )


def story(incident: dict[str, Any], colour: bool) -> str:
    """The text of one incident, from open to closed."""
    outcome = table.paint(_outcome(incident), OUTCOME_STYLES.get(incident["outcome"], ""), colour)
    title = table.paint(f"incident {incident['id']}", "bold", colour)
    took = f"{'took' if incident['closed_wall_ns'] else 'so far'} {span(int(incident['duration_ms']))}"
    lines = [
        f"{title}  {table.clean(incident['kind'])}, {outcome}",
        f"  opened    {clock(incident['opened_wall_ns'])}, {took}",
        f"  ranks     {_ranks(incident['ranks'])}",
        f"  nodes     {', '.join(table.clean(node) for node in incident['nodes']) or '-'}",
        f"  strategy  {incident['strategy']}{_attempts(incident['attempts'])}",
        f"  why       {table.clean(incident['reason'])}",
    ]
    if incident["phases"]:
        lines.append("  phases")
        width = max(len(phase["name"]) for phase in incident["phases"])
        lines += [f"    {table.clean(phase['name']).ljust(width)}  {phase['ms']:>8} ms" for phase in incident["phases"]]
    if incident["cost"]:  # only a rail's incident has one
        paid = ", ".join(f"{count} {table.clean(name).replace('_', ' ')}" for name, count in incident["cost"].items())
        lines.append(f"  cost      {paid}")
    if incident["notes"]:
        lines.append("  notes")
        lines += [f"    {table.clean(note)}" for note in incident["notes"]]
    return "\n".join(lines) + "\n"


def _outcome(incident: dict[str, Any]) -> str:
    """How the incident ended, and how many steps a start-over has lost."""
    if incident["outcome"] != "started over":
        return str(incident["outcome"])
    return f"started over, {lost_words(incident.get('steps_lost') or 0, incident.get('saved', False))}"


def _attempts(count: int) -> str:
    """The number of attempts as text; empty for 0. A rail whose traffic other rails carry needs no attempt."""
    return "" if not count else f", {count} attempt{'' if count == 1 else 's'}"


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:RANKS_SHOWN])
    return (shown + (f" and {len(ranks) - RANKS_SHOWN} more" if len(ranks) > RANKS_SHOWN else "")) or "-"
