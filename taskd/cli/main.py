"""The command `taskd`: finds the file of the called command, loads it and runs it.

The commands are in a static table, so that `taskd --help` loads none of their files: it must answer at once and load
neither torch nor zmq. The file of a command offers `register(subparsers)`. It adds the command's parser and sets `run`
on it, a function from the parsed arguments to the exit code. Commands that are alike share a file, which adds all of
them. `taskd COMMAND --help` shows the table's line, too.

Exit codes: 0 done; 1 the command's own "no", or a fault elsewhere; 2 a usage error (one sentence, no traceback); 130 an
interrupt; 141 the reader of the output has gone. This module does NOT do any command's work.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import taskd
from taskd.errors import TaskdError, UsageError

COMMANDS = (
    ("status", "show every rank: node, pid, epoch, step, phase, beat, step time", "taskd.cli.status"),
    ("events", "show what happened in the job, and with --follow what happens", "taskd.cli.events"),
    ("incidents", "show every fault: who, why this strategy, its phases, its outcome", "taskd.cli.incidents"),
    ("rail", "show the rails, take one out of use or put it back", "taskd.cli.rail"),
    ("pause", "let all ranks stand before one step, until a resume or for a time", "taskd.cli.pause"),
    ("resume", "let the ranks of a paused job go on", "taskd.cli.resume"),
    ("restart-rank", "replace the process of a rank, between two steps", "taskd.cli.errands"),
    ("drain-node", "move the ranks of a node to a spare, between two steps, and end its launcher", "taskd.cli.errands"),
    ("stop", "end the job between two steps, and all of its launchers", "taskd.cli.errands"),
    ("replay", "run a manager's journal through the core again and compare", "taskd.cli.replay"),
    ("policy", "check a policy file, or say what would happen after a fault, and why", "taskd.cli.policy"),
    ("config", "show every setting, its value and where it came from", "taskd.cli.config"),
    ("check", "find the bad node, link or rail, among real nodes or simulated ones", "taskd.cli.check"),
    ("sim", "play a job with faults under virtual time, and check every step of it", "taskd.cli.sim"),
    ("bench", "measure on this machine, and compare with the goals", "taskd.cli.bench"),
    ("doctor", "check this machine and say what to mend, and how", "taskd.cli.doctor"),
)
"""Name, help in one line, and module, in the order in which `taskd --help` shows them."""

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


class Parser(argparse.ArgumentParser):
    """argparse with our form of errors: one sentence, without the usage text before it."""

    see = ""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message.rstrip('.')}; see `{self.see or self.prog} --help`")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except UsageError as error:
        return _refuse(error, EXIT_USAGE)
    except TaskdError as error:
        return _refuse(error, 1)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # `taskd events | head`: the interpreter would complain once more when it flushes at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE


def build_parser(command: str | None = None) -> Parser:
    """Return the parser, with only the wanted command loaded."""
    # We format the list ourselves: argparse would break the line of a command with a long name.
    columns = max(len(name) for name, _, _ in COMMANDS)
    lines = [f"  {name:{columns}}  {line}" for name, line, _ in COMMANDS]
    parser = Parser(
        prog="taskd",
        usage="taskd [-h] [--version] COMMAND ...",
        description="Keeps a distributed PyTorch training job alive from the inside.",
        epilog="\n".join(["commands:", *lines, "", "`taskd COMMAND --help` explains a command."]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.see = f"taskd {command}" if command else "taskd"  # argparse reports stray words from the outermost parser
    parser.add_argument("--version", action="version", version=f"taskd {taskd.__version__}")
    subparsers = parser.add_subparsers(prog="taskd", dest="command", metavar="COMMAND", help=argparse.SUPPRESS)
    for name, line, module in COMMANDS:
        if name == command:
            importlib.import_module(module).register(subparsers)
            subparsers.choices[name].description = f"{line[0].upper()}{line[1:]}."
    for name, _, _ in COMMANDS:
        if name not in subparsers.choices:
            subparsers.add_parser(name, add_help=False)
    return parser


def _run(arguments: list[str]) -> int:
    command = next((word for word in arguments if not word.startswith("-")), None)
    names = [name for name, _, _ in COMMANDS]
    if command is not None and command not in names:
        import difflib  # only needed for an error

        close = difflib.get_close_matches(command, names, n=1)
        guess = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
        raise UsageError(f"there is no command {command!r}; {guess}")
    parser = build_parser(command)
    try:
        parsed = parser.parse_args(arguments)
    except SystemExit as leave:  # --help and --version have printed
        return int(leave.code or 0)
    if command is None:
        parser.print_help()
        return 0
    return int(parsed.run(parsed))


def _refuse(error: TaskdError, code: int) -> int:
    print(f"taskd: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
