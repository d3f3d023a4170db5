"""`taskd-run --network-check`: nodes at fault leave, and the job trains on the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.check.conftest import PLANTS
from tests.launched import ROOT, Launched

TRAIN = Path(__file__).with_name("train.py")
LEAVES = 69
Run = Callable[..., Launched]


@pytest.fixture
def run(tmp_path: Path, free_port: Callable[[], int]) -> Run:
    """Return a function that starts a job, whose nodes have these options of their own. `plants`: the faults of some
    nodes' probes."""

    def start(words: Sequence[str], own: Sequence[Sequence[str]], plants: Mapping[int, str]) -> Launched:
        within = []
        for at in range(len(own)):
            paths = [str(ROOT), *([str(PLANTS / plants[at])] if at in plants else [])]
            within.append(["env", f"PYTHONPATH={os.pathsep.join(paths)}", f"HOST={at}"])
        words = ["--network-check", "--nproc-per-node", "1", *words, str(TRAIN)]
        return Launched(tmp_path, free_port(), *words, nodes=own, job="check", within=within)

    return start


def numbered(count: int) -> list[list[str]]:
    """Return the options of nodes that have numbers."""
    return [["--node-rank", str(at)] for at in range(count)]


def test_a_job_trains_on_the_nodes_that_are_well(run: Run, free_port: Callable[[], int]) -> None:
    words = ["--nnodes", "2:3", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    with run(words, numbered(3), {1: "wrong"}) as job:
        assert job.end(None) == [0, LEAVES, 0], job.text
    assert sorted(job.said("rank")) == ["0 of 2 on node 0: 2", "1 of 2 on node 2: 2"], job.text
    assert "The node is down. (" in job.text and "Round 0: The node elapsed time are {0: " in job.text, job.text


def test_nodes_without_numbers(run: Run, free_port: Callable[[], int]) -> None:
    words = ["--nnodes", "2:3", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    own = [["--rdzv-conf", f"is_host={int(at == 0)}"] for at in range(3)]
    with run([*words, "--rdzv-id", "check"], own, {2: "killed"}) as job:
        assert job.end(None) == [0, 0, LEAVES], job.text
    assert sorted(line.partition(" on")[0] for line in job.said("rank")) == ["0 of 2", "1 of 2"], job.text


@pytest.mark.parametrize(("at", "codes"), [(1, [1, LEAVES]), (0, [LEAVES, 1])])
def test_too_few_nodes_are_left(run: Run, free_port: Callable[[], int], at: int, codes: list[int]) -> None:
    words = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    with run(words, numbered(2), {at: "wrong"}) as job:
        assert job.end(None) == codes, job.text
    why = "the check leaves 1 of the 2 nodes" if at else "which holds the rendezvous at 127.0.0.1:"
    assert why in job.text and job.said("rank") == [], job.text
