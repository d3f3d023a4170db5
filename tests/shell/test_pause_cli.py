"""taskd pause and taskd resume, with a real manager. The agents' ranks come to every step at once, and stand there."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from taskd.core.messages import PauseAnswers, PauseOrder, Report
from taskd.core.pause.guard import StepGuard
from taskd.core.types import PauseKind
from tests.patience import PATIENCE_S
from tests.shell.manager_process import HandAgent, ManagerProcess, wait_for


class PauseAgent(HandAgent):
    """An agent whose ranks follow pause orders, unless the test makes them deaf."""

    guards: dict[int, StepGuard]
    deaf = False
    trouble = ""
    number = 0

    def report(self) -> None:
        while (message := self.receive(0)) is not None:
            if isinstance(message, PauseOrder) and not self.deaf:
                self.number = message.number
                for guard in self.guards.values():
                    guard.ordered(time.monotonic_ns(), message)
                    if message.kind is PauseKind.STAND:
                        for step in range(guard.begun + 1, message.step + 1):
                            guard.stands = not guard.may_begin(time.monotonic_ns(), step)
        if self.number:
            answers = tuple(guard.answer(rank, 1, self.trouble) for rank, guard in self.guards.items())
            self.say(PauseAnswers(self.number, answers))
        self.say(Report(True, self.term, self.rows(), self.epoch))


@dataclass
class Plane:
    manager: ManagerProcess
    agents: dict[str, PauseAgent]

    def cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.manager.cli(*words)

    def pause(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.manager.status()["pause"]
        return found


@pytest.fixture
def plane(run_dir: Path, free_port: Callable[[], int]) -> Iterator[Plane]:
    manager = ManagerProcess(run_dir, free_port()).start()
    with contextlib.ExitStack() as stack:
        agents = {}
        for name, ranks in {"a": (0, 1), "b": (2, 3)}.items():
            agent = stack.enter_context(PauseAgent(manager, name, ranks))
            agent.guards = {rank: StepGuard() for rank in ranks}
            for guard in agent.guards.values():
                guard.may_begin(time.monotonic_ns(), 5)
            HandAgent.join(agent)
            agents[name] = agent
        for agent in agents.values():
            stack.enter_context(agent.beating())
        one = Plane(manager, agents)
        wait_for(lambda: one.manager.status()["states"].get("alive") == 4, "all ranks to be there")
        yield one
    assert manager.end() == 0, manager.said()


def test_nothing_runs_or_nobody_answers(run_dir: Path, free_port: Callable[[], int]) -> None:
    manager = ManagerProcess(run_dir, free_port()).start()
    refused = manager.cli("pause")
    assert refused.returncode == 2 and "nothing is running" in refused.stderr
    for words in (("restart-rank", "0"), ("drain-node", "a"), ("stop",)):
        refused = manager.cli(*words)
        assert refused.returncode == 2 and "nothing is running" in refused.stderr, refused
    assert "a whole number" in manager.cli("restart-rank", "--", "-1").stderr
    dump = manager.cli("stop", "--dump")
    assert dump.returncode == 2 and "nothing is running" in dump.stderr, dump
    idle = manager.cli("resume")
    assert idle.returncode == 0 and "nothing is paused" in idle.stdout
    assert manager.end() == 0, manager.said()
    for words in (("pause",), ("resume",), ("restart-rank", "0"), ("drain-node", "a"), ("stop",)):
        gone = manager.cli(*words)
        assert gone.returncode == 3 and "no manager" in gone.stderr, gone.stderr


def test_pause_renew_resume(plane: Plane) -> None:
    done = plane.cli("pause", "--timeout", "100")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "paused before step 6: all ranks stand" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()[2:]]
    assert [row[:4] for row in rows if row] == [[str(rank), "aabb"[rank], "yes", "6"] for rank in range(4)], done.stdout
    shown = plane.cli("status").stdout
    assert "paused before step 6 by " in shown and "until " in shown, shown
    again = json.loads(plane.cli("pause", "--timeout", "1000", "--request", "mine", "--json").stdout)
    assert again["done"] and again["request"] == "mine" and again["pause"]["left_ms"] > 900_000
    same = json.loads(plane.cli("pause", "--timeout", "5", "--request", "mine", "--json").stdout)
    assert same["pause"]["left_ms"] > 900_000, "a repeated request is not followed twice"
    other = plane.cli("pause", "--at-step", "9")
    assert other.returncode == 2 and "before step 6 already" in other.stderr
    resumed = plane.cli("resume")
    assert resumed.returncode == 0 and "all ranks go on" in resumed.stdout
    assert plane.pause() is None
    idle = plane.cli("resume")
    assert idle.returncode == 0 and "nothing is paused" in idle.stdout
    events = plane.cli("events").stdout
    for part in ("wants the job to pause", "the job is paused before step 6", "has resumed the job"):
        assert part in events, events


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--at-step", "3"), "has begun step 5 already"),
        (("--at-step", "-4"), "a whole number from 0 on"),
        (("--timeout", "0"), "more than 0 seconds"),
        (("--timeout", "100000"), "7200 s at most"),
        (("--request", "a\nb"), "by request, operator, step and milliseconds"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(plane: Plane, words: tuple[str, ...], why: str) -> None:
    refused = plane.cli("pause", *words)
    assert refused.returncode == 2 and why in refused.stderr, refused.stdout + refused.stderr
    assert plane.pause() is None


def test_a_rank_that_cannot_stand_is_named(plane: Plane) -> None:
    plane.agents["b"].trouble = "its script has no step"
    refused = plane.cli("pause")
    assert refused.returncode == 2 and "rank 2 cannot: its script has no step" in refused.stderr, refused.stderr


def test_who_does_not_stand_is_shown(plane: Plane) -> None:
    plane.agents["b"].deaf = True
    waiting = plane.cli("pause", "--wait", "1")  # expires: two ranks are deaf
    assert waiting.returncode == 1 and "2 of 4 ranks have told their step" in waiting.stdout, waiting.stdout
    assert plane.cli("resume").returncode == 0


def test_a_manager_that_is_started_again_has_the_pause(plane: Plane) -> None:
    plane.agents["b"].deaf = True
    words = [sys.executable, "-m", "taskd", "pause", "--json", "--wait", str(PATIENCE_S)]
    environment = {**plane.manager.environment}
    asking = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        wait_for(plane.pause, "the pause to be known")
        plane.manager.kill()
        plane.manager.start()
        plane.agents["b"].deaf = False
        printed, _ = asking.communicate(timeout=PATIENCE_S)
    finally:
        asking.kill()
        asking.wait()
    found = json.loads(printed)
    assert asking.returncode == 0 and found["done"] and found["standing"] == 4, printed
    assert plane.cli("resume").returncode == 0
