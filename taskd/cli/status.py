"""`taskd status`: every rank's node, process, epoch, step, phase, beat, step time and state, with the job's line above.

With --watch the table is redrawn in place on a terminal (one write per picture, so nothing flickers). Into anything
else it is printed again and again. It ends with Ctrl-C, or on a pipe when the manager has gone. The facts come from the
manager; nothing is computed here. It does NOT change anything in the job.

Exit codes: 0, or 3 if no manager answered.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import threading
import time
from typing import Any

from taskd.cli import table
from taskd.cli.ask import EXIT_NO_MANAGER, Asker, NoManager, add_arguments
from taskd.cli.table import Cell
from taskd.core.words import device_words, lost_words, rank_words

HOME, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HEADERS = ("RANK", "NODE", "PID", "STATE", "EPOCH", "STEP", "PHASE", "BEAT", "STEP TIME", "NOTE")
RIGHT = ("RANK", "PID", "EPOCH", "STEP", "BEAT", "STEP TIME")
DEVICES_SHOWN = 8
STATE_STYLES = {
    "alive": "green",
    "suspect": "yellow",
    "starting": "cyan",
    "dead": "red",
    "absent": "dim",
    "left": "dim",
}


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `taskd status`."""
    parser = subparsers.add_parser("status")
    add_arguments(parser)
    parser.add_argument("--watch", action="store_true", help="go on, drawing the table again and again")
    parser.add_argument("--interval", type=float, default=0.5, metavar="SECONDS", help="time between two pictures")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the status once, or until interrupted."""
    with Asker(arguments) as asker:
        try:
            if arguments.watch:
                return _watch(asker, arguments)
            _print(asker.status(), arguments.json)
        except NoManager as error:
            print(f"taskd: {error}", file=sys.stderr)
            return EXIT_NO_MANAGER
    return 0


def _print(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(facts))
    else:
        sys.stdout.write(picture(facts, table.wants_colour(), table.columns()))


def _watch(asker: Asker, arguments: argparse.Namespace) -> int:
    in_place = sys.stdout.isatty() and not arguments.json and os.environ.get("TERM") != "dumb"
    pause = threading.Event()
    shown = False
    if in_place:
        sys.stdout.write(ENTER_SCREEN)
    try:
        while True:
            try:
                # On a terminal only the first part is shown. Without a terminal everything is printed.
                facts = asker.ask("status") if in_place else asker.status()
            except NoManager as error:
                if not in_place or not shown:
                    raise
                _draw(f"{error}\nstill looking; Ctrl-C ends\n")
            else:
                shown = True
                if in_place:
                    _draw(picture(facts, table.wants_colour(), table.columns()))
                else:
                    _print(facts, arguments.json)
                    sys.stdout.flush()
            pause.wait(max(0.05, arguments.interval))
            if not in_place and not arguments.json:
                print()
    except KeyboardInterrupt:
        return 0  # the normal end of --watch
    finally:
        if in_place:
            sys.stdout.write(LEAVE_SCREEN)
            sys.stdout.flush()


def _draw(text: str) -> None:
    """Draw one picture in one write. The old picture is overwritten line by line and never cleared as a whole."""
    size = shutil.get_terminal_size()
    # If the terminal wrapped a line, it would push the others down.
    lines = [table.cut(line, size.columns) for line in text.splitlines()]
    if len(lines) > size.lines:
        left_out = len(lines) - size.lines + 1
        lines = [*lines[: size.lines - 1], f"... {left_out} more lines; `taskd status` prints all"]
    sys.stdout.write(HOME + f"{CLEAR_LINE}\n".join(lines) + CLEAR_LINE + CLEAR_BELOW)
    sys.stdout.flush()


def picture(facts: dict[str, Any], colour: bool, limit: int = 0) -> str:
    """The whole status as text. `limit`: the columns for the lines of its head; 0: no limit."""
    rows = [_row(rank) for rank in facts["ranks"]]
    ranks = table.render(HEADERS, rows, right=RIGHT, colour=colour)
    return _header(facts, colour, limit) + ranks + _footer(facts, colour)


def _header(facts: dict[str, Any], colour: bool, limit: int) -> str:
    manager = facts["manager"]
    size, alive = facts["world_size"], facts["states"].get("alive", 0)
    where = f"{table.clean(manager['host'])}:{manager['port']}"
    parts = [
        table.paint(f"job {table.clean(facts['job'])}", "bold", colour),
        f"manager {where} (pid {manager['pid']}, up {span(manager['uptime_ms'])})",
        f"term {facts['term']}",
        f"epoch {facts['epoch']}",
        table.paint(f"{alive} of {size} ranks alive", "green" if alive == size else "yellow", colour),
    ]
    known, opened = facts["incidents"]["known"], facts["incidents"]["open"]
    incidents = f"{known} incident{'' if known == 1 else 's'}" + (f", {opened} open" if opened else "")
    parts.append(table.paint(incidents, "red" if opened else "", colour))
    over = facts["incidents"].get("started_over", 0)
    if over:
        lost = lost_words(facts["incidents"].get("steps_lost", 0), facts["incidents"].get("saved", False))
        text = f"all ranks started over {over} time{'' if over == 1 else 's'}, {lost}"
        parts.append(table.paint(text, "yellow", colour))
    return table.wrap(parts, " | ", limit) + "\n\n"


def _row(rank: dict[str, Any]) -> tuple[Any, ...]:
    state = str(rank["state"])
    reported = rank["beat_age_ms"] is not None
    code = rank.get("exit_code")
    note = f"incarnation {rank['incarnation']}" if rank["incarnation"] > 1 else ""
    if state == "dead":
        note = f"exit code {code}" + (f", {note}" if note else "")
    if rank.get("stage") not in (None, "running") and state not in ("dead", "left", "absent"):
        note = f"{rank['stage']}" + (f", {note}" if note else "")
    return (
        rank["rank"],
        rank["node"],
        rank["pid"] or None,
        Cell(state, STATE_STYLES.get(state, "")),
        rank["epoch"],
        rank["step"] if rank["step"] is not None and rank["step"] >= 0 else None,
        rank["phase"],
        f"{rank['beat_age_ms']} ms" if reported and state in ("alive", "suspect") else None,
        f"{rank['step_ms']} ms" if rank["step_ms"] else None,
        note,
    )


def _footer(facts: dict[str, Any], colour: bool) -> str:
    manager = facts["manager"]
    lines = []
    if uncovered := facts.get("uncovered"):
        text = f"a death would make all start over, says {rank_words(uncovered)}; the output of the job says why"
        lines.append(table.paint(text, "yellow", colour))
    hang = facts.get("hang")
    if hang is not None:
        text = f"the job stands still, for {span(hang['age_ms'])} by now: {table.clean(hang['text'])}"
        lines.append(table.paint(text, "red", colour))
    lines += _devices(facts.get("devices", []), colour)
    if (pause := facts.get("pause")) is not None:
        lines.append(table.paint(_paused(pause), "yellow", colour))
    left_out = facts["world_size"] - len(facts["ranks"])
    if left_out:
        lines.append(f"{left_out} more ranks; `taskd status` prints all")
    down = [node for node in facts["nodes"] if node["state"] not in ("up", "left")]
    for node in down[:8]:
        text = f"node {table.clean(node['node'])} is {node['state']}, last heard {span(node['age_ms'])} ago"
        lines.append(table.paint(text, "yellow", colour))
    if manager["journal"].startswith("memory only"):
        lines.append(table.paint(f"journal: {table.clean(manager['journal'])}", "yellow", colour))
    lines += _proof(facts.get("proof"), colour)
    refused = {**facts.get("counters", {}), **manager["refused"]}
    refused.pop("port looked at", None)  # this job's launcher looks, too; it sent nothing, so nothing was dropped
    if refused:
        lines.append("dropped: " + ", ".join(f"{table.clean(name)} {count}" for name, count in sorted(refused.items())))
    return "\n" + "\n".join(lines) + "\n" if lines else ""


def _paused(pause: dict[str, Any]) -> str:
    """`paused before step 7 by ann@host, until 12:30:07 (in 45 s)`."""
    text = f"{pause['state']} {pause['place']} by {table.clean(pause['by'])}"
    if pause["left_ms"] is None:
        return f"{text}, for {span(pause['lease_ms'])} once a rank stands"
    until = time.strftime("%H:%M:%S", time.localtime(time.time() + pause["left_ms"] / 1000))
    return f"{text}, until {until} (in {span(pause['left_ms'])}); `taskd resume` ends it"


def _proof(proof: dict[str, Any] | None, colour: bool) -> list[str]:
    """Lines that say when all ranks were last seen to hold the same values, and what is not compared."""
    if proof is None or (proof["updates"] < 0 and not proof["differences"]):
        return []
    lines = []
    if proof["updates"] >= 0:
        every = f"; all of it every {proof['whole_every']} updates" if proof["whole_every"] else ""
        ranks = f"{proof['ranks']} ranks alike"
        lines.append(f"last proof: update {proof['updates']}, {ranks}, {span(proof['age_ms'])} ago{every}")
    if proof["differences"]:
        times = "once" if proof["differences"] == 1 else f"{proof['differences']} times"
        text = f"ranks did not hold the same {times}: `taskd incidents` names rank and item"
        lines.append(table.paint(text, "red", colour))
    left_out = [table.clean(name) for name in proof["not_compared"]]
    if left_out:
        more = f" and {len(left_out) - 3} more" if len(left_out) > 3 else ""
        lines.append(f"not compared: {', '.join(left_out[:3])}{more}")
    return lines


def _devices(events: list[dict[str, Any]], colour: bool) -> list[str]:
    """Lines about events of devices that harm a rank or its successor; then how many mere warnings there were."""
    harmful = [event for event in events if event["harm"] != "warning"]
    lines = []
    for event in harmful[:DEVICES_SHOWN]:
        name = f"{device_words(event['device'])} of node {table.clean(event['node'])}"
        of_ranks = f" ({rank_words(event['ranks'])})" if event["ranks"] else ""
        often = f", {event['times']} times" if event["times"] > 1 else ""
        text = f"{name}{of_ranks} reported {table.clean(event['text'])}, {span(event['age_ms'])} ago{often}"
        lines.append(table.paint(text, "red", colour))
    if len(harmful) > DEVICES_SHOWN:
        lines.append(f"{len(harmful) - DEVICES_SHOWN} more events of devices; `taskd status --json` has all")
    if warnings := len(events) - len(harmful):
        text = f"devices have reported {warnings} {'warning' if warnings == 1 else 'kinds of warnings'}"
        lines.append(table.paint(f"{text}: `taskd events` shows them", "yellow", colour))
    return lines


def span(ms: int) -> str:
    """A duration in a form for people."""
    if ms < 10_000:
        return f"{ms} ms" if ms < 1000 else f"{ms / 1000:.1f} s"
    seconds = ms // 1000
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h {seconds % 3600 // 60} min"
