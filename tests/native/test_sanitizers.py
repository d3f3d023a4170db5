"""Builds the native tests with sanitizers and runs them: once for memory and undefined behaviour, once for data races.

A build is kept under a name made of what it was built from, so only a change compiles again. Python is not involved:
what the bindings add is tested by the other files of this folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
BUILDS = ROOT / "build" / "sanitize"
SANITIZERS = {
    "memory": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "races": ["-fsanitize=thread"],
}


def build(name: str) -> Path:
    compiler = os.environ.get("CXX", "c++")
    native = ROOT / "csrc" / "native"
    units = [*sorted({*native.glob("*.cpp")} - {*native.glob("module*.cpp")}), *sorted(HERE.glob("*.cpp"))]
    command = [compiler, "-std=c++17", "-O1", "-g1", "-pthread", "-Wall", "-Wextra", f"-I{native}", f"-I{HERE}"]
    command += SANITIZERS[name]
    digest = hashlib.sha256(" ".join(command).encode())
    for path in sorted({*units, *native.glob("*.hpp"), *HERE.glob("*.hpp")}):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    binary = BUILDS / f"native-{name}-{digest.hexdigest()[:16]}"
    if not binary.exists():
        BUILDS.mkdir(parents=True, exist_ok=True)
        for old in BUILDS.glob(f"native-{name}-*"):
            old.unlink(missing_ok=True)
        fresh = BUILDS / f"{binary.name}.{os.getpid()}"
        subprocess.run([*command, *map(str, units), "-o", str(fresh)], check=True)
        fresh.rename(binary)
    return binary


@pytest.mark.limit(240)
@pytest.mark.parametrize("name", SANITIZERS)
def test_native(name: str) -> None:
    # Thread sanitizer has fixed ideas about addresses that the kernel's wide randomisation breaks.
    fixed_addresses = [shutil.which("setarch") or "setarch", "--addr-no-randomize"] if name == "races" else []
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1:exitcode=66", "ASAN_OPTIONS": "detect_leaks=1"}
    result = subprocess.run(
        [*fixed_addresses, str(build(name))],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert result.returncode == 0, result.stdout
    assert " passed\n" in result.stdout, result.stdout
