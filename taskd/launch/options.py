"""taskd-run's command line: torchrun's options and taskd's own; and a first look at it that needs no torch.

The standby must start before torch is imported here. So `glance` finds out what the standby needs (the script, the
number of workers, what to preload) from the form of the command line alone. A wrong guess costs time, never
correctness: the standby's environment is compared with the workers' before it is used.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from taskd.check.meet import address

FLAGS = (
    "standalone",
    "m",
    "module",
    "no-python",
    "run-path",
    "virtual-local-rank",
    "network-check",
    "exclude-straggler",
    "h",
    "help",
)
"""Options of torchrun without a value."""
_OWN: dict[str, object] = {
    "preload": [],
    "hang": None,
    "policy": None,
    "network_check": False,
    "exclude_straggler": False,
    "check_timeout": 60.0,
    "of_taskd": True,
}
"""taskd's own options, if nobody has given them."""
ENDPOINT = "DLROVER_MASTER_ADDR"
"""The variable in which another launcher has the address where nodes meet."""
DEFAULT_ADDRESS = "127.0.0.1"
"""Where torchrun's nodes meet if nobody says anything."""
RESTARTS = "--max-restarts"
RESTARTS_HELP = (
    "How often one rank may be replaced before the job fails (default: 3; 0 replaces nobody). torchrun counts restarts "
    "of all workers instead, and its default is 0."
)


@dataclass(frozen=True)
class Glance:
    """The result of a first look at the command line."""

    script: str = ""
    module: bool = False
    python: bool = True  # whether workers are Python processes at all
    workers: str = "1"
    preload: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """The folder of the script's own modules."""
        return os.getcwd() if self.module else os.path.dirname(os.path.realpath(self.script))

    @property
    def several(self) -> bool:
        """Whether there is more than one worker on this node, as far as the command line shows."""
        return not (self.workers.isdigit() and int(self.workers) <= 1)


def glance(arguments: Sequence[str], environ: Mapping[str, str]) -> Glance | None:
    """Look at the command line without torch; None: no script will be run."""
    values: dict[str, list[str]] = {"nproc-per-node": [environ.get("PET_NPROC_PER_NODE", "1")]}
    flags = {name for name in FLAGS if environ.get("PET_" + name.upper().replace("-", "_")) == "1"}
    left = list(arguments)
    while left:
        word = left.pop(0)
        if not word.startswith("-"):
            return Glance(
                word,
                module=bool(flags & {"m", "module"}),
                python="run-path" in flags or "no-python" not in flags,
                workers=values["nproc-per-node"][-1],
                preload=tuple(values.get("preload", ())),
            )
        name, equals, _ = word.lstrip("-").replace("_", "-").partition("=")
        if name in FLAGS:
            flags.add(name)
            if name in ("h", "help"):
                return None
            continue
        if name.startswith("nproc"):
            name = "nproc-per-node"
        if word.startswith("--"):
            found = word.partition("=")[2] if equals else (left.pop(0) if left else "")
            values.setdefault(name, []).append(found)
        elif len(word) == 2 and left:  # -r 3, while -r3 has its value with it
            left.pop(0)
    return None


def seen_in(parsed: Namespace) -> Glance:
    """The same for arguments that torchrun's parser has read."""
    return Glance(
        parsed.training_script,
        module=bool(parsed.module),
        python=bool(parsed.run_path) or not parsed.no_python,
        workers=str(parsed.nproc_per_node),
    )


def complete(parsed: Namespace, words: Sequence[str], environ: Mapping[str, str]) -> Namespace:
    """Add taskd's own options to arguments that another parser has read from these words of the command line."""
    said = "PET_MAX_RESTARTS" in environ or any(word.replace("_", "-").startswith(RESTARTS) for word in words)
    most = parsed.max_restarts if said else parsed.max_restarts or None
    return Namespace(**{**vars(parsed), "max_restarts": most, **_OWN})


def take_up(parsed: Namespace, environ: Mapping[str, str]) -> None:
    """Let nodes meet where another launcher's variables say, if the command line says nothing of that."""
    place = environ.get(ENDPOINT, "")
    said = parsed.rdzv_endpoint or parsed.master_port is not None or parsed.master_addr != DEFAULT_ADDRESS
    if not place or said or parsed.rdzv_backend != "static" or parsed.nnodes in ("1", "1:1"):
        return
    parsed.master_addr, parsed.master_port = address(place, 29500)
    if (number := environ.get("NODE_RANK", "")).isdecimal() and parsed.node_rank == 0:
        parsed.node_rank = int(number)


def extend(parser: ArgumentParser) -> ArgumentParser:
    """torchrun's parser with taskd's options; `max_restarts` becomes None if the user did not set it."""
    parser.prog = "taskd-run"
    parser.set_defaults(of_taskd=True)
    parser.description = "torchrun's command line; a worker that fails is replaced while the others keep their process."
    parser.add_argument(
        "--preload",
        action="append",
        default=[],
        metavar="MODULE",
        help="Module that the standby imports, so that workers start with it; may be given several times.",
    )
    parser.add_argument(
        "--hang",
        choices=("replace", "warn"),
        help="What becomes of a worker that a signal has stopped while all others wait; by default it is replaced.",
    )
    parser.add_argument(
        "--policy",
        metavar="FILE",
        help="What is done about which fault (docs/policy.md); `taskd policy check FILE` says whether it is right.",
    )
    parser.add_argument(
        "--network-check",
        "--network_check",
        action="store_true",
        help="Check the nodes before they train (docs/check.md). If its fault is proved, a node leaves with code 69.",
    )
    parser.add_argument(
        "--exclude-straggler",
        "--exclude_straggler",
        action="store_true",
        help="With --network-check: a node that is much slower than the others leaves, too.",
    )
    parser.add_argument(
        "--check-timeout",
        "--check_timeout",
        type=float,
        default=_OWN["check_timeout"],
        metavar="S",
        help="With --network-check: how many seconds nodes may take to come, if enough have come (default: 60).",
    )
    for action in parser._actions:
        if RESTARTS in action.option_strings:
            action.help = RESTARTS_HELP
            if "PET_MAX_RESTARTS" not in os.environ:
                action.default = None
    return parser
