"""Loaders of all kinds. After any death, batches and weights are those of the run in which no rank dies."""

from __future__ import annotations

from itertools import product

import pytest

from tests.trust.loops.stage import PER_EPOCH
from tests.trust.loops.test_loops import (  # noqa: F401
    Run,
    calm,
    check_healed,
    check_same,
    check_started_over,
    run,
)

pytestmark = pytest.mark.slow
SHAPES = ("one", "each", "old")
PROCESSES = ("inside", "workers", "persistent")
ORDERS = ("shuffle", "generator", "drawn", "eager", "distributed", "steps")
DEATHS = (
    ("forward", PER_EPOCH),
    ("reduced", PER_EPOCH),
    ("backward", 2 * PER_EPOCH - 1),
    ("updated", 2 * PER_EPOCH - 1),
    ("after", PER_EPOCH - 1),
    ("forward", PER_EPOCH + 2),
)
"""In an epoch's first and last step, at the boundary, and within."""
CASES = [
    (f"{SHAPES[(at + death) % 3]} {processes} {order}", *DEATHS[death])
    for at, (processes, order) in enumerate(product(PROCESSES, ORDERS))
    for death in range(len(DEATHS))
]
"""All pairs of processes and order with all deaths. In each pair, each shape of loop has two of the deaths."""


@pytest.mark.parametrize(("kind", "place", "at"), CASES)
def test_a_death_changes_no_batch(run: Run, kind: str, place: str, at: int) -> None:  # noqa: F811
    check_healed(run("loaders", kind, place, at), calm(run, "loaders", kind))


@pytest.mark.parametrize(("processes", "order"), [*product(PROCESSES, ORDERS)])
def test_a_session_changes_no_batch(run: Run, processes: str, order: str) -> None:  # noqa: F811
    """The session is compared with plain torch."""
    kind = f"{processes} {order}"
    check_same(calm(run, "loaders", f"one {kind}"), calm(run, "loaders", f"plain {kind}"))


@pytest.mark.parametrize(
    ("place", "at"), [("forward", PER_EPOCH), ("after", PER_EPOCH - 1), ("reduced", PER_EPOCH + 2)]
)
@pytest.mark.parametrize("order", ["shuffle", "steps"])
@pytest.mark.parametrize("processes", PROCESSES)
@pytest.mark.parametrize("shape", ["one", "each"])
@pytest.mark.parametrize("what", ["augment", "augment own"])
def test_draws_of_a_dataset(run: Run, what: str, shape: str, processes: str, order: str, place: str, at: int) -> None:  # noqa: F811
    kind = f"{shape} {processes} {order} {what}"
    check_healed(run("loaders", kind, place, at), calm(run, "loaders", kind))


@pytest.mark.parametrize("at", [1, PER_EPOCH + 2])
@pytest.mark.parametrize("order", ["shuffle", "steps", "generator"])
@pytest.mark.parametrize("processes", PROCESSES)
@pytest.mark.parametrize("what", ["", "augment"])
def test_a_batch_is_loaded_again(run: Run, what: str, processes: str, order: str, at: int) -> None:  # noqa: F811
    """The step has written into the batch."""
    kind = f"one {processes} {order} writes {what}"
    check_healed(run("loaders", kind, "backward", at), calm(run, "loaders", kind))


@pytest.mark.parametrize(
    ("place", "at"), [("evaluated", 0), ("behind", 0), ("forward", PER_EPOCH), ("forward", PER_EPOCH + 2)]
)
@pytest.mark.parametrize("shape", ["each", "old"])
def test_a_loader_of_an_evaluation(run: Run, shape: str, place: str, at: int) -> None:  # noqa: F811
    """The loader's processes stay, and the newcomer has to start them anew."""
    kind = f"{shape} inside steps evaluates"
    check_healed(run("loaders", kind, place, at), calm(run, "loaders", kind))


@pytest.mark.parametrize(
    ("place", "at"),
    [("evaluated", PER_EPOCH + 1), ("forward", PER_EPOCH + 1), ("backward", PER_EPOCH + 1), ("forward", PER_EPOCH + 2)],
)
def test_an_evaluation_within_a_step(run: Run, place: str, at: int) -> None:  # noqa: F811
    kind = "one inside steps evaluates within"
    check_healed(run("loaders", kind, place, at), calm(run, "loaders", kind))


def test_a_loop_that_is_left_while_its_processes_draw(run: Run) -> None:  # noqa: F811
    """Nobody knows how far they have drawn."""
    kind = "each persistent steps augment leaves"
    job = run("loaders", kind, "forward", PER_EPOCH)
    check_started_over(job, calm(run, "loaders", kind), "draw at random")
