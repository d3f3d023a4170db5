"""Silent corruption of one replica. A bit that flips on a rank is found, the rank is named, and all start over.

Every job here trains on until that has happened; nothing else would end it. It ends with the weights of the run in
which nothing was flipped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launched import Launched
from tests.verdicts import same_bits

FLIPS = Path(__file__).with_name("flips.py")
Run = Callable[..., Launched]
_calm: dict[int, str] = {}
pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path, free_port: Callable[[], int]) -> Run:
    """Runs one training to its end."""

    def start(what: str, ranks: int, rank: int = 0, at: int = 5, *more: str) -> Launched:
        folder = tmp_path / f"{what}{ranks}"
        folder.mkdir()
        words = ["--folder", str(folder), "--what", what, "--rank", str(rank), "--at", str(at), *more]
        name = f"flips-{os.getpid()}-{len(list(tmp_path.iterdir()))}"
        count = ["--nproc-per-node", str(ranks)]
        with Launched(folder, free_port(), *count, str(FLIPS), *words, job=name, warm=True) as job:
            job.unlike = bool(what)
            job.end()
        return job

    return start


def calm(run: Run, ranks: int) -> str:
    """Return what every rank ends with when nothing is flipped."""
    if ranks not in _calm:
        (_calm[ranks],) = {line.split()[1] for line in run("", ranks).said("weights")}
    return _calm[ranks]


def check(job: Launched, weights: str, sentence: str) -> int:
    """Check that it was found once, with this sentence, and that all started over. Return the update that showed it."""
    found = [line for line in job.lines if line.startswith("taskd[manager]: after update")]
    assert len(found) == 2 and "observe" not in job.text, job.text  # what was found, and what is done about it
    assert sentence in found[0] and found[1].endswith("so all start again: respawn"), job.text
    same_bits({line.split()[1] for line in job.said("weights")}, {weights}, job.text)
    match = re.search(r"after update (\d+)", found[0])
    assert match is not None
    return int(match.group(1))


@pytest.mark.parametrize(
    ("what", "item"),
    [
        ("parameter", "model.module.first.weight"),
        ("moment", "exp_avg_sq of model.module.first.weight"),
        ("lr", "lr of group 0"),
    ],
)
def test_a_bit_that_flips_on_one_of_four_ranks(run: Run, what: str, item: str) -> None:
    job = run(what, 4, 2)
    check(job, calm(run, 4), "rank 2 holds other contents of ")
    (line, _) = [line for line in job.lines if line.startswith("taskd[manager]: after update")]
    assert item in line and line.endswith("than ranks 0-1 and 3, which agree"), line


def test_a_scheduler_that_is_ahead_is_said_and_mended_when_it_changes_weights(run: Run) -> None:
    job = run("scheduler", 4, 2)
    found = [line for line in job.lines if line.startswith("taskd[manager]: after update")]
    assert "rank 2 holds other contents of scheduler['last_epoch']" in found[0], job.text
    assert "changes no weight, and a script may mean it: observe, incident 1" in found[0], job.text
    assert found[-1].endswith("so all start again: respawn"), job.text
    same_bits({line.split()[1] for line in job.said("weights")}, {calm(run, 4)}, job.text)


def test_of_two_ranks_both_are_named_and_nobody_is_accused(run: Run) -> None:
    job = run("parameter", 2, 1)
    check(job, calm(run, 2), "ranks 0-1 do not hold the same of model.module.first.weight: two ranks cannot tell which")


@pytest.mark.parametrize("after", [0, 1])
def test_a_wrong_repair_shows_after_its_first_updates(run: Run, after: int) -> None:
    """Rank 1 dies in step 9 and is replaced. Its wrong state is found after the update that shows it."""
    job = run("parameter", 4, 1, 9 + after, "--kill", "9")
    assert check(job, calm(run, 4), "rank 1 holds other contents of ") == 10 + after
    assert sum(line.startswith("begin 1") for line in job.lines) == 3, job.text
