"""`taskd sim`: its table, its JSON, its exit codes and its answer to a wrong argument."""

from __future__ import annotations

import json

import pytest

from taskd.cli.main import main
from taskd.sim import story
from taskd.sim.scenario import FAULTS, Options
from taskd.sim.watch import Violation
from taskd.sim.world import World


def test_table_and_json_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sim", "--ranks", "8", "--minutes", "0.5", "--seed", "4", "--faults", "kill,node"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] and told["ranks"] == 8 and set(told["faults"]) <= {"kill", "node"}
    assert told["command"] == "taskd sim --ranks 8 --minutes 0.5 --seed 4 --faults kill,node"
    for name in ("virtual s", "incidents", "heal p50 ms", "heal p99 ms", "messages", "fingerprint"):
        assert any(line.startswith(name) for line in shown.splitlines()), name
    assert told["fingerprint"] in shown


def test_order_of_faults_does_not_matter(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for kinds in ("node,kill", "kill,node"):
        main(["sim", "--ranks", "4", "--minutes", "0.2", "--faults", kinds, "--json"])
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


def test_list_of_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "--faults", "list"]) == 0
    shown = capsys.readouterr().out
    assert all(kind in shown for kind in FAULTS)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--ranks", "0"], "--ranks 0 must be a number from 1 to"),
        (["--ranks", "999999"], "--ranks 999999 must be a number from 1 to"),
        (["--minutes", "0"], "--minutes 0 must be more than 0"),
        (["--minutes", "nan"], "--minutes nan must be more than 0"),
        (["--faults", "kill,meteor"], "there is no fault 'meteor'; there are kill, "),
        (["--seed", "x"], "--seed"),
    ],
)
def test_wrong_arguments(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", *words]) == 2
    refused = capsys.readouterr().err
    assert sentence in refused and refused.count("\n") == 1


def test_failure_names_the_rule_and_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Rebellious(story.Play):
        def run(self) -> None:
            super().run()
            raise Violation("quiet", "something that never happens")

    monkeypatch.setattr(story, "Play", Rebellious)
    words = ["sim", "--ranks", "4", "--minutes", "0.2", "--seed", "9", "--faults", "kill"]
    assert main(words) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"play it again: taskd {' '.join(words)}"
    assert lines[-2] == "violated: something that never happens"
    assert any(line.startswith("quiet (") for line in lines)
    assert any("the core" not in line and "n0" in line for line in lines), "the last lines are missing"
    assert main([*words, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["violation"]["rule"] == "quiet"


def test_world_needs_nothing_but_its_options() -> None:
    worlds = [World(Options(4, 0.1, 1), story.Machines()) for _ in range(2)]
    assert worlds[0].scenario == worlds[1].scenario
