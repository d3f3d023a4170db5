"""Plants a dozen faults, one line each, and checks that the gate's tests which should see a fault are red.

Each fault goes into a copy of the committed files. The checkout stays as it is. `tools/planted.py` plants all faults,
`tools/planted.py NUMBER ...` some of them. The exit code is 0 if every fault was seen. This shows that tests can fail,
and no more.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_S = "30"
"""Shorter than the gate's: the sign of a planted fault is often that something never comes."""
SOME_FAILED = 1  # pytest's exit code


@dataclass(frozen=True)
class Fault:
    what: str
    file: str
    line: str
    planted: str
    tests: tuple[str, ...]


FAULTS = (
    Fault(
        "the standby forks, and the fork ends at once",
        "taskd/launch/standby_process.py",
        "            child = _fork_of_middle(tell)",
        "            child = _fork_of_middle(tell) or os._exit(1)",
        ("tests/shell/test_standby.py",),
    ),
    Fault(
        "one element of a sum is left out",
        "csrc/rail/reduce/kernels.hpp",
        "            Op::apply(values[index], other);",
        "            if (at != 4096) Op::apply(values[index], other);",
        ("tests/rail/test_collectives.py::test_over_a_fake_transport",),
    ),
    Fault(
        "an agent outlives its last worker",
        "taskd/agent/loop.py",
        "            linger_ns=config.agent.linger_ms * MS,",
        "            linger_ns=config.agent.linger_ms * MS * 10_000,",
        ("tests/shell/test_agent_plane.py::test_the_agent_ends_soon_after_its_last_worker",),
    ),
    Fault(
        "two rails are swapped",
        "csrc/rail/io/endpoint.cpp",
        "                pairs.emplace_back(here, there);",
        "                pairs.emplace_back(here, taken_there.size() - 1 - there);",
        ("tests/rail/test_sessions.py::test_parts_of_a_session",),
    ),
    Fault(
        "the journal loses its first row of each transaction",
        "taskd/manager/journal.py",
        '            self._database.executemany("INSERT INTO steps VALUES (?, ?, ?, ?, ?)", waiting)',
        '            self._database.executemany("INSERT INTO steps VALUES (?, ?, ?, ?, ?)", waiting[1:])',
        ("tests/shell/test_journal.py",),
    ),
    Fault(
        "a repair begins no epoch",
        "taskd/core/job.py",
        "        self.epoch += 1",
        "        self.epoch += 0",
        ("tests/scripts", "tests/core"),
    ),
    Fault(
        "a signal is told as an exit code",
        "taskd/agent/deaths.py",
        "            told = self._explain(worker, code, reason)",
        "            told = self._explain(worker, abs(code) if code else code, reason)",
        ("tests/shell/test_agent_plane.py::test_every_kind_of_end_has_its_exit_code",),
    ),
    Fault(
        "silence needs no second witness",
        "taskd/core/detector.py",
        "        by, witness = self._collective_witness",
        '        return "planted"',
        ("tests/core/test_detector.py", "tests/scripts"),
    ),
    Fault(
        "a generator is not put back",
        "taskd/state/rng.py",
        "        _python.restore(state[_HEAD.size : numpy_at])",
        "        pass",
        ("tests/train/test_session.py",),
    ),
    Fault(
        "the door lets in whoever speaks CURVE",
        "taskd/wire/keys.py",
        "    if known:",
        '    if mechanism == b"CURVE":',
        ("tests/shell/test_manager_door.py", "tests/shell/test_keys.py"),
    ),
    Fault(
        "buffers are not put back into a step that is done again",
        "taskd/state/local.py",
        "            buffer.detach().copy_(buffers.models[name])",
        "            pass",
        ("tests/train/test_session.py", "tests/train/test_heal.py::test_killed_in_turn_at_every_place"),
    ),
    Fault(
        "a newcomer that is set up otherwise is let in",
        "taskd/state/restore.py",
        "    if all(row == digests[0] for row in digests):",
        "    if digests:",
        ("tests/train/test_heal_bad_input.py::test_a_newcomer_that_is_set_up_otherwise",),
    ),
)


def copy_to(folder: Path) -> None:
    """Copy the committed files into this folder, and with them what was built from them."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x"], cwd=folder, input=archive, check=True)
    for built in [*ROOT.glob("taskd/*.so"), *ROOT.glob("build/sanitize/*")]:
        place = folder / built.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(built, place)


def is_seen(fault: Fault) -> bool:
    with tempfile.TemporaryDirectory(prefix="planted-") as name:
        folder = Path(name)
        copy_to(folder)
        file = folder / fault.file
        text = file.read_text()
        assert text.count(fault.line + "\n") == 1, f"{fault.file} has no line, or several, like\n{fault.line}"
        file.write_text(text.replace(fault.line + "\n", fault.planted + "\n"))
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "--tier", "gate", *fault.tests],
            cwd=folder,
            # PYTHONPATH comes before the editable install, which is the checkout without the fault.
            env={**os.environ, "TEST_PATIENCE_S": PATIENCE_S, "PYTHONPATH": str(folder)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        (ROOT / "build" / "planted.log").write_text(done.stdout + done.stderr)
        return done.returncode == SOME_FAILED


def main() -> int:
    chosen = [int(word) for word in sys.argv[1:]] or range(1, len(FAULTS) + 1)
    missed = 0
    for number in chosen:
        seen = is_seen(FAULTS[number - 1])
        missed += not seen
        print(f"{number:2}  {'red ' if seen else 'GREEN'}  {FAULTS[number - 1].what}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} planted faults were seen")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
