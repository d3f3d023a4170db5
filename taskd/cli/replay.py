"""`taskd replay FILE`: runs a manager's journal through the core again and prints the decisions that the core makes.

They are compared with the recorded decisions. At the first difference the command prints it and ends with exit code 1.
It may also read a journal that a manager is writing at this moment. If the manager has replaced steps by a snapshot,
the replay begins after them. With --json it prints one object per step, and one with the result at the end.
It does NOT change the journal and sends nothing to other processes.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from taskd.cli import table
from taskd.cli.events import clock
from taskd.core.effects import ManagerEffect
from taskd.errors import UsageError
from taskd.manager import journal, record, replay


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `taskd replay`."""
    parser = subparsers.add_parser("replay")
    parser.add_argument("file", metavar="FILE", help="the journal, for instance /tmp/taskd-0/JOB/journal.db")
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of text")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print every decision again. Return 1 at the first difference. Raises UsageError if the file is no journal."""
    count = 0
    then, now = replay.Decisions(), replay.Decisions()
    try:
        meta, rows, kept = journal.read(arguments.file)
        if "settings" not in meta:
            raise UsageError(f"{arguments.file} holds no job yet: its manager has not begun")
        core, _ = replay.beginning(json.loads(meta["settings"]), int(meta["term"]), kept)
        if kept is not None and not arguments.json:
            print(f"steps 1 to {kept.number} were put together: what was decided in them is told by `taskd events`")
        for step in replay.steps(core, rows):
            count += 1
            recorded, replayed = then.among(step.recorded), now.among(step.effects)
            if recorded != replayed and record.events_of(step.row.events):
                _print_difference(step.row, recorded, replayed, arguments.json)
                return 1
            _print(step.row, replayed, arguments.json)
    except (journal.Broken, record.Unreadable) as error:
        raise UsageError(f"{arguments.file} cannot be replayed (after {count} steps): {error}") from None
    if arguments.json:
        print(json.dumps({"steps": count, "same": True}))
    else:
        print(f"{count} steps replayed, every decision is the same as the recorded one")
    return 0


def _print(row: journal.Row, decisions: list[ManagerEffect], as_json: bool) -> None:
    texts = record.describe(decisions)
    if as_json:
        print(json.dumps({"step": row.number, "at_ns": row.at_ns, "wall_ns": row.wall_ns, "decisions": texts}))
        return
    for text in texts:
        print(f"{clock(row.wall_ns)}  {f'#{row.number}':<6} {table.clean(text)}")


def _print_difference(
    row: journal.Row, recorded: list[ManagerEffect], replayed: list[ManagerEffect], as_json: bool
) -> None:
    if as_json:
        texts = {"recorded": record.describe(recorded), "replayed": record.describe(replayed)}
        print(json.dumps({"step": row.number, "same": False, **texts}))
        return
    pairs = list(zip(recorded, replayed, strict=False))
    at = next((index for index, (a, b) in enumerate(pairs) if a != b), len(pairs))
    print(f"step {row.number} at {clock(row.wall_ns)}: decision {at + 1} differs")
    for name, effects in (("recorded", recorded), ("replayed", replayed)):
        (line,) = record.describe(effects[at : at + 1]) or ["(no such decision)"]
        print(f"  {name}: {table.clean(line)}")
