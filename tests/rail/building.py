"""Builds C++ programs of tests/rail with sanitizers, once for each content.

A build is kept under a name made of what it was built from, so only a change compiles again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
BUILDS = ROOT / "build" / "sanitize"
SANITIZERS = {
    "memory": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "races": ["-fsanitize=thread"],
    "plain": [],
}


def build(name: str, units: list[Path], kind: str) -> Path:
    """The program `name` made of these units, for one of SANITIZERS."""
    folders = [ROOT / "csrc" / "rail", ROOT / "csrc" / "native", *sorted({unit.parent for unit in units})]
    headers = sorted({header for folder in folders for header in folder.glob("*.hpp")})
    command = [os.environ.get("CXX", "c++"), "-std=c++17", "-O1", "-g1", "-pthread", "-Wall", "-Wextra"]
    command += [*(f"-I{folder}" for folder in folders), *SANITIZERS[kind]]
    digest = hashlib.sha256(" ".join(command).encode())
    for path in sorted({*units, *headers}):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    binary = BUILDS / f"{name}-{kind}-{digest.hexdigest()[:16]}"
    if not binary.exists():
        BUILDS.mkdir(parents=True, exist_ok=True)
        for old in BUILDS.glob(f"{name}-{kind}-*"):
            old.unlink(missing_ok=True)
        fresh = BUILDS / f"{binary.name}.{os.getpid()}"
        subprocess.run([*command, *map(str, units), "-o", str(fresh)], check=True)
        fresh.rename(binary)
    return binary


def command(binary: Path, kind: str) -> list[str]:
    """How to run it: thread sanitizer has fixed ideas about addresses that the kernel's wide randomisation breaks."""
    setarch = shutil.which("setarch")
    return [*([setarch, "--addr-no-randomize"] if kind == "races" and setarch else []), str(binary)]


def environment() -> dict[str, str]:
    return {**os.environ, "TSAN_OPTIONS": "halt_on_error=1:exitcode=66", "ASAN_OPTIONS": "detect_leaks=1"}
