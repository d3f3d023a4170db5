"""Reads the project's own files for the tests that judge their form.

Each Python file is read and parsed only once for all tests. It judges nothing itself.
"""

from __future__ import annotations

import ast
import os
from collections import defaultdict
from collections.abc import Iterator
from functools import cache, cached_property
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOT_OURS = {
    ".git",
    ".venv",
    "build",
    "dist",
    "taskd.egg-info",
    "shared",
    "__pycache__",
    ".hypothesis",
    ".ruff_cache",
    ".mypy_cache",
}


class Source:
    """One Python file, read and parsed once."""

    def __init__(self, path: Path, root: Path = ROOT) -> None:
        self.path = path
        self.name = str(path.relative_to(root))
        self.text = path.read_text()
        self.lines = self.text.splitlines()
        self.tree = ast.parse(self.text, self.name)

    @property
    def room(self) -> str:
        """Return the file's room in taskd/: "core", "errors", ..., "__init__" for taskd/__init__.py."""
        return Path(self.name).parts[1].removesuffix(".py")

    def at(self, node: ast.AST | int) -> str:
        return f"{self.name}:{node if isinstance(node, int) else node.lineno}"

    def nodes(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        """Yield the nodes of exactly these classes, class by class."""
        return chain.from_iterable(self._by_kind.get(kind, ()) for kind in kinds)

    @cached_property
    def _by_kind(self) -> dict[type[ast.AST], list[ast.AST]]:
        found = defaultdict(list)
        for node in ast.walk(self.tree):
            found[type(node)].append(node)
        return found

    def imports(self) -> Iterator[tuple[str, int]]:
        """Yield (module, line) of every import, inside functions too, but not of imports for type checkers only."""
        for base, name, line, for_types in self.imported():
            # `from taskd import log` imports the room log, `from taskd.log import get` does too.
            if not for_types:
                yield f"{base}.{name}" if name and base == "taskd" else base, line

    def imported(self) -> Iterator[tuple[str, str, int, bool]]:
        """Yield (module, name in it, line, for type checkers only) of every import, inside functions too. The name may
        be a module; it is empty for `import module`."""
        unreal = {
            id(inner)
            for node in self.nodes(ast.If)
            if "TYPE_CHECKING" in ast.unparse(node.test)
            for statement in node.body
            for inner in ast.walk(statement)
        }
        for node in self.nodes(ast.Import, ast.ImportFrom):
            if isinstance(node, ast.Import):
                yield from ((alias.name, "", node.lineno, id(node) in unreal) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                package = [] if node.level == 0 else list(Path(self.name).parts[: -node.level])
                base = ".".join([*package, *([node.module] if node.module else [])])
                yield from ((base, alias.name, node.lineno, id(node) in unreal) for alias in node.names)


@cache
def files_below(*folders: str) -> list[Path]:
    found = []
    for folder in folders:
        for here, inner, names in os.walk(ROOT / folder):
            inner[:] = set(inner) - NOT_OURS  # a build may change these folders meanwhile
            found += [path for name in names if (path := Path(here, name)).is_file()]
    return sorted(found)


def python(*folders: str) -> list[Source]:
    return [source_at(path) for path in files_below(*folders) if path.suffix == ".py"]


source_at = cache(Source)


@cache
def texts() -> list[tuple[str, list[str]]]:
    """Return every file that people write, as (name, lines)."""
    kinds = {
        ".py",
        ".pyi",
        ".cpp",
        ".hpp",
        ".h",
        ".md",
        ".toml",
        ".txt",
        ".sh",
        ".yaml",
        ".yml",
        ".html",
        ".in",
        ".pth",
        "",
    }
    found = [path for path in files_below(".") if path.suffix in kinds and not path.name.startswith(".coverage")]
    return [(str(path.relative_to(ROOT)), path.read_text().splitlines()) for path in found]


def clean(breaches: list[str]) -> None:
    """Fail with one line per breach, without a traceback of the rule that found it."""
    if breaches:
        pytest.fail("\n".join(breaches), pytrace=False)
