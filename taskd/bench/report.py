"""The format of every benchmark's report: figures with unit, goal and all runs, and a description of the machine.

A figure that cannot be measured here is reported as null with a reason, and never left out. Each figure says whether
its goal was met; this changes no exit code. This module measures nothing itself.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import taskd


@dataclass(frozen=True)
class Goal:
    """The goal of a figure: `sign` is one of < <= > >= ==."""

    sign: str
    bound: float

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g}"

    def met(self, value: float) -> bool:
        """Whether a value reaches this goal."""
        compare = {
            "<": value < self.bound,
            "<=": value <= self.bound,
            ">": value > self.bound,
            ">=": value >= self.bound,
            "==": value == self.bound,
        }
        return compare[self.sign]


@dataclass(frozen=True)
class Figure:
    """One number. `value` None: it could not be measured, and `reason` says why."""

    value: float | None
    unit: str
    goal: Goal | None = None
    runs: Sequence[float] = field(default_factory=tuple)
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """The stable form for scripts."""
        met = None if self.value is None or self.goal is None else self.goal.met(self.value)
        found: dict[str, Any] = {
            "value": _short(self.value),
            "unit": self.unit,
            "goal": None if self.goal is None else str(self.goal),
            "met": met,
            "runs": [_short(run) for run in self.runs],
        }
        if self.reason:
            found["reason"] = self.reason
        return found


def median(runs: Sequence[float], unit: str, goal: Goal | None = None) -> Figure:
    """The figure of several runs."""
    return (
        Figure(statistics.median(runs), unit, goal, tuple(runs))
        if runs
        else unmeasured(unit, "no run gave a value", goal)
    )


def percentile(runs: Sequence[float], share: float, unit: str, goal: Goal | None = None) -> Figure:
    """The smallest run that is not exceeded by `share` of all runs."""
    if not runs:
        return unmeasured(unit, "no run gave a value", goal)
    ordered = sorted(runs)
    return Figure(ordered[min(len(ordered) - 1, int(share * len(ordered)))], unit, goal, tuple(runs))


def unmeasured(unit: str, reason: str, goal: Goal | None = None) -> Figure:
    """A figure that this machine cannot give."""
    return Figure(None, unit, goal, (), reason)


def machine() -> dict[str, Any]:
    """The machine that was measured: cores, the load before the measurement, versions, the commit."""
    try:
        torch_version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch_version = None
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "torch": torch_version,
        "python": platform.python_version(),
        "taskd": taskd.__version__,
        "commit": _commit(),
    }


def as_json(name: str, where: dict[str, Any], figures: dict[str, Figure]) -> str:
    """The whole report as one JSON object for scripts."""
    return json.dumps(
        {"bench": name, "machine": where, "figures": {key: figure.as_json() for key, figure in figures.items()}}
    )


def _commit() -> str | None:
    """The commit of the checkout from which this package runs; None for an installed package."""
    root = Path(taskd.__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    found = subprocess.run(
        ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"],
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or None


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
