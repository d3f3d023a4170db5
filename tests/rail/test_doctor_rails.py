"""What taskd doctor says about rails: named rails that cannot exist, cables that are pulled, ports that are taken."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from taskd import config
from taskd.cli.checks import FAULT, OK, WARNING, Finding, rails
from tests.conftest import ROOT


def findings(**rail: str) -> dict[str, Finding]:
    return {found.check: found for found in rails.check(config.load(environ={}, rail=rail))}


def test_rails_on_loopback_are_well() -> None:
    found = findings(rails="a=127.0.0.2,b=127.0.0.3")
    assert [finding.state for finding in found.values()] == [OK] * 5
    assert found["rail a"].sentence == "127.0.0.2, named"
    assert found["inner group"].sentence == "rail, over a, b"


def test_over_gloo_no_rail_is_looked_at() -> None:
    settings = config.load(environ={}, worker_inner="gloo", rail={"rails": "a=eth77"})
    (found,) = rails.check(settings)
    assert (found.check, found.state) == ("inner group", OK) and found.sentence.startswith("gloo, as worker.inner says")


def test_a_rail_that_cannot_be_is_a_fault_with_its_cure() -> None:
    found = findings(rails="a=eth77")
    assert found["rails"].state == FAULT and "this node has no interface eth77" in found["rails"].sentence


def test_ports_that_are_taken_are_a_fault(free_port: Callable[[], int]) -> None:
    port = free_port()
    with socket.socket() as holder:
        holder.bind(("127.0.0.2", port))
        holder.listen(1)
        taken = findings(rails="a=127.0.0.3,b=127.0.0.2", ports=f"{port}-{port}")["ports"]
        assert taken.state == FAULT and "0 of 1 ports are free on 127.0.0.2" in taken.sentence
        assert findings(rails="a=127.0.0.3", ports=f"{port}-{port}")["ports"].state == OK
    assert findings(ports="30-20")["ports"].state == FAULT


@pytest.fixture
def space() -> Iterator[str]:
    name = f"taskd-doctor-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    yield name
    subprocess.run(["ip", "netns", "delete", name], check=True)


CHECK = """
import dataclasses, json
from taskd import config
from taskd.cli.checks import rails
print(json.dumps([dataclasses.asdict(found) for found in rails.check(config.load())]))
"""


@pytest.mark.root
def test_a_cable_that_is_pulled_is_a_warning(space: str) -> None:
    def states() -> dict[str, tuple[str, str]]:
        done = subprocess.run(
            ["ip", "netns", "exec", space, sys.executable, "-c", CHECK],
            env={**os.environ, "PYTHONPATH": str(ROOT), "TASKD_RAILS": "a=near0"},
            capture_output=True,
            text=True,
            check=True,
        )
        return {row["check"]: (row["state"], row["sentence"]) for row in json.loads(done.stdout)}

    def ip(*words: str) -> None:
        subprocess.run(["ip", "-n", space, *words], check=True)

    ip("link", "add", "near0", "type", "veth", "peer", "name", "far0")
    ip("address", "add", "10.77.0.1/24", "dev", "near0")
    ip("link", "set", "near0", "up")
    state, sentence = states()["rail a"]
    assert state == WARNING and "has no carrier" in sentence
    ip("link", "set", "far0", "up")
    assert states()["rail a"] == (OK, "10.77.0.1 on near0, named")
