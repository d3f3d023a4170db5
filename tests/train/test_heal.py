"""Ranks are killed and replaced in place. The final weights of every rank equal those of the run without faults.

The weights' hash covers parameters, each rank's own BatchNorm buffers and both optimizers' state. Each test says where
in the step a rank dies: at that moment no survivor, some or all may have applied the update.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.launched import ROOT, Launched
from tests.verdicts import same_bits

SCRIPT = Path(__file__).parent / "workers" / "heal_ddp.py"
STEPS = 24
RANKS = 4
BATCH = 4

Start = Callable[..., Any]
_undisturbed: dict[tuple[str, ...], list[str]] = {}


@pytest.fixture
def start(tmp_path: Path, free_port: Callable[[], int]) -> Start:
    """Run the training with these kills. `more` are further arguments of the script, `options` of the launcher."""

    @contextmanager
    def run(
        kills: str, *more: str, options: tuple[str, ...] = (), warm: bool = True, **variables: str
    ) -> Iterator[Launched]:
        folder = tmp_path / (kills.replace(",", "_")[:60] or "calm")
        folder.mkdir()
        words = ["--nproc-per-node", str(RANKS), *options, str(SCRIPT), "--folder", str(folder), "--kills", kills]
        job = f"job-{len(list(tmp_path.iterdir()))}"
        words += ["--steps", str(STEPS), *more]
        with Launched(folder, free_port(), *words, env=variables, job=job, warm=warm) as launched:
            yield launched

    return run


@pytest.fixture
def undisturbed(start: Start) -> Callable[..., list[str]]:
    """Return a function that gives all ranks' weights without a fault. It runs once for each set of arguments."""

    def find(*more: str) -> list[str]:
        if more not in _undisturbed:
            with start("", *more) as launched:
                launched.end()
                _undisturbed[more] = sorted(launched.said("weights"))
        return _undisturbed[more]

    return find


def samples(folder: Path) -> list[int]:
    return sorted(int(word) for file in (folder / "ids").iterdir() for word in file.read_text().split())


def check(launched: Launched, wanted: list[str]) -> None:
    """Check that the job ended well with these weights, used every sample exactly once, and did not start over."""
    launched.end()
    same_bits(sorted(launched.said("weights")), wanted, launched.text)
    assert samples(launched.folder) == list(range(STEPS * BATCH * RANKS))
    assert "respawn" not in launched.text, launched.text


@pytest.mark.slow
@pytest.mark.parametrize(
    "kills",
    [
        "2:5:start,1:8:forward,3:11:backward,0:14:backward",
        "1:5:optimizer,2:9:applied,0:13:end,3:17:between",
    ],
)
def test_killed_in_turn_at_every_place(start: Start, undisturbed: Callable[..., list[str]], kills: str) -> None:
    wanted = undisturbed()
    with start(kills) as launched:
        check(launched, wanted)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kills",
    [
        "1:6:backward,3:6:backward",
        "0:6:start,1:6:optimizer,2:6:applied",
        "2:6:backward,2:-1:setup",
        f"1:{STEPS - 1}:end,0:{STEPS - 1}:between",
    ],
    ids=["two at once", "three in different places", "the newcomer, too", "in the last step"],
)
def test_several_at_once(start: Start, undisturbed: Callable[..., list[str]], kills: str) -> None:
    wanted = undisturbed()
    with start(kills) as launched:
        check(launched, wanted)


@pytest.mark.slow
def test_over_gloo(start: Start) -> None:
    """The job asks for torch's own gloo. Gloo sums in another order, so its weights differ from those over rails."""
    with start("", TASKD_INNER="gloo") as calm:
        calm.end()
        wanted = sorted(calm.said("weights"))
    with start("2:5:backward,0:14:applied", TASKD_INNER="gloo") as launched:
        check(launched, wanted)


@pytest.mark.slow
def test_twenty_faults_with_loader_workers_and_accumulation(
    start: Start, undisturbed: Callable[..., list[str]]
) -> None:
    """Nearly every step has a fault, on every rank and at every place. check() finds each sample exactly once."""
    more = ("--loader-workers", "1", "--accumulate", "2")
    wanted = undisturbed(*more)
    places = ("backward", "applied", "start", "between", "forward", "optimizer", "end")
    kills = [f"{step % RANKS}:{step}:{places[step % len(places)]}" for step in range(2, 22)]
    with start(",".join(kills), *more, options=("--max-restarts", "20")) as launched:
        check(launched, wanted)
        assert launched.text.count("died (SIGKILL)") >= len(kills) == 20, launched.text


@pytest.mark.slow
def test_other_ways_to_die(start: Start, undisturbed: Callable[..., list[str]]) -> None:
    wanted = undisturbed()
    with start("1:5:backward:term,2:9:start:exit,3:13:forward:raise,0:17:forward:leave") as launched:
        check(launched, wanted)


@pytest.mark.slow
def test_who_is_an_update_behind_takes_it_and_keeps_what_is_its_own(
    start: Start, undisturbed: Callable[..., list[str]]
) -> None:
    """Rank 0 takes update 6 from another rank. The BatchNorm of that rank has seen the forward of step 7 already."""
    with start("2:7:backward", "--late", "0:6") as launched:
        check(launched, undisturbed())


@pytest.mark.slow
def test_without_the_standby(start: Start, undisturbed: Callable[..., list[str]], tmp_path: Path) -> None:
    """An imported module starts a thread, so forking is unsafe. Workers start without the standby, and heal as well."""
    wanted = undisturbed()
    (tmp_path / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    with start("2:7:backward", options=("--preload", "threaded"), warm=False, PYTHONPATH=path) as launched:
        check(launched, wanted)
    assert launched.text.count("started without the standby, which takes seconds: it has 2 threads") == RANKS + 1
