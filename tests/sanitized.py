"""Builds the C++ programs of the tests with sanitizers, once for each state of their sources.

`python -m tests.sanitized memory races` builds all of PROGRAMS ahead, so that no test has to wait for a compiler.

The name of an object or a program contains a hash of what it is made of. So only a change compiles again.
What programs share compiles once, also when two processes need it at the same time.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "csrc"
BUILDS = ROOT / "build" / "sanitize"
PATIENCE = Path(__file__).with_name("patience.hpp")
SANITIZERS = {
    "memory": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "races": ["-fsanitize=thread"],
}


@dataclass(frozen=True)
class Program:
    """The parts of one program. Its units may include the headers of these rooms of csrc."""

    units: Sequence[Path]
    rooms: Sequence[str] = ("rail", "native")


def units(room: str, *names: str) -> list[Path]:
    """Return sources of a room of csrc, by patterns of their names."""
    return sorted({path for name in names for path in (SOURCES / room).glob(f"{name}.cpp")})


def tests(room: str, *names: str) -> list[Path]:
    """Return sources of a room of the tests, by patterns of their names."""
    return sorted({path for name in names for path in (ROOT / "tests" / room).glob(f"{name}.cpp")})


FUZZED = ("counters", "io/*", "session/*")
GUARD = ("control", "forks", "lane", "lane_judge", "pool", "record", "rhythm", "watch")
PROGRAMS = {
    "rail-sessions": Program([*units("rail", "**/*"), *tests("rail/sessions", "*")]),
    "rail-collectives": Program(
        [*units("rail", "**/*"), *tests("rail", "suite", "cases", "reference", "fake_world", "*_tests")]
    ),
    "rail-fuzz": Program([*units("rail", *FUZZED), *tests("rail/fuzz", "*")]),
    "rail-parts": Program([*units("rail", "counters", "io/interfaces", "io/key", "tally"), *tests("rail/parts", "*")]),
    "native": Program(
        [*(unit for unit in units("native", "*") if not unit.name.startswith("module")), *tests("native", "*")],
        ["native"],
    ),
    "guard": Program([*tests("train", "guard_stress", "guard_parts"), *units("c10d", *GUARD)], ["c10d"]),
}


def build(name: str, kind: str) -> Path:
    """Build one of PROGRAMS for one of SANITIZERS and return its path."""
    units, rooms = PROGRAMS[name].units, PROGRAMS[name].rooms
    with ThreadPoolExecutor(int(os.environ.get("MAX_JOBS") or len(os.sched_getaffinity(0)))) as pool:
        objects = list(pool.map(lambda unit: compiled(unit, kind, rooms), units))
    digest = hashlib.sha256("\0".join(each.name for each in objects).encode())
    return made(f"{name}-{kind}", digest, "", [*compiler(kind), *map(str, objects)])


def compiled(unit: Path, kind: str, rooms: Sequence[str]) -> Path:
    """Return the object of one unit. All programs share it, since most of the time goes to compiling csrc/rail."""
    command = [*compiler(kind), f"-I{SOURCES}"]
    digest = hashlib.sha256(" ".join(command).encode())
    place = unit.relative_to(ROOT)
    folders = [*(SOURCES / room for room in rooms), ROOT / place.parts[0] / place.parts[1]]
    headers = {header for folder in folders for header in folder.rglob("*.hpp")}
    for path in [unit, PATIENCE, *sorted(headers)]:
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    title = "-".join(place.with_suffix("").parts)  # the whole path: two folders may hold units of one name
    return made(f"{title}-{kind}", digest, ".o", [*command, "-c", str(unit)])


def compiler(kind: str) -> list[str]:
    flags = ["-std=c++17", "-O1", "-g1", "-pthread", "-Wall", "-Wextra"]
    return [os.environ.get("CXX", "c++"), *flags, *SANITIZERS[kind]]


def made(title: str, digest: hashlib._Hash, suffix: str, command: list[str]) -> Path:
    """Run this command once and return its product, named after title and digest. Older ones of the title go."""
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
    """Return how to run it. Thread sanitizer expects fixed address ranges; wide kernel randomisation breaks them."""
    setarch = shutil.which("setarch")
    return [*([setarch, "--addr-no-randomize"] if kind == "races" and setarch else []), str(binary)]


def environment(leaks: bool = True) -> dict[str, str]:
    return {
        **os.environ,
        "TSAN_OPTIONS": "halt_on_error=1:exitcode=66",
        "ASAN_OPTIONS": f"detect_leaks={int(leaks)}",
    }


def said(binary: Path, kind: str, *words: object, leaks: bool = True, timeout_s: float | None = None) -> str:
    """Run the program with these words and return its output. Fail the test unless it exits with 0."""
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


def main() -> None:
    for kind in sys.argv[1:]:
        for name in PROGRAMS:
            build(name, kind)


if __name__ == "__main__":
    main()
