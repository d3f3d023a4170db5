"""Checks the site of the documentation: it builds without a warning, its first script heals, it quotes what taskd says.

The blocks of its pages are checked with those of the README (tests/test_readme.py).
"""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launched import Launched
from tests.patience import PATIENCE_S
from tests.source import ROOT

SAID = re.compile(r"%[-+.0-9]*[a-z]")
"""A place in a text of `logging` where a value comes."""


def test_it_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    home = (tmp_path / "site" / "index.html").read_text()
    assert "weights identical: yes" in home and 'href="session.html"' in home
    commands = (tmp_path / "site" / "reference" / "commands.html").read_text()
    assert "taskd rail out" in commands and "--preload MODULE" in commands
    assert "TASKD_MANAGER_PORT" in (tmp_path / "site" / "reference" / "settings.html").read_text()


@pytest.mark.slow
def test_the_first_script_heals(tmp_path: Path, free_port: Callable[[], int]) -> None:
    script = tmp_path / "train.py"
    script.write_text(re.findall(r"^```python\n(.*?)^```$", page("quick-start"), re.MULTILINE | re.DOTALL)[0])
    ends = []
    for name, victim in (("calm", ""), ("killed", "rank 1, process")):
        folder = tmp_path / name
        folder.mkdir()
        with Launched(folder, free_port(), "--nproc-per-node", "2", str(script), job=name, warm=True) as job:
            if victim:
                named = re.search(rf"{victim} (\d+)", job.wait_for_line(victim))
                assert named is not None
                os.kill(int(named[1]), signal.SIGKILL)
                job.wait_for_line("healed in")
            job.end(0)
        # Python writes the end of a line by itself, so the lines of two ranks may stand in one.
        ends.append(sorted(set(re.findall(r"rank \d: [0-9a-f]{16}", job.text))))
    assert len(ends[0]) == 2 and ends[0] == ends[1]


def test_each_quoted_sentence_is_one_of_ours() -> None:
    quoted = re.findall(r"^\| `([^`]+)`", page("troubleshooting"), re.MULTILINE)
    texts = [text for path in (ROOT / "taskd").rglob("*.py") for text in texts_of(path)]
    assert len(quoted) > 15
    assert not [line for line in quoted if not any(re.search(as_pattern(line), text) for text in texts)]


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


def as_pattern(line: str) -> str:
    return ".*".join(re.escape(part) for part in line.split("..."))


def texts_of(path: Path) -> Iterator[str]:
    """The texts in this file. "..." stands for each value that is put into them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values]
            yield "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield SAID.sub("...", node.value)
