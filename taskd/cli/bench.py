"""`taskd bench NAME`: measure one thing on this machine and print it as a table, or as one JSON object.

The exit code is 0 if the measurement worked, whatever the result: a missed goal is a fact, not a failure of the
command. The measuring itself is in taskd.bench.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any

from taskd.bench import report
from taskd.cli import table
from taskd.errors import UsageError

BENCHES = {
    "beat": ("cost of a progress store; the beat behind a held GIL", "taskd.bench.beat"),
    "check": ("the check of nodes: how exact, how quick; simulated and real ones (4 minutes)", "taskd.bench.check"),
    "compiled": (
        "a compiled model's repair over that of the same model uncompiled, by phase (8 minutes)",
        "taskd.bench.compiled",
    ),
    "control": (
        "the manager's time at sizes that no test machine has: meetings, rails, orders, journal (2 minutes)",
        "taskd.bench.control",
    ),
    "detect": ("kill, agent and node loss until the manager knows; false alarms (12 minutes)", "taskd.bench.detect"),
    "hang": (
        "a rank that stands still until it is named, and replaced; false alarms (35 minutes)",
        "taskd.bench.hang",
    ),
    "import": ("import taskd, taskd --help, manager ready", "taskd.bench.starts"),
    "overhead": (
        "an operation, a DDP and an FSDP2 step over guards, against bare inner groups",
        "taskd.bench.overhead",
    ),
    "pause": (
        "an operator's pauses until all ranks stand and go on; rails switched under training (3 minutes)",
        "taskd.bench.pause",
    ),
    "reconfigure": ("a guard parked and rebuilt, and 1,000 times under load", "taskd.bench.reconfigure"),
    "rail": (
        "rails under training: fault to step, and back; false alarms (25 minutes)",
        "taskd.bench.rail",
    ),
    "recovery": (
        "fault to the first step of all ranks, by fault and phase (7 minutes)",
        "taskd.bench.recovery",
    ),
    "steady": ("step time with everything on, over plain torchrun and gloo", "taskd.bench.steady"),
    "strangers": (
        "thousands of connections to every port of a running job: what they cost it, who is let in (2 minutes)",
        "taskd.bench.strangers",
    ),
    "transport": (
        "operations over rails beside gloo, two rails over one, faults, abort, rest; false alarms (17 minutes)",
        "taskd.bench.transport",
    ),
    "trust": (
        "what proofs that all ranks hold the same cost, and how soon a flipped bit is found; kills (35 minutes)",
        "taskd.bench.trust",
    ),
}
"""Name: what it measures, and the module with `measure() -> dict[str, Figure]`."""


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser("bench")
    parser.add_argument("name", nargs="?", metavar="NAME", help="what to measure; see --list")
    parser.add_argument("--list", action="store_true", help="name all benchmarks")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--only", metavar="PART[,PART]", help="only these parts of a benchmark that has parts")
    parser.add_argument("--seconds", type=float, help="how long it waits for false alarms")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    if arguments.list:
        print(table.render(["name", "measures"], [(name, line) for name, (line, _) in BENCHES.items()]), end="")
        return 0
    if arguments.name not in BENCHES:
        given = f"{arguments.name!r} is no benchmark" if arguments.name else "no benchmark was named"
        raise UsageError(f"{given}; there are {', '.join(BENCHES)}")
    where = report.machine()
    figures = _measured(arguments)
    if arguments.json:
        print(report.as_json(arguments.name, where, figures))
        return 0
    colour = table.wants_colour()
    print(", ".join(f"{key} {value}" for key, value in where.items() if value is not None))
    rows = [_row(name, figure) for name, figure in figures.items()]
    headers = ["figure", "value", "unit", "goal", "met", "runs", ""]
    print(table.render(headers, rows, right=["value", "runs"], colour=colour), end="")
    for name, figure in figures.items():
        if figure.reason:
            print(f"{name}: {figure.reason}", file=sys.stderr)
    return 0


def _measured(arguments: argparse.Namespace) -> dict[str, report.Figure]:
    module = importlib.import_module(BENCHES[arguments.name][1])
    if hasattr(module, "PARTS"):
        only = arguments.only.split(",") if arguments.only else ()
        figures: dict[str, report.Figure] = module.measure(only, arguments.seconds)
        return figures
    if arguments.only or arguments.seconds is not None:
        raise UsageError(f"{arguments.name} is measured as a whole; leave --only and --seconds out")
    figures = module.measure()
    return figures


def _row(name: str, figure: report.Figure) -> list[Any]:
    met = figure.as_json()["met"]
    verdict = None if met is None else table.Cell("yes", "green") if met else table.Cell("no", "red")
    value = None if figure.value is None else f"{figure.value:.4g}"
    spread = f"{min(figure.runs):.4g} to {max(figure.runs):.4g}" if len(figure.runs) > 1 else ""
    return [name, value, figure.unit, figure.goal, verdict, len(figure.runs) or None, spread]
