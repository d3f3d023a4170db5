"""The simulator's parts: virtual time, network disturbances, the trained numbers, and the same story for one seed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from typing import Any

import pytest

from taskd.sim.loop import Loop
from taskd.sim.model import MASK, Oracle, updated, weight
from taskd.sim.network import CALM, MS, WEATHERS, Network, Weather
from taskd.sim.scenario import FAULTS, Options, draw
from taskd.sim.story import percentile, simulate


def test_loop_runs_in_order_of_time_and_plan() -> None:
    loop, seen = Loop(), []
    loop.at(30, seen.append, "c")
    loop.at(10, seen.append, "a")
    loop.at(10, seen.append, "b")
    loop.at(10, lambda: loop.at(5, seen.append, "never before now"))
    assert not loop.run(20)
    assert seen == ["a", "b", "never before now"] and loop.now == 20
    assert loop.run(100, lambda: len(seen) == 4)
    assert loop.now == 30


def carried(weather: Weather, count: int = 2000) -> list[tuple[int, int]]:
    loop = Loop()
    network = Network(loop, random.Random(1), weather)
    arrived: list[tuple[int, int]] = []
    network.attach("b", lambda source, number: arrived.append((loop.now, number)))
    for number in range(count):
        loop.at(number * MS, network.send, "a", "b", number)
    loop.run(10_000 * MS)
    return arrived


def test_calm_network_loses_nothing() -> None:
    arrived = carried(CALM)
    assert [number for _, number in arrived] == list(range(2000))


@pytest.mark.parametrize("weather", WEATHERS[1:], ids=lambda weather: weather.name)
def test_weather_is_as_bad_as_it_says(weather: Weather) -> None:
    numbers = [number for _, number in carried(weather)]
    missing, twice = 2000 - len(set(numbers)), len(numbers) - len(set(numbers))
    assert abs(missing - 2000 * weather.lost) <= 60
    assert abs(twice - 2000 * weather.doubled) <= 60
    assert numbers != sorted(numbers)


def test_cuts_add_up_and_replay_repeats() -> None:
    loop = Loop()
    network = Network(loop, random.Random(1), CALM)
    arrived: list[Any] = []
    network.attach("b", lambda source, what: arrived.append(what))
    network.cut("a", "b")
    network.cut("b", "a")
    network.send("a", "b", 1)
    loop.run(10 * MS)
    network.mend("a", "b")
    network.send("a", "b", 2)
    loop.run(20 * MS)
    assert not arrived and network.traffic.cut_off == 2
    network.mend("a", "b")
    assert network.replay(10) == 2
    loop.run(30 * MS)
    assert sorted(arrived) == [1, 2]


def test_model_knows_who_was_missing() -> None:
    oracle = Oracle(8)
    everybody = sum(weight(rank) for rank in range(8)) & MASK
    assert updated(oracle.model(0), 1, everybody) == oracle.model(1)
    for absent in range(8):
        assert updated(oracle.model(0), 1, (everybody - weight(absent)) & MASK) != oracle.model(1)
        assert updated(oracle.model(0), 1, (everybody + weight(absent)) & MASK) != oracle.model(1)
    assert len({oracle.model(updates) for updates in range(100)}) == 100


def test_scenario_depends_on_the_options_alone() -> None:
    options = Options(16, 1, 7)
    assert draw(options)[0] == draw(options)[0]
    assert draw(options)[0] != draw(Options(16, 1, 8))[0]


def test_command_names_what_differs() -> None:
    assert Options(4, 0.5, 3).command() == "taskd sim --ranks 4 --minutes 0.5 --seed 3"
    assert Options(4, 1.0, 3, ("kill",)).command() == "taskd sim --ranks 4 --minutes 1 --seed 3 --faults kill"
    assert Options(4, 1.0, 3, ()).command().endswith("--faults none")
    assert set(FAULTS) == set(Options(4, 1, 0).kinds)


def test_percentiles() -> None:
    assert percentile([], 50) is None
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([float(value) for value in range(1, 101)], 99) == 99.0


def test_one_seed_is_one_story_in_every_process() -> None:
    """Even the order of a set of strings, which differs between processes, must not change a story."""
    outputs = set()
    for hash_seed in ("1", "2", "77"):
        done = subprocess.run(
            [sys.executable, "-m", "taskd.cli.main", "sim", "--ranks", "12", "--minutes", "1", "--seed", "5", "--json"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1
    assert json.loads(outputs.pop())["fingerprint"] == simulate(Options(12, 1, 5)).summary["fingerprint"]
