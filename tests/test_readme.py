"""Checks that the commands and programs in the README and in docs/ work.

Every fenced block names its language. A ```python block is run unchanged in an empty folder. In a ```bash block each
command must exist, down to make's targets, taskd's subcommands with their options, and the files that it names. The
only exception is a comment on the line before the block, which readers see, too: <!-- not run: the reason -->.

It does not run the bash blocks: they name `make demo` and `make test`, and one of these runs this file.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.source import ROOT

PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/quick-start.md",
    "docs/your-script.md",
    "docs/recovery.md",
    "docs/session.md",
    "docs/operators.md",
    "docs/policy.md",
    "docs/hangs.md",
    "docs/check.md",
    "docs/retry.md",
    "docs/troubleshooting.md",
)
SHELL_WORDS = {"cd", "export", "source", ".", "kill", "wait", "sed", "git"}
TASKD = "import sys; from taskd.cli.main import main; sys.exit(main())"


@dataclass(frozen=True)
class Block:
    """One fenced block: its place, its language, its text, and why it is not run (None: it is run)."""

    page: str
    line: int
    language: str
    text: str
    excuse: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> list[Block]:
    fence = re.compile(
        r"(?:<!-- not run:(?P<excuse>[^\n]*?)-->\n+)?^```(?P<language>[^\n]*)\n(?P<text>.*?)^```$",
        re.MULTILINE | re.DOTALL,
    )
    return [
        Block(page, text.count("\n", 0, found.start("language")) + 1, found["language"], found["text"], found["excuse"])
        for page in PAGES
        for text in [(ROOT / page).read_text()]
        for found in fence.finditer(text)
    ]


def of_language(language: str) -> list[Block]:
    return [block for block in blocks() if block.language == language and block.excuse is None]


def commands(block: Block) -> list[list[str]]:
    """Return the block's commands as words, without leading assignments, comments and the text of here-documents."""
    text = re.sub(r"<<-?'?(\w+)'?(.*?)$.*?^\1$", r"\2", block.text.replace("\\\n", " "), flags=re.M | re.S)
    found: list[list[str]] = []
    for line in text.splitlines():
        found.append([])
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        for word in lexer:
            if set(word) <= set("();|&"):
                found.append([])
            elif found[-1] or not re.match(r"\w+=", word):
                found[-1].append(word)
    return [command for command in found if command]


@pytest.mark.parametrize("block", of_language("python"), ids=str)
def test_python_block_runs(block: Block, run_python: Callable[..., object]) -> None:
    run_python(block.text)


@pytest.mark.parametrize("block", of_language("bash"), ids=str)
def test_bash_block_names_things_that_exist(block: Block) -> None:
    wrong = [f"{' '.join(command)}: {reason}" for command in commands(block) if (reason := why_wrong(command))]
    if wrong:
        pytest.fail("\n".join([str(block), *wrong]), pytrace=False)


def why_wrong(command: list[str]) -> str | None:
    """Return what would fail in this command, in a checkout with an active virtual environment; None if nothing."""
    name, *arguments = command
    ours = [word for word in arguments if re.match(r"(samples|tests|docs|patches|tools)/\S", word)]
    missing = [word for word in ours if not (ROOT / word).exists()]
    if missing:
        return f"there is no {missing[0]}"
    if name == "make":
        return said("make", "--dry-run", *arguments)
    if name == "taskd":
        return why_wrong_for_taskd(arguments)
    if name in {"python", "python3", ".venv/bin/python"} and arguments[:1] == ["-m"]:
        return None if importlib.util.find_spec(arguments[1]) else f"there is no module {arguments[1]}"
    folders = os.pathsep.join([f"{sys.prefix}/bin", os.environ["PATH"]])
    known = name in SHELL_WORDS or shutil.which(name, path=folders) or (ROOT / name).exists()
    return None if known else f"there is no command {name}"


def why_wrong_for_taskd(arguments: list[str]) -> str | None:
    subcommands = []
    for word in arguments:
        if not re.fullmatch(r"[a-z][a-z-]*", word):
            break
        subcommands.append(word)
    # The last plain words may be arguments, not subcommands. The longest prefix that has its own help counts.
    for length in range(len(subcommands), -1, -1):
        done = subprocess.run(
            [sys.executable, "-c", TASKD, *subcommands[:length], "--help"], cwd=ROOT, capture_output=True, text=True
        )
        if done.returncode == 0 and (length or not subcommands):
            options = [word.partition("=")[0] for word in arguments if word.startswith("--")]
            unknown = [option for option in options if option not in done.stdout]
            return f"has no option {unknown[0]}" if unknown else None
    return f"taskd has no command {subcommands[0]}"


def said(*command: str) -> str | None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return None if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"


def test_every_block_says_its_language_and_every_excuse_its_reason() -> None:
    assert not [str(block) for block in blocks() if not block.language], "fences without a language"
    assert not [str(block) for block in blocks() if block.excuse is not None and not block.excuse.strip()]


def test_first_two_commands_of_the_readme() -> None:
    first = [command for block in of_language("bash") if block.page == "README.md" for command in commands(block)]
    assert first[:2] == [["make", "demo"], ["make", "test"]]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", (ROOT / page).read_text())
    assert not [target for target in targets if not ((ROOT / page).parent / target).exists()]


def test_the_glossary_has_few_words_and_each_once() -> None:
    words = re.findall(r"^\| ([a-z][\w ]*) \|", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    assert 40 < len(words) == len(set(words)) <= 60
