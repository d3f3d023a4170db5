"""The guard's lanes and modes, which know no torch, in a storm under the sanitizers for memory and for data races.

A build is kept under a name made of what it was built from, so only a change compiles again. What torch adds to them is
tested with real ranks in the other files of this folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SOURCES = ROOT / "csrc" / "c10d"
PARTS = ("control", "lane", "pool", "record", "rhythm", "watch")
UNITS = [
    *(HERE / f"guard_{name}.cpp" for name in ("stress", "parts")),
    *(SOURCES / f"{name}.cpp" for name in (*PARTS, "lane_judge")),
]
HEADERS = [HERE / "guard_check.hpp", *(SOURCES / f"{name}.hpp" for name in PARTS)]
BUILDS = ROOT / "build" / "sanitize"
SANITIZERS = {
    "memory": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "races": ["-fsanitize=thread"],
}


def build(name: str) -> Path:
    command = [os.environ.get("CXX", "c++"), "-std=c++17", "-O1", "-g1", "-pthread", "-Wall", "-Wextra", f"-I{SOURCES}"]
    command += SANITIZERS[name]
    digest = hashlib.sha256(" ".join(command).encode())
    for path in [*UNITS, *HEADERS]:
        digest.update(path.read_bytes())
    binary = BUILDS / f"guard-{name}-{digest.hexdigest()[:16]}"
    if not binary.exists():
        BUILDS.mkdir(parents=True, exist_ok=True)
        for old in BUILDS.glob(f"guard-{name}-*"):
            old.unlink(missing_ok=True)
        fresh = BUILDS / f"{binary.name}.{os.getpid()}"
        subprocess.run([*command, *map(str, UNITS), "-o", str(fresh)], check=True)
        fresh.rename(binary)
    return binary


@pytest.mark.limit(120)
@pytest.mark.parametrize("name", SANITIZERS)
def test_storm_over_lanes(name: str) -> None:
    # Thread sanitizer has fixed ideas about addresses that the kernel's wide randomisation breaks.
    fixed_addresses = [shutil.which("setarch") or "setarch", "--addr-no-randomize"] if name == "races" else []
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1:exitcode=66", "ASAN_OPTIONS": "detect_leaks=0"}
    for seed in (1, 2):
        result = subprocess.run(
            [*fixed_addresses, str(build(name)), str(seed), "400"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
        )
        assert result.returncode == 0 and result.stdout.startswith("done "), result.stdout
