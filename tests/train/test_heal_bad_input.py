"""Tests what users do wrong, or differently. They get a clear error, or training goes on. Nothing is lost or hangs.

Each test is a whole job, in which rank 1 kills itself. The weights show whether the job healed: they equal those of the
undisturbed run, or the job says why it could not heal.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from taskd.state.manifest import GROUPS, groups_apart
from tests.launched import Launched
from tests.verdicts import same_bits

SCRIPT = Path(__file__).parent / "workers" / "bad_input.py"
RANKS = 2

Start = Callable[..., AbstractContextManager[Launched]]
_calm: list[str] = []
pytestmark = pytest.mark.slow


@pytest.fixture
def start(tmp_path: Path, free_port: Callable[[], int]) -> Start:
    """Run the training with this mistake. `more` are further arguments of the script, `options` of the launcher. `env`
    is set in its environment."""

    @contextmanager
    def run(case: str, *more: str, options: tuple[str, ...] = (), **env: str) -> Iterator[Launched]:
        folder = tmp_path / (case or "plain").replace(" ", "-")
        folder.mkdir()
        words = ["--nproc-per-node", str(RANKS), *options, str(SCRIPT), "--folder", str(folder), "--case", case, *more]
        name = f"job-{os.getpid()}-{len(list(tmp_path.iterdir()))}"
        with Launched(folder, free_port(), *words, job=name, warm=True, env=env) as job:
            yield job

    return run


@pytest.fixture
def calm(start: Start) -> list[str]:
    """Return the weights of every rank when no rank dies."""
    if not _calm:
        with start("calm", "--at", "-1") as job:
            job.end()
            _calm.extend(sorted(job.said("weights")))
    return _calm


def check_healed(job: Launched, weights: list[str]) -> None:
    """Check that one rank was replaced, that the job did not start over, and that the weights are the same."""
    job.end()
    same_bits(sorted(job.said("weights")), weights, job.text)
    assert "respawn" not in job.text, job.text
    assert job.text.count("begin 0") == 1 and job.text.count("begin 1") == 2, job.text


# ---- a set-up that is not the same in a newcomer -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("shape", "params[0] in this process with sizes [12, 8] appears not to match"),
        ("collectives", "this set-up calls allreduce in group 0@0-1 of (Float[2]) where the recorded one called"),
        ("name", "the ranks are not set up alike: model tensors, model.module.second.weight: float32[8, 16] on rank 0"),
        ("groups", "the ranks are not set up alike: optimizers, optimizer 0: "),
    ],
)
def test_a_newcomer_that_is_set_up_otherwise(start: Start, calm: list[str], case: str, sentence: str) -> None:
    """It is not let in. After some tries all start over, for the only restart that the rank has."""
    with start(case, options=("--max-restarts", "1")) as job:
        job.end()
        same_bits(sorted(job.said("weights")), calm, job.text)
        assert job.text.count("begin 0") == 2, job.text
        ends = [line for line in job.lines if line.endswith("so all start again: respawn")]
        assert len({*ends}) == 1 and "repair in place has failed" in ends[0], job.text  # said again, if it had to rest
        assert any(sentence in line for line in job.lines if "decision" in line or "rank 1" in line), job.text


# ---- what was not registered ---------------------------------------------------------------------------------------


def check_started_over(job: Launched, sentence: str) -> list[str]:
    """Check that the job said at once what is missing, and started over. It must not go on with wrong weights."""
    job.end()
    said = [at for at, line in enumerate(job.lines) if line.startswith("taskd[rank 0]: ") and sentence in line]
    died = next(at for at, line in enumerate(job.lines) if "rank 1 died (SIGKILL)" in line)
    assert said and said[0] < died, job.text
    assert len(said) == 2, job.text  # once before and once after the new start
    decision = next(line for line in job.lines if line.endswith("so all start again: respawn"))
    assert sentence in decision, job.text
    assert job.text.count("begin 0") == 2 and job.said("step").count("0") == 2, job.text
    weights = [line.split()[1] for line in job.said("weights")]
    assert len(weights) == RANKS and len(set(weights)) == 1, job.text
    return sorted(job.said("weights"))


def test_a_second_model_and_its_optimizer(start: Start) -> None:
    """If nothing is registered, it is refused. If the optimizer is registered, its parameters are covered, too."""
    with start("second optimizer") as job:
        weights = check_started_over(job, "the step uses an optimizer that is not registered (SGD of 2 parameters)")
    with start("second model") as job:
        check_healed(job, weights)


def test_an_average_of_the_weights(start: Start) -> None:
    with start("average") as job:
        weights = check_started_over(job, "the step changes 6 tensors of a module that is not registered (Net)")
    with start("average registered") as job:
        check_healed(job, weights)
        assert job.said("counted") == ["8"] * RANKS, "what counts from a step's beginning is given as that found it"


# ---- state that no other rank has ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["shards", "mesh"])
def test_a_sharded_model_that_is_not_kept_starts_over_at_once(start: Start, case: str) -> None:
    """If a rank does not keep its shards, its death loses them. The job says so before any rank dies, and tries no
    repair in vain."""
    with start(case, TASKD_RECOVER_KEEP_SHARDS="never") as job:
        check_started_over(job, "the model is sharded (model.module.first.0.weight is a DTensor)")
        assert "0 steps lost" not in job.text and job.text.count("all ranks have started over") == 1, job.text
        assert "a stage of the repair failed" not in job.text, job.text


def test_ranks_that_train_different_weights_start_over(start: Start) -> None:
    """Nothing shows this from outside. So what the ranks hold is compared."""
    with start("parts") as job:
        job.end()
        decision = next((line for line in job.lines if line.endswith("so all start again: respawn")), "")
        assert "no rank's state can replace another's" in decision, job.text
        assert job.text.count("begin 0") == 2 and job.said("step").count("0") == 2, job.text


def test_groups_of_some_ranks(start: Start, calm: list[str]) -> None:
    with start("subgroups") as job:
        check_healed(job, calm)


def test_a_group_that_was_made_after_the_set_up(start: Start, calm: list[str]) -> None:
    """The newcomer's script makes this group only in the step that is done again. No rank waits for it before."""
    with start("late group") as job:
        check_healed(job, calm)
        assert "did not rebuild" not in job.text, job.text


