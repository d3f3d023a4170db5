"""How nodes that are to be checked find each other: options, and the variables of another launcher."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from taskd.check.meet import check_seconds
from taskd.errors import UsageError
from taskd.launch.options import glance, take_up
from tests.conftest import RunPython

NOTHING = {"rdzv_backend": "static", "rdzv_endpoint": "", "master_port": None, "nnodes": "3:4"}
GIVEN = {"master_addr": "127.0.0.1", "node_rank": 0}


@pytest.mark.parametrize(
    ("own", "environ", "found"),
    [
        ({}, {"DLROVER_MASTER_ADDR": "10.0.0.1:4000", "NODE_RANK": "2"}, ("10.0.0.1", 4000, 2)),
        ({}, {"DLROVER_MASTER_ADDR": "host"}, ("host", 29500, 0)),
        ({}, {"DLROVER_MASTER_ADDR": "fd00::1", "NODE_RANK": "x"}, ("fd00::1", 29500, 0)),
        ({}, {"DLROVER_MASTER_ADDR": "[fd00::1]:7"}, ("fd00::1", 7, 0)),
        ({"node_rank": 3}, {"DLROVER_MASTER_ADDR": "a:1", "NODE_RANK": "2"}, ("a", 1, 3)),
        ({"master_addr": "b"}, {"DLROVER_MASTER_ADDR": "a:1", "NODE_RANK": "2"}, ("b", None, 0)),
        ({}, {"NODE_RANK": "2"}, ("127.0.0.1", None, 0)),
        ({"master_port": 1}, {"DLROVER_MASTER_ADDR": "10.0.0.1:4000", "NODE_RANK": "2"}, ("127.0.0.1", 1, 0)),
        ({"rdzv_endpoint": "a:1"}, {"DLROVER_MASTER_ADDR": "10.0.0.1:4000"}, ("127.0.0.1", None, 0)),
        ({"nnodes": "1"}, {"DLROVER_MASTER_ADDR": "10.0.0.1:4000"}, ("127.0.0.1", None, 0)),
    ],
)
def test_another_launchers_variables(own: dict[str, Any], environ: dict[str, str], found: tuple[Any, ...]) -> None:
    parsed = Namespace(**{**NOTHING, **GIVEN, **own})
    take_up(parsed, environ)
    assert (parsed.master_addr, parsed.master_port, parsed.node_rank) == found


@pytest.mark.parametrize("place", ["10.0.0.1:port", "10.0.0.1:99999", ":1"])
def test_an_impossible_address_is_refused(place: str) -> None:
    with pytest.raises(UsageError, match="is no address of node 0"):
        take_up(Namespace(**NOTHING, **GIVEN), {"DLROVER_MASTER_ADDR": place})


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), 3601])
def test_an_impossible_time_is_refused(seconds: float) -> None:
    with pytest.raises(UsageError, match="must be a number from 1 to 3600 seconds"):
        check_seconds(seconds)


def test_the_script_is_found_behind_the_options() -> None:
    seen = glance(["--network-check", "--exclude-straggler", "--check-timeout", "9", "train.py", "--x"], {})
    assert seen is not None and seen.script == "train.py"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--nnodes", "1"], "must be a number from 2 to"),
        (["--nnodes", "3"], "--node-rank or NODE_RANK must be this node's number, from 0 to 2"),
        (["--nnodes", "3", "--node-rank", "3"], "must be a number from 0 to 2"),
        (["--nnodes", "3", "--node-rank", "0"], "--endpoint HOST:PORT says where node 0 is"),
        (["--nnodes", "3", "--node-rank", "0", "--endpoint", "a:b"], "is no address of node 0"),
        (["--nnodes", "3", "--node-rank", "0", "--endpoint", "a:1", "--check-timeout", "0"], "from 1 to"),
        (["--nnodes", "2", "--node-rank", "0", "--endpoint", "a:1", "--report", "/none/x"], "cannot be written"),
        ([], "--nnodes N says how many nodes are checked"),
    ],
)
def test_what_is_wrong_is_said_at_once(run_python: RunPython, words: list[str], part: str) -> None:
    code = "import sys\nfrom taskd.cli.main import main\nsys.argv[0] = 'taskd'\n"
    done = run_python(code + f"print(main({['check', *words]!r}))")
    assert part in done.stdout + done.stderr and done.stdout.strip().endswith("2"), (done.stdout, done.stderr)


def test_one_node_has_nobody_to_be_checked_with(run_python: RunPython, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('trained')\n")
    words = json.dumps(["--network-check", "--standalone", str(script)])
    done = run_python(f"import json, sys\nfrom taskd.run import main\nsys.exit(main(json.loads({words!r})))")
    assert "one node has no other to be checked with" in done.stderr and "trained" in done.stdout
