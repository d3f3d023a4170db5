"""How exact the check of nodes is, and how long it takes: `taskd bench check`.

Part "simulated" plays checks of nodes with faults under many seeds (`taskd check --simulate`). Part "nodes" lets
several nodes of this machine check each other by real probes (`taskd check --nnodes`), all well or one of them with a
probe that is killed. They share this machine's processors, so the times are longer than on hosts of their own. The
time runs from when each node has tested itself until the verdicts. It does not contain the start of Python and torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from taskd.bench import parts
from taskd.bench.report import Figure, Goal, median, unmeasured
from taskd.processes import started_by

CASES = {(4, 1): 300, (4, 2): 300, (5, 1): 300, (16, 6): 100, (64, 8): 20, (512, 20): 2}
"""Nodes and faults, and for how many seeds they are played."""
CLEAN = {4: 5, 8: 3}
"""Nodes, and how often they check each other."""
FAULTY, FAULTY_RUNS, VICTIM = 4, 5, 2
CLEAN_GOAL_S, FAULTY_GOAL_S = 3.0, 10.0
ROUNDS = 4
PATIENCE_S = 300.0
PROBE = "taskd.check"
FAMILY = 64
"""A launcher has not more processes than this, with those that they have started."""


def simulated() -> dict[str, Figure]:
    """Play all cases."""
    told = [_played(nodes, faults, seeds) for (nodes, faults), seeds in CASES.items()]
    decidable, expelled = sum(one["decidable"] for one in told), sum(one["healthy_expelled"] for one in told)
    shares = [one["exact_share"] for one in told]
    exact = sum(one["exact_share"] * one["decidable"] for one in told) / decidable
    return {
        "exact_share": Figure(exact, "share", Goal("==", 1), shares),
        "healthy_expelled": Figure(expelled, "nodes", Goal("==", 0)),
        "rounds_max": Figure(max(one["rounds_max"] for one in told), "rounds", Goal("<=", ROUNDS)),
    }


def _played(nodes: int, faults: int, seeds: int) -> dict[str, Any]:
    words = ["--simulate", str(nodes), "--faults", str(faults), "--seeds", str(seeds), "--json"]
    done = subprocess.run([sys.executable, "-m", "taskd", "check", *words], capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    print(f"{nodes} nodes, {faults} faults: exact {found['exact_share']}", file=sys.stderr, flush=True)
    return found


def nodes() -> dict[str, Figure]:
    """Let real nodes check each other."""
    figures, exact = dict[str, Figure](), list[float]()
    for count, runs in CLEAN.items():
        told = [_checked(count) for _ in range(runs)]
        figures[f"clean_{count}_s"] = _times(told, CLEAN_GOAL_S)
        exact += [float(_is_exact(one, None)) for one in told]
    told = [_checked(FAULTY, VICTIM) for _ in range(FAULTY_RUNS)]
    figures["one_faulty_s"] = _times(told, FAULTY_GOAL_S)
    exact += [float(_is_exact(one, VICTIM)) for one in told]
    return figures | {"named_exactly_share": Figure(sum(exact) / len(exact), "share", Goal("==", 1), exact)}


def _times(told: list[dict[str, Any]], goal_s: float) -> Figure:
    seconds = [one["seconds"] for one in told if one]
    return median(seconds, "s", Goal("<", goal_s)) if seconds else unmeasured("s", "no check came to its end")


def _is_exact(told: dict[str, Any], victim: int | None) -> bool:
    """Whether the verdicts are the right ones, about nodes, rails and links."""
    if not told:
        return False
    findings = ["down" if one["node"] == victim else "healthy" for one in told["nodes"]]
    return [one["finding"] for one in told["nodes"]] == findings and not told["rails"] and not told["links"]


def _checked(count: int, victim: int | None = None) -> dict[str, Any]:
    """Let so many nodes check each other, and return the report. Empty: there was none."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        holder.close()
        report = Path(folder, "report.json")
        words = ["--nnodes", str(count), "--endpoint", f"127.0.0.1:{port}", "--report", str(report)]
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "taskd", "check", *words[: 4 if at else 6], "--node-rank", str(at)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for at in range(count)
        ]
        try:
            if victim is not None:
                _kill_probe(started[victim])
            for process in started:
                process.wait(PATIENCE_S)
            told: dict[str, Any] = json.loads(report.read_text() or "{}")
        except (subprocess.TimeoutExpired, OSError):
            told = {}
        finally:
            for process in started:
                process.kill()
                process.wait()
    print(f"{count} nodes, {victim=}: {told.get('seconds')} s", file=sys.stderr, flush=True)
    return told


def _kill_probe(launcher: subprocess.Popen[bytes]) -> None:
    """Kill the probe of a node as soon as there is one."""
    ends = time.monotonic() + PATIENCE_S
    while launcher.poll() is None and time.monotonic() < ends:
        for child in started_by(launcher.pid, FAMILY):
            with contextlib.suppress(OSError):
                if PROBE.encode() in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                    os.kill(child, signal.SIGKILL)
                    return
        time.sleep(0.01)  # nothing tells when another process starts a child


def measure(only: Sequence[str] = (), calm_s: float | None = None) -> dict[str, Figure]:
    """All figures, or those of some parts."""
    return parts.measure(PARTS, only, calm_s or 0.0)


PARTS: dict[str, Callable[..., dict[str, Figure]]] = {"simulated": simulated, "nodes": nodes}
