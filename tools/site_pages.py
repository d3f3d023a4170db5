"""The pages of the site that are made from the project itself, so that they cannot be out of date: a hook of mkdocs.

The front page is README.md, and CONTRIBUTING.md is a page, too. The pages of commands and of settings are printed by
what they describe. mkdocs calls `on_files`. It writes no file.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from taskd import config
from taskd.cli.main import COMMANDS, build_parser
from taskd.config.values import allowed_text

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = "100"
"""The width of the texts of help."""
OWN = {"job.node": "the host's name", "job.run_dir": "/tmp/taskd-UID"}
"""Defaults that are not the same everywhere."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the made pages. mkdocs calls this when it has found the others."""
    from mkdocs.structure.files import File

    for name, text in made().items():
        files.append(File.generated(config, name, content=text))
    return files


def made() -> dict[str, str]:
    """Return the text of each made page by its name."""
    return {
        "index.md": moved("README.md"),
        "contributing.md": moved("CONTRIBUTING.md"),
        "reference/commands.md": "\n".join(commands()),
        "reference/settings.md": "\n".join(settings()),
    }


def moved(name: str) -> str:
    """Return a page of the top folder as a page of the site: its links begin in docs/."""
    text = (ROOT / name).read_text()
    text = re.sub(r"\]\(docs/", "](", text)
    return text.replace("](CONTRIBUTING.md", "](contributing.md").replace("](README.md", "](index.md")


def commands() -> Iterator[str]:
    """The lines of the page about commands."""
    os.environ["COLUMNS"] = COLUMNS
    yield "# Commands\n"
    yield "`taskd-run` starts a job, and `taskd` asks and tells a job that runs. Here is what `--help` prints.\n"
    yield from shown("taskd-run", launcher_options(), "taskd's own options. All options of torchrun work, too.\n")
    for name, _, _ in COMMANDS:
        yield from of_parser(build_parser(name), name)


def of_parser(parser: argparse.ArgumentParser, *words: str) -> Iterator[str]:
    """The help of one command, and of each of its verbs."""
    inner = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    found = inner.choices[words[-1]]
    yield from shown(" ".join(["taskd", *words]), found.format_help())
    if any(isinstance(action, argparse._SubParsersAction) for action in found._actions):
        verbs = next(action for action in found._actions if isinstance(action, argparse._SubParsersAction))
        for verb in verbs.choices:
            yield from of_parser(found, *words, verb)


def shown(title: str, text: str, before: str = "") -> Iterator[str]:
    yield f"## {title}\n\n{before}\n```text\n{text.rstrip()}\n```\n"


def launcher_options() -> str:
    """What `taskd-run --help` says about the options that torchrun does not have, or that mean something else."""
    from torch.distributed.run import get_args_parser

    from taskd.launch.options import extend

    theirs = {action.dest: action.help for action in get_args_parser()._actions}
    own = [action for action in extend(get_args_parser())._actions if theirs.get(action.dest) != action.help]
    formatter = argparse.HelpFormatter("taskd-run", width=int(COLUMNS))
    formatter.add_arguments(own)
    return formatter.format_help()


def settings() -> Iterator[str]:
    """The lines of the page about settings."""
    yield "# Settings and variables\n"
    yield "The first of these that has a value wins: a keyword argument of `taskd.config.load`, a variable of the"
    yield "environment, the YAML file that `TASKD_CONFIG` names. `taskd config show` prints what a process would read,"
    yield "and where each value comes from.\n"
    yield "| Setting | Default | What it means | What it takes | Variables |"
    yield "|---|---|---|---|---|"
    for path, value, _ in config.explain(config.Config()):
        leaf = config.leaves()[path]
        default = OWN.get(path) or (", ".join(map(str, value)) if isinstance(value, tuple) else str(value))
        variables = "<br>".join(f"`{name}`" for name in leaf.variables)
        row = [f"`{path}`", f"`{default}`" if default else "", leaf.doc, allowed_text(leaf), variables]
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
