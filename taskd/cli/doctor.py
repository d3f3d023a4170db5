"""`taskd doctor`: checks this machine as a job would find it. Each check reports ok, warning or fault, and the cure.

The checks are in taskd/cli/checks, one module per field. The exit code is 0 if there is no fault (a warning is no
fault), else 1. It does NOT repair, start or change anything.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

from taskd.cli import table
from taskd.cli.checks import FAULT, OK, WARNING, Finding, identity, job, libraries, machine, network, rails

STYLES = {OK: "green", WARNING: "yellow", FAULT: "red"}


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `taskd doctor`."""
    parser = subparsers.add_parser("doctor", epilog="The exit code is 1 if something is at fault.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run every check and print the findings."""
    findings = examine()
    count = {state: sum(finding.state == state for finding in findings) for state in STYLES}
    if arguments.json:
        rows = [dataclasses.asdict(finding) for finding in findings]
        json.dump({"checks": rows, "faults": count[FAULT], "warnings": count[WARNING]}, sys.stdout, indent=2)
        print()
    else:
        table.show(("TOPIC", "CHECK", "STATE", "FINDING"), _rows(findings))
        print(f"\n{_counted(count[FAULT], 'fault')}, {_counted(count[WARNING], 'warning')}")
    return 1 if count[FAULT] else 0


def examine() -> list[Finding]:
    """All findings, field by field."""
    config, settings = job.load()
    return [
        *identity.check(),
        settings,
        *job.check(config),
        *libraries.check(),
        *machine.check(),
        *network.check(config),
        *rails.check(config),
    ]


def _rows(findings: list[Finding]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for finding in findings:
        state = table.Cell(finding.state, STYLES[finding.state])
        rows.append((finding.topic, finding.check, state, finding.sentence))
        if finding.cure:
            rows.append(("", "", "", table.Cell(f"-> {finding.cure}", "bold")))
    return rows


def _counted(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
