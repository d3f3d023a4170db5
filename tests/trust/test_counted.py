"""Counts that a script keeps in its loop. After any death they are those of the undisturbed run.

The training (counted.py) counts its steps in three kinds of variables, in an object and in a dict. It computes its
gradients from one of the counts. If a count is wrong, all ranks end with the same wrong weights. So only a comparison
with the undisturbed run shows it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launched import Launched
from tests.verdicts import same_bits

SCRIPT = Path(__file__).with_name("counted.py")
RANKS = 2

Run = Callable[..., Launched]
_calm: dict[str, list[str]] = {}
pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path, free_port: Callable[[], int]) -> Run:
    """Runs one training to its end. Rank 1 dies at this place of this step. `kind`: where the count is and grows."""

    def start(kind: str, place: str, at: int, ranks: int = RANKS) -> Launched:
        folder = tmp_path / f"{kind}-{place}{at}".replace(", ", "-")
        folder.mkdir()
        words = [str(SCRIPT), "--folder", str(folder), "--place", f"{kind}, {place}", "--at", str(at)]
        name = f"counted-{os.getpid()}-{len(list(tmp_path.iterdir()))}"
        with Launched(folder, free_port(), "--nproc-per-node", str(ranks), *words, job=name, warm=True) as job:
            job.end()
        return job

    return start


def calm(run: Run, kind: str, ranks: int = RANKS) -> list[str]:
    """Return what every rank ends with when no rank dies."""
    if kind not in _calm:
        _calm[kind] = sorted(run(kind, "nowhere", -1, ranks).said("weights"))
        assert len(_calm[kind]) == ranks
    return _calm[kind]


def check(run: Run, kind: str, place: str, at: int, ranks: int = RANKS) -> None:
    """Check that the counts are those of the calm run, and that no rank started over."""
    job = run(kind, place, at, ranks)
    same_bits(sorted(job.said("weights")), calm(run, kind, ranks), job.text)
    if at:  # in the first step, no rank has seen a whole step yet
        assert "respawn" not in job.text, job.text
        assert job.text.count("begin 0") == 1 and job.text.count("begin 1") == 2, job.text


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("place", ["forward", "backward"])
@pytest.mark.parametrize("where", ["before", "beginning", "updated", "behind"])
@pytest.mark.parametrize("kind", ["frame", "module", "attribute"])
def test_a_step_that_is_done_again_counts_once(run: Run, kind: str, where: str, place: str, at: int) -> None:
    check(run, f"{kind}, {where}", place, at)


@pytest.mark.parametrize("at", [0, 1, 3, 6])
@pytest.mark.parametrize("place", ["reduced", "updated"])
@pytest.mark.parametrize("where", ["before", "beginning", "updated", "behind"])
@pytest.mark.parametrize("kind", ["frame", "module", "attribute"])
def test_a_newcomer_learns_what_the_others_have_counted(run: Run, kind: str, where: str, place: str, at: int) -> None:
    """The others have done the step, and the newcomer's record is of the step before. Step 6 is the last one."""
    check(run, f"{kind}, {where}", place, at)


@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("place", ["forward", "reduced", "updated"])
@pytest.mark.parametrize("where", ["before", "beginning", "updated", "behind"])
@pytest.mark.parametrize("kind", ["object", "dict"])
def test_what_is_counted_in_an_object_or_a_dict_is_right(run: Run, kind: str, where: str, place: str, at: int) -> None:
    check(run, f"{kind}, {where}", place, at)


@pytest.mark.parametrize(("place", "at"), [("forward", 3), ("reduced", 3), ("updated", 1)])
@pytest.mark.parametrize("where", ["beginning", "updated"])
@pytest.mark.parametrize("kind", ["class", "its class", "one of many", "named", "unseen", "inherited"])
def test_what_is_counted_in_a_class_or_a_list_of_objects_is_right(
    run: Run, kind: str, where: str, place: str, at: int
) -> None:
    check(run, f"{kind}, {where}", place, at)


def test_what_follows_a_collective_behind_the_update_is_not_guessed(run: Run) -> None:
    """The survivor left the step in the collective, so its count after the collective is missing."""
    job = run("frame, metric", "updated", 3)
    same_bits(sorted(job.said("weights")), calm(run, "frame, metric"), job.text)
    assert "would be after step 3, which was left behind its update" in job.text, job.text
    assert job.text.count("begin 0") > 1, job.text


def test_a_survivor_learns_what_it_has_not_come_to(run: Run) -> None:
    """The survivor left the step between its update and its count. Another rank has seen the end of the step."""
    check(run, "attribute, pair", "updated", 3, ranks=3)
