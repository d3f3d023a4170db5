"""Builds C++ programs of the tests with sanitizers, once for each content.

An object and a program are kept under names made of what they were made of: only a change compiles again, and what
programs share compiles once, also when two processes want it at the same time.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "csrc"
BUILDS = ROOT / "build" / "sanitize"
PATIENCE = Path(__file__).with_name("patience.hpp")
SANITIZERS = {
    "memory": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "races": ["-fsanitize=thread"],
}


def build(name: str, units: Sequence[Path], kind: str, rooms: Sequence[str] = ("rail", "native")) -> Path:
    """The program `name` made of these units, for one of SANITIZERS; they see the headers of these rooms of csrc."""
    with ThreadPoolExecutor(int(os.environ.get("MAX_JOBS") or len(os.sched_getaffinity(0)))) as pool:
        objects = list(pool.map(lambda unit: compiled(unit, kind, rooms), units))
    digest = hashlib.sha256("\0".join(each.name for each in objects).encode())
    return made(f"{name}-{kind}", digest, "", [*compiler(kind), *map(str, objects)])


def compiled(unit: Path, kind: str, rooms: Sequence[str]) -> Path:
    """The object of one unit, which all programs share: most of the time goes to compiling csrc/rail."""
    folders = list(dict.fromkeys([*(SOURCES / room for room in rooms), unit.parent]))
    command = [*compiler(kind), *(f"-I{folder}" for folder in folders)]
    digest = hashlib.sha256(" ".join(command).encode())
    headers = {header for folder in folders for header in folder.rglob("*.hpp")}
    for path in [unit, PATIENCE, *sorted(headers)]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return made(f"{unit.parent.name}-{unit.stem}-{kind}", digest, ".o", [*command, "-c", str(unit)])


def compiler(kind: str) -> list[str]:
    flags = ["-std=c++17", "-O1", "-g1", "-pthread", "-Wall", "-Wextra"]
    return [os.environ.get("CXX", "c++"), *flags, *SANITIZERS[kind]]


def made(title: str, digest: hashlib._Hash, suffix: str, command: list[str]) -> Path:
    """What this command makes, kept under its title and what it was made of; earlier ones of the title go."""
    path = BUILDS / f"{title}-{digest.hexdigest()[:16]}{suffix}"
    BUILDS.mkdir(parents=True, exist_ok=True)
    with (BUILDS / f"{title}{suffix}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            for old in BUILDS.glob(f"{title}-{'?' * 16}{suffix}"):
                old.unlink(missing_ok=True)
            fresh = BUILDS / f"{path.name}.{os.getpid()}"
            subprocess.run([*command, "-o", str(fresh)], check=True)
            fresh.rename(path)
    return path


def command(binary: Path, kind: str) -> list[str]:
    """How to run it: thread sanitizer has fixed ideas about addresses that the kernel's wide randomisation breaks."""
    setarch = shutil.which("setarch")
    return [*([setarch, "--addr-no-randomize"] if kind == "races" and setarch else []), str(binary)]


def environment(leaks: bool = True) -> dict[str, str]:
    return {
        **os.environ,
        "TSAN_OPTIONS": "halt_on_error=1:exitcode=66",
        "ASAN_OPTIONS": f"detect_leaks={int(leaks)}",
    }


def said(binary: Path, kind: str, *words: object, leaks: bool = True, timeout_s: float | None = None) -> str:
    """What the program prints when it is run with these words; fails the test unless it ends well."""
    done = subprocess.run(
        [*command(binary, kind), *map(str, words)],
        env=environment(leaks),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout
