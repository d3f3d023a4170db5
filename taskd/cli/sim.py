"""`taskd sim`: simulates a job of any size in virtual time, with faults from a seed and checkers that watch every step.

The state machines inside are the production ones, so a story that fails here is a fault of taskd. The output names the
violated rule, shows what led to it and ends with the command that plays it again. No real process is started, and
nothing else is needed.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from taskd.cli import table
from taskd.core import limits
from taskd.errors import UsageError

MOST_MINUTES = 100_000


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `taskd sim`."""
    parser = subparsers.add_parser("sim")
    parser.add_argument("--ranks", type=int, default=16, help="ranks of the job (16)")
    parser.add_argument("--minutes", type=float, default=1.0, help="virtual minutes in which faults strike (1)")
    parser.add_argument(
        "--seed", type=int, default=0, help="decides everything else: the same seed is the same story (0)"
    )
    parser.add_argument("--faults", default="all", help="kinds of faults, separated by commas; all, none, or `list`")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Play one story; return 1 if a rule was violated."""
    from taskd.sim.scenario import FAULTS, Options  # only this command needs the simulator
    from taskd.sim.story import simulate

    if arguments.faults == "list":
        table.show(("FAULT", "WHAT HAPPENS"), FAULTS.items())
        return 0
    if not 1 <= arguments.ranks <= limits.MAX_RANKS:
        raise UsageError(f"--ranks {arguments.ranks} must be a number from 1 to {limits.MAX_RANKS}")
    if not 0 < arguments.minutes <= MOST_MINUTES:
        raise UsageError(f"--minutes {arguments.minutes:g} must be more than 0 and at most {MOST_MINUTES}")
    result = simulate(Options(arguments.ranks, arguments.minutes, arguments.seed, _kinds(arguments.faults, FAULTS)))
    if arguments.json:
        json.dump(result.as_json(), sys.stdout, indent=2)
        print()
    else:
        table.show(
            ("WHAT", "VALUE"), [(name.replace("_", " "), _text(value)) for name, value in result.summary.items()]
        )
        if not result.ok:
            print(f"\n{result.complaint()}")
    return 0 if result.ok else 1


def _kinds(text: str, known: dict[str, str]) -> tuple[str, ...]:
    """The given kinds, in the order in which the seed draws from them. Their order in the text does not matter."""
    if text in ("all", "none"):
        return tuple(known) if text == "all" else ()
    wanted = [kind.strip() for kind in text.split(",")]
    for kind in wanted:
        if kind not in known:
            raise UsageError(f"there is no fault {kind!r}; there are {', '.join(known)}, all and none")
    return tuple(kind for kind in known if kind in wanted)


def _text(value: Any) -> Any:
    if isinstance(value, dict):
        return ", ".join(f"{name} {number}" for name, number in value.items()) or None
    return value