def test_a_group_that_not_all_of_its_members_have() -> None:
    every, pair, alone = "0@0-3", "0@1,3", "1@2"
    alike = [{GROUPS: [every]}, {GROUPS: [every, pair]}, {GROUPS: [every, alone]}, {GROUPS: [pair, every]}]
    assert groups_apart(alike, {3}) == {}
    found = groups_apart([*alike[:3], {GROUPS: [every]}], {3})
    assert found == {3: "the ranks are not set up alike: process group 0@1,3 exists on rank 1 and not on rank 3"}
    found = groups_apart([*alike[:3], {GROUPS: [every, pair, "0@2-3"]}], {3})
    assert list(found) == [3] and "process group 0@2-3 exists on rank 3 and not on rank 2" in found[3]
    assert list(groups_apart([*alike[:3], {GROUPS: [every]}], {0})) == [3]


def test_the_module_inside_is_registered(start: Start, calm: list[str]) -> None:
    with start("inner") as job:
        check_healed(job, calm)


# ---- files, signals, children --------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["few files", "small files"])
def test_limits_of_files(start: Start, calm: list[str], case: str) -> None:
    with start(case) as job:
        check_healed(job, calm)


def test_no_file_can_be_opened_any_more(start: Start, calm: list[str]) -> None:
    """Then the groups cannot be rebuilt. The job says so and starts over instead of waiting."""
    with start("no files") as job:
        job.end()
        decision = next((line for line in job.lines if line.endswith("so all start again: respawn")), "")
        assert "Too many open files" in decision, job.text
        same_bits(sorted(job.said("weights")), calm, job.text)


def test_shared_memory_is_full(start: Start) -> None:
    with start("full shared memory") as job:
        codes = job.end(None)
        if "this needs root" in job.text:
            pytest.skip("mounts need root")
        ends = [line for line in job.lines if line.startswith("taskd[launcher]: the job ends:")]
        assert codes == [1] and len(ends) == 1 and "No space left on device" in ends[0], job.text


def test_the_scripts_own_handler_of_sigterm(start: Start, calm: list[str]) -> None:
    with start("term") as job:
        check_healed(job, calm)
        assert job.said("handler of rank") == ["1"], job.text
        assert "rank 1 died (exit code 7)" in job.text, job.text


def test_children_outlive_a_rank(start: Start, calm: list[str]) -> None:
    with start("children") as job:
        try:
            check_healed(job, calm)
            children = [int(path.name.split("-")[1]) for path in job.folder.glob("child-*")]
            assert len(children) == 2 * RANKS
            assert all(Path(f"/proc/{pid}").exists() for pid in children)
        finally:
            for path in job.folder.glob("child-*"):
                os.kill(int(path.name.split("-")[1]), signal.SIGKILL)


# ---- how a session is used -----------------------------------------------------------------------------------------


def test_two_loops_one_after_another(start: Start) -> None:
    found = []
    for at in ("-1", "4", "11"):
        with start(f"two loops{' ' * (len(found))}", "--at", at) as job:
            job.end()
            assert "respawn" not in job.text, job.text
            found.append(sorted(job.said("weights")))
    assert found[0] == found[1] == found[2]


def test_gradients_carried_from_step_to_step_over_a_static_graph(start: Start) -> None:
    """A newcomer has neither the gradients of the step before nor what DDP learns in its first two steps."""
    with start("carried gradients ", "--at", "-1") as job:
        job.end()
        wanted = sorted(job.said("weights"))
    with start("carried gradients", "--at", "4") as job:
        check_healed(job, wanted)


def test_leaving_a_loop_early(start: Start, calm: list[str]) -> None:
    with start("break") as job:
        job.end()
        assert "respawn" not in job.text, job.text
        weights = [line.split()[1] for line in job.said("weights")]
        assert len(weights) == RANKS and len(set(weights)) == 1, job.text


def test_an_error_of_the_user(start: Start) -> None:
    with start("error", options=("--max-restarts", "2")) as job:
        job.end(1)
        assert job.text.count("begin 1") == 1 and job.text.count("begin 0") == 1, job.text
        ends = [line for line in job.lines if line.startswith("taskd[launcher]: the job ends:")]
        assert len(ends) == 1 and "ValueError: this batch cannot be used" in ends[0], job.text
