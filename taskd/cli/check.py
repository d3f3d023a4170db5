"""`taskd check --simulate N --faults K`: how exact the check of nodes is, over many seeds of simulated nodes with
faults.

The decision logic is the production one (core/check), so a verdict that is wrong here is a fault of taskd. The figures
are the share of exact verdicts where two healthy nodes can meet, the healthy nodes that would have been expelled, and
the rounds that were used. Each wrong verdict comes with its seed, which plays it again.

This command does NOT check real nodes: no probe exists yet that would measure them. Without --simulate it says so.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from taskd.cli import table
from taskd.errors import UsageError

MOST_NODES = 4_096
MOST_SEEDS = 1_000_000


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `taskd check`."""
    parser = subparsers.add_parser("check")
    parser.add_argument("--simulate", type=int, metavar="NODES", help="check so many simulated nodes")
    parser.add_argument("--faults", type=int, default=1, help="how many nodes, links or rails are at fault (1)")
    parser.add_argument("--seeds", type=int, default=100, help="how many checks, each with faults of its own (100)")
    parser.add_argument("--seed", type=int, default=0, help="the first of these seeds (0)")
    parser.add_argument("--kinds", default="all", help="kinds of faults, separated by commas; all, or `list`")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Play the checks; return 1 if a rule was violated."""
    from taskd.sim.check import tally  # only this command needs the simulator
    from taskd.sim.check_faults import FAULTS

    if arguments.kinds == "list":
        table.show(("FAULT", "WHAT HAPPENS"), FAULTS.items())
        return 0
    nodes = arguments.simulate
    if nodes is None:
        raise UsageError(
            "real nodes cannot be checked yet; `taskd check --simulate 8 --faults 1` checks simulated ones, and "
            "`taskd doctor` checks this machine"
        )
    if not 2 <= nodes <= MOST_NODES:
        raise UsageError(f"--simulate {nodes} must be a number from 2 to {MOST_NODES}")
    if not 0 <= arguments.faults <= nodes:
        raise UsageError(f"--faults {arguments.faults} must be a number from 0 to {nodes}, the number of nodes")
    if not 1 <= arguments.seeds <= MOST_SEEDS:
        raise UsageError(f"--seeds {arguments.seeds} must be a number from 1 to {MOST_SEEDS}")
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    found = tally(nodes, arguments.faults, seeds, _kinds(arguments.kinds, FAULTS))
    told = found.as_json()
    if arguments.json:
        json.dump(told, sys.stdout, indent=2)
        print()
    else:
        rows = [(name.replace("_", " "), _text(value)) for name, value in told.items() if name not in ("ok", "found")]
        table.show(("WHAT", "VALUE"), rows)
        for line in told["found"]:
            print(f"\n{line}")
    return 0 if found.ok else 1


def _kinds(text: str, known: dict[str, str]) -> tuple[str, ...]:
    if text == "all":
        return tuple(known)
    wanted = [kind.strip() for kind in text.split(",")]
    for kind in wanted:
        if kind not in known:
            raise UsageError(f"there is no fault {kind!r}; there are {', '.join(known)}, and all")
    return tuple(kind for kind in known if kind in wanted)


def _text(value: Any) -> Any:
    if isinstance(value, dict):
        return ", ".join(f"{name} {number}" for name, number in value.items()) or None
    return value
