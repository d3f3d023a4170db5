"""Simulated checks: exact wherever two healthy nodes can meet, nobody healthy expelled, at most four rounds."""

from __future__ import annotations

import json

import pytest

from taskd.cli.main import main
from taskd.core import limits
from taskd.core.check import opinions
from taskd.core.check.witnesses import Witnesses
from taskd.sim.check import play, tally
from taskd.sim.check_faults import FAULTS


@pytest.mark.parametrize(
    ("nodes", "faults", "seeds"), [(4, 1, 80), (4, 2, 80), (5, 1, 40), (16, 6, 12), (64, 8, 3), (512, 20, 1)]
)
def test_every_verdict_is_exact(nodes: int, faults: int, seeds: int) -> None:
    found = tally(nodes, faults, range(seeds))
    assert found.ok, "\n".join(found.shown)
    assert found.exact == found.decidable > 0 and not found.expelled and max(found.rounds) <= limits.CHECK_ROUNDS


@pytest.mark.parametrize(("nodes", "faults"), [(2, 1), (2, 2), (3, 2), (4, 3)])
def test_where_little_can_be_known_nobody_healthy_leaves(nodes: int, faults: int) -> None:
    found = tally(nodes, faults, range(40))
    assert not found.expelled and max(found.rounds) <= limits.CHECK_ROUNDS


@pytest.mark.parametrize("kind", FAULTS)
def test_each_kind_alone(kind: str) -> None:
    found = tally(6, 2, range(5), (kind,))
    assert found.ok, "\n".join(found.shown)


def test_a_seed_is_always_the_same_check() -> None:
    assert play(8, 3, 11).report == play(8, 3, 11).report


@pytest.mark.parametrize(("promise", "kind"), [("witnesses", "cut"), ("repeats", "unsteady"), ("margin", "compute")])
def test_a_broken_promise_is_caught(promise: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation has to complain about a careless core, or it shows nothing."""
    if promise == "witnesses":
        monkeypatch.setattr(Witnesses, "clear", lambda self, witness, aspect, node: True)
        monkeypatch.setattr(Witnesses, "reachable", lambda self, node, aspect: 2)
    elif promise == "repeats":
        monkeypatch.setattr(opinions, "_confirmed", lambda seen, aspect: True)
        monkeypatch.setattr(limits, "CHECK_PARTNERS", 1)
    else:
        monkeypatch.setattr(limits, "CHECK_SLOW_PERCENT", 101)
        monkeypatch.setattr(limits, "CHECK_SLOW_SPREADS", 0)
    nodes, faults = (3, 2) if promise == "witnesses" else (16, 6)
    assert not tally(nodes, faults, range(12), (kind,)).ok


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", "--simulate", "4", "--faults", "1", "--seeds", "5"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] and told["exact_share"] == 1 and told["healthy_expelled"] == 0 and told["seeds"] == 5
    for name in ("exact share", "healthy expelled", "rounds max", "kinds"):
        assert any(line.startswith(name) for line in shown.splitlines()), name
    assert main(["check", "--kinds", "list"]) == 0
    shown = capsys.readouterr().out
    assert all(kind in shown for kind in FAULTS)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "--nnodes N says how many nodes are checked; `taskd check --simulate 8 --faults 1` checks simulated"),
        (["--simulate", "1"], "--simulate 1 must be a number from 2 to"),
        (["--simulate", "4", "--faults", "5"], "--faults 5 must be a number from 0 to 4"),
        (["--simulate", "4", "--seeds", "0"], "--seeds 0 must be a number from 1 to"),
        (["--simulate", "4", "--kinds", "dead,meteor"], "there is no fault 'meteor'; there are dead, "),
    ],
)
def test_what_it_refuses(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *words]) == 2
    assert sentence in capsys.readouterr().err
