"""Runs the tests of a tier: `tools/gate.py gate -n 3`. Further arguments go to pytest.

It runs each failed test once more, alone. A test that fails among others and passes alone has found a race, most likely
one of the product. Such a test does not stop a landing: it is named at the very end as `unsteady: NODEID`, and belongs
into tests/unsteady.md. A test that fails alone, too, is red. More than five failures at once are red as well. So is
everything that chance does not explain: a finding of a sanitizer, wrong bits, a wrong exit code, or something that the
whole run has left behind.

It decides about verdicts only. How tests are run is the business of pytest and tests/conftest.py.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

FORGIVEN_AT_ONCE = 5
SOME_FAILED = 1  # pytest's exit code
NEVER_FORGIVEN = {
    "AddressSanitizer": "a sanitizer's finding",
    "LeakSanitizer": "a sanitizer's finding",
    "ThreadSanitizer": "a sanitizer's finding",
    "runtime error: ": "a sanitizer's finding",
    "wrong bits": "wrong bits",
    "wrong exit code": "a wrong exit code",
}
"""Maps words in a failure's text to what they mean. tests/verdicts.py writes the last two."""
UNEQUAL = re.compile(r"\bassert .*(?:equal|equal_everywhere|allclose)\(.*\n(?:.*\^\n)?.*(?:E   |AssertionError)")
"""A failed comparison of tensors in a traceback, of the test or of its own processes. It means wrong bits, too."""
Failures = dict[str, str]
SHARED_MIB = 256
"""How much of /dev/shm the tests may need at once."""
MARK = b"PYTEST_RUN_MARK="
"""An environment variable of each process that a test starts, with the pid that ran the test: see tests/conftest.py."""


def pytest(words: Sequence[str]) -> tuple[int, Failures]:
    """Run pytest. Return its exit code, and the text of each failure by the test's name."""
    with tempfile.TemporaryDirectory(prefix="gate-") as folder:
        told = Path(folder, "failures")
        code = subprocess.call([sys.executable, "-m", "pytest", f"--failures={told}", *words])
        return code, json.loads(told.read_text()) if told.exists() else {}


def reason_to_stop(failures: Failures) -> str | None:
    """Return why no second run can make this green, or None if it could."""
    if not failures:
        return "it failed outside of any test"
    apart = len({*failures.values()})  # all tests of a failed fixture have the same text, and count once
    if apart > FORGIVEN_AT_ONCE:
        return f"{apart} tests failed at once, and {FORGIVEN_AT_ONCE} at most are run again"
    for name, text in failures.items():
        for words, meaning in NEVER_FORGIVEN.items():
            if words in text or (meaning == "wrong bits" and UNEQUAL.search(text)):
                return f"{name} has found {meaning}, which no second run takes back"
    return None


def judge(words: Sequence[str]) -> tuple[int, list[str]]:
    """Run the tests. Return the gate's exit code and the lines that it prints at its end."""
    code, failures = pytest(words)
    if code != SOME_FAILED:
        return code, []
    load = "load {:.1f} {:.1f} {:.1f}".format(*os.getloadavg())
    if reason := reason_to_stop(failures):
        return code, [f"red: {reason}"]
    unsteady, red = [], []
    for name in failures:
        print(f"\ngate: once more, alone: {name}", flush=True)
        again, _ = pytest(["--no-header", name])
        if again:
            red.append(f"red: {name} failed alone, too")
        else:
            unsteady.append(f"unsteady: {name}  (passed alone; {load} at the end of the first run)")
    return (code, red + unsteady) if red else (0, unsteady)


def surroundings(lock: TextIO) -> Iterator[str]:
    """Yield what may make tests fail or skip without their fault. It is printed before they run, and never judged."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield "other tests run on this machine at this moment; both take longer"
    shared = os.statvfs("/dev/shm")
    free_mib = shared.f_bavail * shared.f_frsize >> 20
    if free_mib < SHARED_MIB:
        yield f"/dev/shm has {free_mib} MiB left, and tests may need {SHARED_MIB}; empty it"
    ahead_s = max(path.stat().st_mtime for path in Path(__file__).parent.iterdir()) - time.time()
    if ahead_s > 60:
        yield f"the clock is {ahead_s / 3600:.1f} h behind the files here, and what is built may be built again; set it"
    if len(os.sched_getaffinity(0)) < 2:
        yield "there is one processor: the processes take turns, and all takes twice as long"
    if os.geteuid() or not (shutil.which("ip") and shutil.which("tc")):
        yield "without root, `ip` and `tc` the tests in network namespaces skip"
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            environment = Path("/proc", pid, "environ").read_bytes().split(b"\0")
            command = Path("/proc", pid, "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue  # the process has ended, or belongs to another user
        marks = [word[len(MARK) :].split(b"-")[0].decode() for word in environment if word.startswith(MARK)]
        if marks and not Path("/proc", marks[0]).exists():
            yield f"process {pid} was left behind by tests that were killed; end it: {command[:120]}"


def main() -> int:
    tier, *words = sys.argv[1:]
    begin = time.monotonic()
    with Path(tempfile.gettempdir(), f"taskd-gate-{os.geteuid()}.lock").open("w") as lock:
        for sentence in surroundings(lock):
            print(f"{tier}: {sentence}", flush=True)
        code, said = judge([f"--tier={tier}", *words])
    minutes, seconds = divmod(round(time.monotonic() - begin), 60)
    print("", *said, f"{tier}: {'red' if code else 'green'} after {minutes}:{seconds:02} min", sep="\n", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
