"""Tests faults from outside and at bad moments: the system's memory killer, a second death at any moment of a heal, a
death while the others make their groups, a host that refuses a worker its memory files.

If a job must go on, its weights must equal those of the run without a fault.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskd.bench.job import Job
from tests.launched import Launched
from tests.verdicts import same_bits

SCRIPT = Path(__file__).parent / "workers" / "heal_ddp.py"
STEPS = 16
RANKS = 4
WORDS = (32, 2, 20_000)
"""Arguments of the training that the benchmarks use, too: a small model, and more steps than a test needs."""
BYTES = 400 << 20
"""The memory limit at which the system kills a rank: more than the rank needs, less than the machine has."""
pytestmark = pytest.mark.slow
Run = Callable[..., Launched]


@pytest.fixture
def run(tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Run]:
    started: list[Launched] = []

    def launch(name: str, *more: str, bounds: dict[int, int] | None = None, **variables: str) -> Launched:
        folder = tmp_path / name
        folder.mkdir()
        words = ["--nproc-per-node", str(RANKS), str(SCRIPT), "--folder", str(folder), "--steps", str(STEPS), *more]
        job = f"{name}-{os.getpid()}"
        started.append(Launched(folder, free_port(), *words, env=variables, job=job, bounds=bounds, warm=not bounds))
        return started[-1]

    yield launch
    for launched in started:
        launched.__exit__()


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """Make a cgroup whose processes may use BYTES of memory. Skips the test if that is not possible."""
    name = f"taskd-test-{os.getpid()}"
    version_2, version_1 = Path("/sys/fs/cgroup", name), Path("/sys/fs/cgroup/memory", name)
    folder, limit = (version_1, "memory.limit_in_bytes") if version_1.parent.is_dir() else (version_2, "memory.max")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here ({error.strerror}): run as root on a host with cgroups")
    try:
        if not (folder / limit).exists():
            pytest.skip("the memory controller is not given to this cgroup: run where /sys/fs/cgroup has it enabled")
        (folder / limit).write_text(str(BYTES))
        yield folder
    finally:
        folder.rmdir()


def test_the_system_kills_a_rank_for_its_memory(run: Run, memory_group: Path) -> None:
    calm = run("calm")
    calm.end()
    launched = run("hungry", "--kills", "1:6:forward:memory", MEMORY_GROUP=str(memory_group))
    launched.end()
    same_bits(sorted(launched.said("weights")), sorted(calm.said("weights")), launched.text)
    assert "rank 1 died (SIGKILL)" in launched.text and "respawn" not in launched.text, launched.text


def test_a_death_while_the_others_make_their_groups_at_first(run: Run) -> None:
    """Nothing is trained yet, so all ranks may start again. The final weights are the same."""
    calm = run("calm")
    calm.end()
    launched = run("early", "--kills", "2:-1:setup")
    launched.end()
    same_bits(sorted(launched.said("weights")), sorted(calm.said("weights")), launched.text)


def test_a_second_death_at_any_moment_of_a_heal() -> None:
    """The second deaths hit all phases: draining, forking, set-up, making groups, sending the state, the step again."""
    with Job(WORDS, ranks=RANKS) as job:
        for number in range(12):
            ranks = job.settle(2)
            begin_ns = time.time_ns()
            os.kill(ranks[2]["pid"], signal.SIGKILL)
            time.sleep(0.012 * number)  # lasts: the test is about this moment
            os.kill(ranks[(0, 1, 3)[number % 3]]["pid"], signal.SIGKILL)
            job.event("closed", begin_ns)
        weights = [one["weights"] for one in _to_the_end(job) if "weights" in one]
        last = job.last
        said = [event["text"] for event in job.since(0) if event["kind"] in ("decision", "state", "refused", "failed")]
        assert not any("respawn" in text for text in said), "\n".join(said)
    with Job(WORDS, ranks=RANKS, last_step=last) as calm:
        same_bits(weights, [one["weights"] for one in calm.results() if "weights" in one], "\n".join(said))


def test_a_death_in_the_middle_of_a_step_that_is_longer_than_any_usual_deadline(run: Run) -> None:
    """The length of the step is unknown, and no rank shows any work. All the same no survivor is given up."""
    calm = run("calm")
    calm.end()
    launched = run("long", "--kills", "2:6:forward", "--long", "0:6:66,1:6:75,3:6:75")
    assert "nobody else is known to hold a whole state" in launched.wait_for_line("yet to park after 60 s")
    launched.end()
    same_bits(sorted(launched.said("weights")), sorted(calm.said("weights")), launched.text)
    assert "in time" not in launched.text and "respawn" not in launched.text, launched.text
    assert [launched.text.count(f"begin {rank}") for rank in (0, 1, 3)] == [1, 1, 1], launched.text


def _to_the_end(job: Job) -> list[dict[str, object]]:
    job.finish()
    return job.results()


def test_a_worker_is_refused_its_memory_files(run: Run) -> None:
    """The job names the cause once, and no ranks wait for each other."""
    launched = run("refused", bounds={resource.RLIMIT_FSIZE: 1 << 20})
    launched.end(1)
    assert "File too large" in launched.text, launched.text
    assert len([line for line in launched.lines if "the job ends: " in line]) <= 1, launched.text
