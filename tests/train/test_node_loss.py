"""Whole nodes are lost: a launcher is killed together with its workers. Their ranks go on on a spare node. The weights
are the same to the last bit as in the run without faults.

What only the dead ranks had (generators, BatchNorm's buffers) comes from copies. Each test says where in the step the
node is lost, because a survivor may have applied the update by then.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.launched import Launched, wait_until
from tests.verdicts import same_bits

SCRIPT = Path(__file__).parent / "workers" / "heal_ddp.py"
STEPS = 40
BATCH = 4
RANKS = 4
NODES = 2
OWN_BYTES = 6_000_000
"""Size of the state that only one rank has. It makes a record so large that its copy is sent and fetched in pieces."""

Start = Callable[..., Any]
_undisturbed: list[str] = []


@pytest.fixture
def start(tmp_path: Path, free_port: Callable[[], int]) -> Start:
    """Run the training on two nodes and this number of spare nodes. `meet` is the kind of rendezvous."""

    @contextmanager
    def run(kills: str, spares: int = 1, meet: str = "static", **variables: str) -> Iterator[Launched]:
        folder = tmp_path / (kills.replace(",", "_") or "calm")
        folder.mkdir()
        words = ["--nnodes", f"{NODES}:{NODES + spares}", "--nproc-per-node", "2", "--max-restarts", "10"]
        port = free_port()
        places: list[Sequence[str]] = []
        for node in range(NODES + spares):
            if meet == "static":
                places.append(["--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", str(port)])
            else:
                places.append(["--rdzv-backend", meet, "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "nodes"])
        words += [str(SCRIPT), "--folder", str(folder), "--kills", kills, "--steps", str(STEPS)]
        words += ["--local-bytes", str(OWN_BYTES)]
        with Launched(
            folder, free_port(), *words, nodes=places, env=variables, job=tmp_path.name, warm=True
        ) as launched:
            launched.places, launched.words = places, words  # type: ignore[attr-defined]
            yield launched

    return run


@pytest.fixture
def undisturbed(start: Start) -> list[str]:
    """Return the weights of every rank when no node is lost."""
    if not _undisturbed:
        with start("", spares=0) as launched:
            launched.end()
            _undisturbed.extend(sorted(launched.said("weights")))
    return _undisturbed


def allow(launched: Launched, *steps: int, moved: int = 0) -> None:
    """Wait until every rank is known and has a copy elsewhere. Then allow that nodes are lost in these steps. The ranks
    of the second node have moved `moved` times."""

    def known(rank: int) -> bool:
        life = 1 + (moved if rank >= RANKS // NODES else 0)
        return f"rank {rank} (incarnation {life}) may lose its node" in launched.text

    launched.wait_for_line(f"all {RANKS} ranks are here")
    wait_until(lambda: all(known(rank) for rank in range(RANKS)), "copies of all records")
    for step in steps:
        (launched.folder / f"allowed-{step}").touch()


def check(launched: Launched, wanted: list[str], losses: int) -> None:
    """Check that this number of nodes was lost, and that the weights and samples are the same."""
    codes = launched.end(code=None)
    same_bits(sorted(launched.said("weights")), wanted, launched.text)
    assert codes.count(-signal.SIGKILL) == losses and codes.count(0) == len(codes) - losses, launched.text
    found = sorted(int(word) for file in (launched.folder / "ids").iterdir() for word in file.read_text().split())
    assert found == list(range(STEPS * BATCH * RANKS))
    assert "respawn" not in launched.text, launched.text
    assert "a stage of the repair failed" not in launched.text, launched.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second", "meet"),
    [("start", "applied", "static"), ("forward", "optimizer", "c10d"), ("backward", "between", "static")],
)
def test_two_nodes_are_lost_in_turn_and_two_spares_wait(
    start: Start, undisturbed: list[str], first: str, second: str, meet: str
) -> None:
    with start(f"2:7:{first}:node,3:20:{second}:node", spares=2, meet=meet) as launched:
        launched.wait_for_line("node spare-2 is here")  # the node that is lost may have run the rendezvous
        allow(launched, 7)
        launched.wait_for_line("is healed")
        allow(launched, 20, moved=1)
        check(launched, undisturbed, 2)


@pytest.mark.slow
def test_the_manager_was_started_again_before(start: Start, undisturbed: list[str]) -> None:
    """The manager does not keep the copies. So copies from before its end are still good."""
    with start("2:7:backward:node") as launched:
        launched.wait_for_line("node spare-1 is here")
        allow(launched)
        facts = launched.ask("status")
        assert facts is not None
        os.kill(facts["manager"]["pid"], signal.SIGKILL)
        wait_until(lambda: launched.text.count("ready: manager of job") == 2, "another manager")
        wait_until(lambda: nodes_up(launched) == NODES + 1, "all nodes with the new manager")
        allow(launched, 7)
        check(launched, undisturbed, 1)


def nodes_up(launched: Launched) -> int:
    facts = launched.ask("status")
    return sum(node["state"] == "up" for node in facts["nodes"]) if facts is not None else 0


@pytest.mark.slow
def test_the_launcher_of_a_lost_node_comes_back_as_a_spare(start: Start, undisturbed: list[str]) -> None:
    with start("2:5:backward:node,2:25:applied:node") as launched:
        allow(launched, 5)
        assert "node-1" in launched.wait_for_line(" is lost: ")
        launched.launch(*launched.places[1], *launched.words)  # type: ignore[attr-defined]
        launched.wait_for_line("node spare-2 is here")
        allow(launched, 25, moved=1)
        check(launched, undisturbed, 2)


@pytest.mark.slow
def test_a_spare_that_comes_within_the_time_is_used(start: Start, undisturbed: list[str]) -> None:
    """The spare is stopped meanwhile, so that it is late, but not later than intended."""
    with start("2:7:applied:node") as launched:
        launched.wait_for_line("node spare-1 is here")
        launched.launchers[NODES].send_signal(signal.SIGSTOP)
        launched.wait_for_line("node spare-1 has been silent")
        allow(launched, 7)
        launched.wait_for_line("for a node with room")
        launched.launchers[NODES].send_signal(signal.SIGCONT)
        check(launched, undisturbed, 1)


@pytest.mark.slow
def test_the_spare_has_died_and_nobody_comes(start: Start) -> None:
    with start("2:30:applied:node", TASKD_RECOVER_SPARE_WAIT_MS="2000") as launched:
        launched.wait_for_line("node spare-1 is here")
        spare = launched.launchers[NODES]
        spare.kill()
        launched.wait_for_line("node spare-1 is lost")
        allow(launched, 30)
        launched.wait_for_line("for a node with room")
        launched.wait_for_line("no node with room came within 2 s")
        codes = launched.end(code=None)
        assert codes[1:] == [-signal.SIGKILL, -signal.SIGKILL] and codes[0] == 1, launched.text
        assert re.search(r"the job ends: ranks 2-3 died .* on node node-1", launched.text), launched.text
        assert not launched.said("weights")


@pytest.mark.slow
def test_the_spare_dies_while_the_ranks_it_takes_are_set_up(start: Start, undisturbed: list[str]) -> None:
    with start("2:7:forward:node,2:-1:setup:node", spares=2) as launched:
        allow(launched, 7, -1)
        check(launched, undisturbed, 2)
