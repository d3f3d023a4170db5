"""The doctor's field "identity": settings under which even two undisturbed runs do not agree bit for bit.

taskd promises the weights of the undisturbed run wherever two such runs agree; these are the settings of the
environment that are known to forbid it. It does NOT look into scripts: what they draw at random is theirs to seed.
"""

from __future__ import annotations

import os
from pathlib import Path

from taskd.cli.checks import Finding, ok, warning

TOPIC = "identity"
_CUBLAS_GOOD = {":4096:8", ":16:8"}


def check() -> list[Finding]:
    """Every finding of this field."""
    return [_hash_seed(), _threads(), *_accelerators()]


def _hash_seed() -> Finding:
    name = "PYTHONHASHSEED"
    if os.environ.get(name, "random") != "random":
        return ok(TOPIC, "hash seed", f"{name} is {os.environ[name]}")
    return ok(TOPIC, "hash seed", f"{name} is not set: fine as long as nothing iterates over sets of strings")


def _threads() -> Finding:
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given and not given.isdigit():
        return warning(
            TOPIC,
            "threads",
            f"OMP_NUM_THREADS is {given!r}: sums split over another number of threads round differently",
            "set it to one number on every node",
        )
    if given:
        return ok(TOPIC, "threads", f"OMP_NUM_THREADS is {given}; it must be the same on every node")
    return ok(TOPIC, "threads", "OMP_NUM_THREADS is not set: launchers set 1; sums depend on the number of threads")


def _accelerators() -> list[Finding]:
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return []
    name = "CUBLAS_WORKSPACE_CONFIG"
    if os.environ.get(name) in _CUBLAS_GOOD:
        return [ok(TOPIC, "cublas", f"{name} is {os.environ[name]}")]
    return [
        warning(
            TOPIC,
            "cublas",
            f"{name} is {os.environ.get(name) or 'not set'}: matrix products may differ from run to run",
            f"export {name}=:4096:8, and call torch.use_deterministic_algorithms(True)",
        )
    ]
