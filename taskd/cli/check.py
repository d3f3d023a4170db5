"""`taskd check`: find the bad node, link or rail among nodes that meet at an address. Also `taskd check --simulate N
--faults K`: how exact that is, over many seeds of simulated nodes with faults.

Each node runs the command with its own number; number 0 prints what was found. The decision logic is the same for real
and for simulated nodes (core/check), so a verdict that is wrong in a simulation is a fault of taskd. The simulation's
figures are the share of exact verdicts where two healthy nodes can meet, the healthy nodes that would have been
expelled, and the rounds that were used. Each wrong verdict comes with its seed, which plays it again.

It does NOT start, end or mend anything.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from taskd import config as configuration
from taskd.check.meet import LEAVES, Meet, address, check_seconds
from taskd.cli import table
from taskd.core.check.findings import Finding, Report
from taskd.errors import UsageError

MOST_NODES = 4_096
MOST_SEEDS = 1_000_000
ENDPOINT = "DLROVER_MASTER_ADDR"
PORT = 29_600
UNCHECKED = 3
"""The exit code where nothing is known of this node."""


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `taskd check`."""
    parser = subparsers.add_parser("check")
    parser.add_argument("--simulate", type=int, metavar="NODES", help="check so many simulated nodes")
    parser.add_argument("--faults", type=int, default=1, help="how many nodes, links or rails are at fault (1)")
    parser.add_argument("--seeds", type=int, default=100, help="how many checks, each with faults of its own (100)")
    parser.add_argument("--seed", type=int, default=0, help="the first of these seeds (0)")
    parser.add_argument("--kinds", default="all", help="kinds of faults, separated by commas; all, or `list`")
    parser.add_argument("--nnodes", type=int, metavar="N", help="how many nodes meet")
    parser.add_argument("--node-rank", type=int, metavar="K", help="this node's number, from 0 (NODE_RANK)")
    parser.add_argument("--endpoint", metavar="HOST:PORT", help="where node 0 is (the manager's host)")
    parser.add_argument(
        "--check-timeout", type=float, default=60, metavar="S", help="how long nodes may take to come (60)"
    )
    parser.add_argument("--exclude-straggler", action="store_true", help="slow nodes leave, too")
    parser.add_argument("--report", metavar="FILE", help="write all verdicts with their reasons as JSON (node 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Check nodes, or play checks. Return 1 if something is at fault, or a rule was violated."""
    if arguments.simulate is None and arguments.kinds != "list":
        return _check(arguments)
    return _simulate(arguments)


# ---- real nodes -----------------------------------------------------------------------------------------------------


def _check(arguments: argparse.Namespace) -> int:
    meet = _meet(arguments)
    if arguments.report:
        _try_to_write(arguments.report)
    from taskd.check.command import check  # imports torch
    from taskd.check.conductor import as_json

    verdict, report, seconds = check(meet, arguments.exclude_straggler, _say)
    if verdict is not None and verdict.line:
        _say(verdict.line)
    if report is None:
        if verdict is not None:
            print(f"node {meet.number} is {verdict.finding}{verdict.reason and f': {verdict.reason}'}")
        return UNCHECKED if verdict is None else LEAVES if verdict.line else 0
    told = as_json(report, seconds)
    if arguments.report:
        with open(arguments.report, "w") as file:
            json.dump(told, file, indent=2)
    if arguments.json:
        json.dump(told, sys.stdout, indent=2)
        print()
    else:
        _show(report)
    well = all(one.finding is Finding.HEALTHY for one in report.nodes)
    at_fault = 0 if well and not report.rails and not report.links else 1
    return LEAVES if verdict is not None and verdict.line else at_fault


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _try_to_write(path: str) -> None:
    try:
        with open(path, "a"):
            pass
    except OSError as error:
        raise UsageError(f"--report {path} cannot be written: {error.strerror}") from None


def _meet(arguments: argparse.Namespace) -> Meet:
    """How the nodes meet, from the command line and the environment. Raises UsageError."""
    nodes, number = arguments.nnodes, arguments.node_rank
    if nodes is None:
        raise UsageError(
            "--nnodes N says how many nodes are checked; `taskd check --simulate 8 --faults 1` checks simulated ones, "
            "and `taskd doctor` checks this machine alone"
        )
    if not 2 <= nodes <= MOST_NODES:
        raise UsageError(
            f"--nnodes {nodes} must be a number from 2 to {MOST_NODES}: one node is checked by `taskd doctor`"
        )
    if number is None:
        text = os.environ.get("NODE_RANK", "")
        if not text.isdecimal():
            raise UsageError(
                f"--node-rank or NODE_RANK must be this node's number, from 0 to {nodes - 1}; NODE_RANK is {text!r}"
            )
        number = int(text)
    if not 0 <= number < nodes:
        raise UsageError(f"--node-rank {number} must be a number from 0 to {nodes - 1}, since {nodes} nodes meet")
    check_seconds(arguments.check_timeout)
    host, port = _endpoint(arguments.endpoint)
    return Meet(host, port, nodes, number, arguments.check_timeout)


def _endpoint(given: str | None) -> tuple[str, int]:
    """Where node 0 is: as the command line, another launcher's variable or the settings of the manager say."""
    manager = configuration.load()
    is_set = not manager.sources.get("manager.host", "default").startswith("default")
    text = given or os.environ.get(ENDPOINT) or (manager.manager.host if is_set else "")
    if not text:
        raise UsageError(f"--endpoint HOST:PORT says where node 0 is; TASKD_MANAGER_HOST and {ENDPOINT} say it, too")
    return address(text, PORT)


def _show(report: Report) -> None:
    rows = [
        (one.node, one.finding.value, ", ".join(one.components) or None, one.reason, ", ".join(one.witnesses) or None)
        for one in report.nodes
    ]
    table.show(("NODE", "FINDING", "SLOW", "REASON", "WITNESSES"), rows)
    for reason in [*(rail.reason for rail in report.rails), *(link.reason for link in report.links)]:
        print(reason)
    print(f"\n{report.rounds} {'round' if report.rounds == 1 else 'rounds'}, {report.turns} turns")


# ---- simulated ones -------------------------------------------------------------------------------------------------


def _simulate(arguments: argparse.Namespace) -> int:
    from taskd.sim.check import tally  # only this command needs the simulator
    from taskd.sim.check_faults import FAULTS

    if arguments.kinds == "list":
        table.show(("FAULT", "WHAT HAPPENS"), FAULTS.items())
        return 0
    nodes = arguments.simulate
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
