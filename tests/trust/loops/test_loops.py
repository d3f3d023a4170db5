"""Loops and the code between them. After any death, weights and samples are those of the undisturbed run."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launched import Launched
from tests.trust.loops.stage import EPOCHS, PER_EPOCH
from tests.verdicts import same_bits

HERE = Path(__file__).parent
RANKS = 2

Run = Callable[..., Launched]
_calm: dict[tuple[str, str], Launched] = {}
_files: dict[tuple[str, str], dict[str, str]] = {}
pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path, free_port: Callable[[], int]) -> Run:
    """Runs one training of this folder to its end. One rank dies at this place."""

    def start(case: str, kind: str = "", place: str = "", at: int = -1, who: int = 1, code: int | None = 0) -> Launched:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        words = ("--folder", str(folder), "--kind", kind, "--place", place, "--at", str(at), "--who", str(who))
        script = (str(HERE / f"{case}.py"), *words)
        name = f"loops-{os.getpid()}-{folder.name}"
        with Launched(folder, free_port(), "--nproc-per-node", str(RANKS), *script, job=name, warm=True) as job:
            job.end(code)
        return job

    return start


def calm(run: Run, case: str, kind: str) -> Launched:
    """Return the run in which no rank dies."""
    if (case, kind) not in _calm:
        _calm[case, kind] = run(case, kind)
        _files[case, kind] = files(_calm[case, kind])  # the folder is removed with the test that came first
    return _calm[case, kind]


def check_same(job: Launched, wanted: Launched) -> None:
    """Check weights and samples. A step that was given up sees the same samples again."""
    same_bits(sorted(job.said("weights")), sorted(wanted.said("weights")), job.text)
    same_bits(sorted({*job.said("saw")}), sorted(wanted.said("saw")), job.text)


def check_healed(job: Launched, wanted: Launched) -> None:
    """Check that one rank was replaced, no rank started over, and nothing else is different."""
    check_same(job, wanted)
    assert "respawn" not in job.text, job.text
    assert len(job.said("begin")) == RANKS + 1, job.text


@pytest.mark.parametrize("kind", ["distributed", "steps"])
def test_the_scripts_own_epochs_stand(run: Run, kind: str) -> None:
    plain = calm(run, "own_epochs", f"plain {kind}")
    check_same(calm(run, "own_epochs", kind), plain)
    order = {line.split(" ", 2)[2] for line in plain.said("saw")}
    assert len(order) == RANKS * EPOCHS * PER_EPOCH, "the epochs have one order, and the test could not fail"


@pytest.mark.parametrize(
    ("place", "at"),
    [
        ("backward", 1),
        ("forward", PER_EPOCH),
        ("reduced", PER_EPOCH),
        ("backward", 2 * PER_EPOCH - 1),
        ("reduced", 2 * PER_EPOCH - 1),
        ("updated", 2 * PER_EPOCH - 1),
        ("backward", 2 * PER_EPOCH + 2),
    ],
)
@pytest.mark.parametrize("kind", ["distributed", "steps"])
def test_the_scripts_own_epochs_stand_after_a_death(run: Run, kind: str, place: str, at: int) -> None:
    check_healed(run("own_epochs", kind, place, at), calm(run, "own_epochs", f"plain {kind}"))


def files(job: Launched) -> dict[str, str]:
    """Return the hash of each file that the training has written, by name."""
    found = [path for path in job.folder.iterdir() if path.suffix in {".csv", ".pt", ".part"}]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def check_epochs(run: Run, job: Launched, kind: str) -> None:
    """Check also the files and the results."""
    wanted = calm(run, "epochs", kind)
    check_healed(job, wanted)
    same_bits(files(job), _files["epochs", kind], job.text)
    same_bits(sorted(job.said("history")), sorted(wanted.said("history")), job.text)


@pytest.mark.parametrize("epoch", range(EPOCHS))
@pytest.mark.parametrize("place", ["evaluation", "gathered", "report", "reported half", "reported", "behind"])
@pytest.mark.parametrize("who", [0, 1])
def test_what_stands_between_epochs(run: Run, place: str, epoch: int, who: int) -> None:
    job = run("epochs", "", place, epoch, who)
    check_epochs(run, job, "")
    done = job.said("evaluated")
    assert all(done.count(f"{who} {before}") == 1 for before in range(epoch)), job.text
    assert done.count(f"{who} {epoch}") == 1, job.text


@pytest.mark.parametrize(
    ("place", "at"),
    [
        ("forward", PER_EPOCH),
        ("reduced", PER_EPOCH - 1),
        ("updated", 2 * PER_EPOCH - 1),
        ("reduced", 2 * PER_EPOCH),
        ("backward", 2 * PER_EPOCH + 1),
    ],
)
def test_epochs_and_a_death_in_a_step(run: Run, place: str, at: int) -> None:
    job = run("epochs", "before", place, at)
    check_epochs(run, job, "before")


def check_started_over(job: Launched, wanted: Launched, *sentences: str) -> None:
    """Check that all started again for this reason, and that nothing else is different."""
    check_same(job, wanted)
    decision = next((line for line in job.lines if line.endswith("so all start again: respawn")), "")
    assert all(sentence in decision for sentence in sentences), job.text
    assert job.said("begin").count("0") == 2, job.text


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("adds", "table1.csv for writing: put it into session.between(work, then)"),
        ("swallows", "removes "),
        ("opened", "opened1.csv, which it has opened before"),
    ],
)
def test_a_newcomer_writes_nothing_of_epochs_that_are_over(run: Run, kind: str, what: str) -> None:
    """It says, too, which line of the script would have written."""
    place = "" if kind == "opened" else f"{HERE / 'old_shape.py'}, line "
    job = run("old_shape", kind, "backward", 2 * PER_EPOCH + 1)
    check_started_over(job, calm(run, "old_shape", kind), "runs again through what its life before", place, what)
    assert job.text.count("there are several loops and no session.epochs()") >= 1, job.text
    if kind == "adds":
        rows = (job.folder / "table1.csv").read_text().split()
        assert rows == ["0", "1", "0", "1", "2"], "the second start is the script's own; the newcomer has added nothing"


@pytest.mark.parametrize("kind", ["harmless", "gathers"])
def test_what_leaves_no_trace_is_let_through(run: Run, kind: str) -> None:
    check_healed(run("old_shape", kind, "backward", 2 * PER_EPOCH + 1), calm(run, "old_shape", kind))


def test_a_step_that_cannot_be_rehearsed(run: Run) -> None:
    job = run("old_shape", "receives", "backward", PER_EPOCH + 1)
    check_started_over(job, calm(run, "old_shape", "receives"), "a newcomer cannot rehearse the step: TypeError")


def test_an_error_behind_the_update_is_not_skipped(run: Run) -> None:
    """The others have done that step, so no rank would do the failed part again."""
    job = run("old_shape", "raises", code=None)
    assert not job.said("weights"), job.text
    assert "its script failed in step 6" in job.text and "ValueError: rank 1 has had enough" in job.text, job.text
    assert all(launcher.poll() for launcher in job.launchers), job.text


@pytest.mark.parametrize("at", [5, 2 * PER_EPOCH - 1, EPOCHS * PER_EPOCH - 1])
@pytest.mark.parametrize("place", ["forward", "reduced", "updated", "before the line", "behind the line"])
@pytest.mark.parametrize("who", [0, 1])
def test_what_a_step_writes_is_written_once(run: Run, place: str, at: int, who: int) -> None:
    wanted = calm(run, "effects", "")
    job = run("effects", "", place, at, who)
    check_healed(job, wanted)
    same_bits(files(job), _files["effects", ""], job.text)


@pytest.mark.parametrize("place", ["before the checkpoint", "behind the checkpoint"])
@pytest.mark.parametrize("at", [5, EPOCHS * PER_EPOCH - 1])
def test_a_checkpoint_in_a_step_is_whole(run: Run, place: str, at: int) -> None:
    wanted = calm(run, "effects", "")
    job = run("effects", "", place, at, 0)
    check_healed(job, wanted)
    same_bits(files(job), _files["effects", ""], job.text)


def test_what_a_step_saves_by_itself_is_told_once(run: Run) -> None:
    job = calm(run, "effects", "saves")
    check_same(job, calm(run, "effects", ""))
    assert job.text.count("nobody writes that file again") == 1, job.text


@pytest.mark.parametrize("place", ["forward", "before the mean", "behind the mean"])
def test_a_function_that_communicates_makes_all_start_over(run: Run, place: str) -> None:
    """The newcomer would have to run the collective alone."""
    wanted = calm(run, "effects", "talks")
    job = run("effects", "talks", place, 5)
    check_started_over(job, wanted, "a function that was given to step.on_commit() communicates")


def test_what_is_asked_for_behind_the_backward_is_done_and_said(run: Run) -> None:
    """A newcomer's rehearsal ends before that place, so the newcomer cannot make up for the call."""
    job = run("effects", "late", "before the line", 5)
    wanted = calm(run, "effects", "late")
    check_started_over(job, wanted, "the step calls on_commit() 0 times where it called it 1 times")
    for one in (job, wanted):
        assert one.text.count("is called behind the step's last backward") >= 1, one.text
    assert (wanted.text.count("behind the step's last backward")) == RANKS, wanted.text
