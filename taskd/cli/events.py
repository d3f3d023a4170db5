"""`taskd events`: prints the manager's events, one per line; with --follow, it also prints new events as they come.

With --json each line is one object. --follow continues after a restart of the manager. It ends with Ctrl-C, or with
exit code 3 when no manager has answered for PATIENCE_SECONDS. It does NOT read the journal: `taskd replay` does.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from typing import Any

from taskd.cli import table
from taskd.cli.ask import EXIT_NO_MANAGER, Asker, NoManager, add_arguments

PAUSE_SECONDS = 0.3
PATIENCE_SECONDS = 30.0
KIND_WIDTH = 10


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `taskd events`."""
    parser = subparsers.add_parser("events")
    add_arguments(parser)
    parser.add_argument("--follow", action="store_true", help="go on with what happens from now on")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the events that the manager keeps, then the new ones if asked for."""
    with Asker(arguments) as asker:
        try:
            if arguments.follow:
                return _follow(asker, arguments.json)
            _print(asker.ask("events")["events"], arguments.json)
        except NoManager as error:
            print(f"taskd: {error}", file=sys.stderr)
            return EXIT_NO_MANAGER
    return 0


def _follow(asker: Asker, as_json: bool) -> int:
    pause = threading.Event()
    last = 0
    reached_at = 0.0
    try:
        while True:
            try:
                answer = asker.ask("events", str(last) if last else "")
            except NoManager:
                if time.monotonic() - reached_at > PATIENCE_SECONDS:
                    raise
            else:
                reached_at = time.monotonic()
                if answer["last"] < last:  # a restarted manager counts from the beginning again
                    answer = asker.ask("events")
                _print(answer["events"], as_json)
                sys.stdout.flush()
                last = answer["last"]
            pause.wait(PAUSE_SECONDS)
    except KeyboardInterrupt:
        return 0  # the normal end of --follow


def _print(events: list[dict[str, Any]], as_json: bool) -> None:
    colour = table.wants_colour()
    for event in events:
        print(json.dumps(event) if as_json else line(event, colour))


def line(event: dict[str, Any], colour: bool) -> str:
    """One event as a line for people."""
    kind = table.paint(table.clean(event["kind"]).ljust(KIND_WIDTH), "cyan", colour)
    where = f" (incident {event['incident']})" if event["incident"] else ""
    return f"{clock(event['wall_ns'])}  {kind}  {table.clean(event['text'])}{table.paint(where, 'dim', colour)}"


def clock(wall_ns: int) -> str:
    """A time of day with milliseconds, in this machine's zone."""
    seconds, rest = divmod(wall_ns, 1_000_000_000)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds))}.{rest // 1_000_000:03d}"
