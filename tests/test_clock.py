"""Checks a rule of CONTRIBUTING.md in the source of the gate's tests: no verdict depends on a clock.

tests/timing may measure and is left out. A line that has to be an exception says why. `# expires: ...` stands behind a
short limit that must expire, `# lasts: ...` behind a sleep that is itself part of what is tested.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.source import Source, clean, python
from tests.tiers import TIMING

CLOCKS = {
    *("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns", "process_time", "thread_time"),
}
LIMITS = {"timeout", "timeout_s", "timeout_ms", "patience_s", "within"}
WAITS = {"wait", "communicate", "poll", "settimeout", "wait_for_line", "wait_for", "join"}


def sources() -> Iterator[Source]:
    return (source for source in python("tests") if not source.name.startswith((TIMING, "tests/conftest.py")))


def excused(source: Source, node: ast.AST, word: str) -> bool:
    lines = source.text.splitlines()[node.lineno - 1 : node.end_lineno]  # type: ignore[attr-defined]
    return any(f"# {word}:" in line for line in lines)


def number(node: ast.AST) -> float:
    """Return the value of a literal number or of a timedelta of literal numbers; 0 for anything else."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "timedelta":
        return max((number(each) for each in [*node.args, *(one.value for one in node.keywords)]), default=0)
    if isinstance(node, ast.BinOp):
        return min(number(node.left), number(node.right))
    value = node.value if isinstance(node, ast.Constant) else 0
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0


def of_a_clock(node: ast.AST, names: set[str]) -> bool:
    return any(
        (isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr in CLOCKS)
        or (isinstance(one, ast.Name) and one.id in names)
        for one in ast.walk(node)
    )


def upper_bounds(function: ast.AST) -> Iterator[ast.AST]:
    """Yield comparisons in asserts that require a clock's value to be less than a literal number."""
    names: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and of_a_clock(node.value, names):
            names |= {one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    compared = (
        one
        for node in ast.walk(function)
        if isinstance(node, ast.Assert)
        for one in ast.walk(node.test)
        if isinstance(one, ast.Compare)
    )
    for node in compared:
        sides = [node.left, *node.comparators]
        for left, how, right in zip(sides, node.ops, sides[1:], strict=False):
            less, more = (left, right) if isinstance(how, (ast.Lt, ast.LtE)) else (right, left)
            if isinstance(how, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) and of_a_clock(less, names) and number(more):
                yield node


def limits_of(node: ast.Call) -> Iterator[ast.AST]:
    """Yield the arguments of a call that limit its time."""
    yield from (one.value for one in node.keywords if one.arg in LIMITS)
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if name in WAITS and len(node.args) == 1:
        yield node.args[0]
    if name == "select" and len(node.args) == 4:
        yield node.args[3]


def loops(tree: ast.AST) -> set[ast.AST]:
    """Return all nodes inside while loops, which look again until a condition holds."""
    return {inner for node in ast.walk(tree) if isinstance(node, ast.While) for inner in ast.walk(node)}


def breaches(source: Source) -> Iterator[str]:
    for node in source.nodes(ast.FunctionDef):
        yield from (
            f"{source.at(one)} asserts how quick something is; assert what came, and measure in tests/timing"
            for one in upper_bounds(node)
        )
    looks = loops(source.tree)
    for node in source.nodes(ast.Call):
        if any(number(limit) for limit in limits_of(node)) and not excused(source, node, "expires"):
            yield f"{source.at(node)} waits for a written time; wait as long as tests/patience.py says"
        if ast.unparse(node.func).endswith("sleep") and node not in looks and not excused(source, node, "lasts"):
            yield f"{source.at(node)} sleeps, as an order of events; wait for the event"


def test_no_verdict_of_the_gate_hangs_on_a_clock() -> None:
    clean(sorted({breach for source in sources() for breach in breaches(source)}))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("begin = time.monotonic()\n    act()\n    assert time.monotonic() - begin < 5", "how quick"),
        ("took = time.perf_counter() - begin\n    assert 0.1 < took <= 2.0", "how quick"),
        ("assert process.wait(20) == 0", "written time"),
        ("group = new_group(timeout=timedelta(seconds=1))", "written time"),
        ("act()\n    time.sleep(0.5)", "sleeps"),
        ("took = time.monotonic() - begin\n    assert took > 1.0", ""),
        ("while not done():\n        time.sleep(0.01)", ""),
        ("process.wait(PATIENCE_S)", ""),
        ("store.wait(keys, timeout=timedelta(seconds=1))  # expires: nobody sets them", ""),
    ],
)
def test_the_rule_sees_what_it_should(text: str, found: str, tmp_path: Path) -> None:
    file = tmp_path / "it.py"
    file.write_text(f"def test():\n    {text}\n")
    seen = list(breaches(Source(file, tmp_path)))
    assert (len(seen) == 1 and found in seen[0]) if found else not seen, seen
