"""`taskd config show`: every setting with its value and where the value came from.

It reads what any taskd process would read here (environment and file) and prints it. On a terminal, a value that is not
the default is printed bold. It does NOT ask running processes for their settings, and never prints the key.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from taskd import config
from taskd.cli import table
from taskd.config.values import allowed_text


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `taskd config`."""
    parser = subparsers.add_parser("config")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", dest="verb", required=True)
    line = "print every setting with its value and where the value came from"
    shown = verbs.add_parser("show", help=line, description=line)
    shown.add_argument("--file", help="read this YAML file instead of the one that TASKD_CONFIG names")
    shown.add_argument("--docs", action="store_true", help="say what each setting means, takes and is set by")
    shown.add_argument("--json", action="store_true", help="print one JSON object")
    shown.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the settings. Raises UsageError if one of them is refused."""
    loaded = config.load(file=arguments.file)
    rows = config.explain(loaded)
    if arguments.json:
        json.dump({"settings": [_described(*row) for row in rows]}, sys.stdout, indent=2)
        print()
    elif arguments.docs:
        _print_docs(rows)
    else:
        table.show(("SETTING", "VALUE", "SOURCE"), [_row(*row) for row in rows])
    return 0


def _row(path: str, value: Any, source: str) -> tuple[Any, ...]:
    style = "" if source == "default" else "bold"
    return path, table.Cell(_text(value), style), source


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ", ".join(value) or "(none)"
    return "-" if value == "" else str(value)


def _described(path: str, value: Any, source: str) -> dict[str, Any]:
    leaf = config.leaves()[path]
    return {
        "path": path,
        "value": value,
        "source": source,
        "doc": leaf.doc,
        "allowed": allowed_text(leaf),
        "variables": list(leaf.variables),
    }


def _print_docs(rows: list[tuple[str, Any, str]]) -> None:
    colour = table.wants_colour()
    for path, value, source in rows:
        leaf = config.leaves()[path]
        print(f"{table.paint(path, 'bold', colour)} = {table.clean(_text(value))}  ({source})")
        print(f"    {leaf.doc}")
        print(f"    Takes {allowed_text(leaf)}. Set by {', '.join(leaf.variables)}.")
