"""Stories by seed: 200 that are always the same and 50 new ones.

A failure names the rule and the one command that plays the story again. The fresh seeds come from the text of the core
and of the simulator. So every change there meets other stories, and one version meets the same ones everywhere. What a
search has found belongs into tests/scripts as a story of its own. The reason: a seed means another story as soon as the
simulator draws random numbers in another order.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from taskd.sim.scenario import FAULTS, Options
from taskd.sim.story import simulate

BLOCK = 10
FIXED = range(200)
FRESH = 50
THEN = tuple(kind for kind in FAULTS if kind not in ("starve", "stuck", "flip", "orphan", "still", "pause", "refuse"))
"""The kinds of faults at that time. With another kind, a seed means another story."""
FOUND = (
    Options(5, 1.0, 33658058218078, THEN),  # the manager comes back with half of its journal, inside a finished respawn
    Options(32, 0.5, 241688739748405, THEN),  # a repair ended while the manager was away: it orders nothing
    Options(12, 1.0, 61642425681879, THEN),  # a rank runs on before the next attempt is decided
    Options(12, 2.0, 153803250752365, THEN),  # a phase was long only because the manager was away
)
"""The stories that searches have found."""
PACKAGE = Path(__file__).resolve().parents[2] / "taskd"


def options_of(seed: int, turn: int) -> Options:
    """Return the options of a story. Most jobs are small, one in 50 has 256 ranks; the durations vary, too."""
    ranks = 256 if turn % 50 == 49 else (4, 8, 2, 16, 5, 8, 64, 4, 32, 12)[turn % 10]
    minutes = (0.2, 0.5, 1.0)[turn % 3] if ranks <= 32 else 0.25
    return Options(ranks, minutes, seed)


def play(stories: list[Options]) -> None:
    """Play all stories. Fail with the complaint of every story that failed."""
    results = [simulate(options) for options in stories]
    complaints = [result.complaint() for result in results if not result.ok]
    assert not complaints, f"{len(complaints)} of {len(stories)} stories failed\n" + "\n\n".join(complaints)


@pytest.mark.parametrize("first", FIXED[::BLOCK])
def test_fixed_seeds(first: int) -> None:
    play([options_of(seed, seed) for seed in range(first, first + BLOCK)])


def test_found_seeds() -> None:
    play(list(FOUND))


@pytest.mark.parametrize("block", range(FRESH // BLOCK))
def test_fresh_seeds(block: int) -> None:
    version = hashlib.sha256()
    for path in sorted([*(PACKAGE / "core").glob("*.py"), *(PACKAGE / "sim").glob("*.py")]):
        version.update(path.read_bytes())
    turns = range(block * BLOCK, (block + 1) * BLOCK)
    seeds = [hashlib.sha256(version.digest() + turn.to_bytes(2, "big")).digest()[:6] for turn in turns]
    play([options_of(int.from_bytes(seed, "big"), turn) for seed, turn in zip(seeds, turns, strict=True)])


def test_quiet_job_has_no_incident() -> None:
    for seed in range(6):
        result = simulate(Options((4, 16, 64)[seed % 3], 0.5, seed, kinds=()))
        assert result.ok, result.complaint()
        assert result.summary["incidents"] == 0, result.summary
        assert not result.summary["faults"] and result.summary["heals"] == 0, result.summary


def test_faults_really_strike_and_heal() -> None:
    """The stories test something: every kind of fault strikes, repairs happen, and ranks train on after them."""
    missing, heals = set(Options(4, 1, 0).kinds), 0
    for seed in range(120):
        summary = simulate(options_of(seed, seed)).summary
        heals += summary["heals"]
        missing -= set(summary["faults"])
        if not missing and heals >= 20:
            return
    raise AssertionError(f"never struck: {missing or 'nothing'}; {heals} heals")
