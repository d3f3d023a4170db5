"""Agent and workers as real processes with a real manager: registration, deaths, and every kind of loss between
them."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.shell.manager_process import wait_for
from tests.shell.plane import Plane, Trainer, holds, listening_inode


@pytest.fixture
def plane(run_dir: Path, free_port, request) -> Iterator[Plane]:
    with Plane(run_dir, free_port(), job=f"job-{os.getpid()}") as made:
        yield made
    made.wait_for_no_agents()


SOON = {"TASKD_WORKER_REGISTER_WAIT_MS": "1000"}
"""Settings for a start that cannot succeed."""


def wait_for_reason(trainer: Trainer, words: str) -> None:
    wait_for(lambda: words in trainer.ask("state")["reason"], f"the reason {words!r}")


def state(plane: Plane, rank: int) -> str:
    return str(plane.rank(rank).get("state", "")).lower()


def test_an_agent_is_found_although_it_closes_something_meanwhile() -> None:
    """The list of our own descriptors always contains one that is closed before its link is read."""
    name = f"\0plane/{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(name)
        listener.listen()
        inode = listening_inode(name)
        assert inode and holds(os.getpid(), inode)
    assert not holds(os.getpid(), inode)


def test_ranks_of_two_nodes_register_and_show_their_steps(plane: Plane) -> None:
    plane.manager.start()
    trainers = plane.train(0, 1, 2, 3)
    for trainer in trainers:
        assert trainer.started["init"] is True and trainer.started["start"] is True, trainer.said()
    rows = [plane.rank(rank) for rank in range(4)]
    assert [row["node"] for row in rows] == ["left", "left", "right", "right"]
    assert [row["pid"] for row in rows] == [trainer.pid for trainer in trainers]
    assert [row["incarnation"] for row in rows] == [1, 1, 1, 1]
    first = plane.rank(3)["step"]
    wait_for(lambda: plane.rank(3)["step"] > first + 5, "steps that go on")
    row = plane.rank(3)
    assert row["step_ms"] >= 1 and row["beat_age_ms"] >= 0
    for trainer in trainers:
        assert trainer.end() == 0
    assert plane.manager.process is not None and plane.manager.process.wait(PATIENCE_S) == 0  # its job is over
    assert plane.manager.said().count("ended in good order\n") >= 4


def test_a_killed_worker_is_reported_dead_with_its_signal(plane: Plane) -> None:
    plane.manager.start()
    trainers = plane.train(0, 1, 2, 3)
    trainers[2].process.send_signal(signal.SIGKILL)
    wait_for(lambda: state(plane, 2) == "dead", "rank 2 dead")
    assert plane.rank(2)["exit_code"] == -9
    assert [state(plane, rank) for rank in (0, 1, 3)] == ["alive"] * 3


def test_every_kind_of_end_has_its_exit_code(plane: Plane) -> None:
    plane.manager.start()
    trainers = plane.train(0, 1, 2, 3)
    trainers[0].command("exit 3")
    trainers[1].command("raise")
    trainers[2].command("exit 0")
    trainers[3].process.send_signal(signal.SIGTERM)
    wait_for(lambda: [state(plane, rank) for rank in range(4)] == ["dead", "dead", "left", "dead"], "four ends")
    assert [plane.rank(rank)["exit_code"] for rank in (0, 1, 3)] == [3, 1, -15]
    assert "ValueError: shapes differ" in trainers[1].said()
    for trainer in trainers:
        trainer.process.wait(PATIENCE_S)


def test_a_restarted_worker_is_the_next_incarnation(plane: Plane) -> None:
    plane.manager.start()
    first, _ = plane.train(0, 1)
    first.process.kill()
    wait_for(lambda: state(plane, 0) == "dead", "rank 0 dead")
    (second,) = plane.train(0, TORCHELASTIC_RESTART_COUNT="1")
    assert second.started["start"] is True, second.said()
    row = plane.rank(0)
    assert (row["state"].lower(), row["incarnation"], row["pid"]) == ("alive", 2, second.pid)


def test_a_killed_agent_is_replaced_by_its_workers_and_training_goes_on(plane: Plane) -> None:
    plane.manager.start()
    trainers = plane.train(0, 1, 2, 3)
    for _ in range(3):
        before = plane.agent_pid("left")
        assert before
        step = plane.rank(0)["step"]
        os.kill(before, signal.SIGKILL)
        wait_for(lambda before=before: plane.agent_pid("left") not in (0, before), "another agent")
        wait_for(lambda: trainers[0].ask("state")["acknowledged"], "rank 0 registered again")
        wait_for(lambda step=step: plane.rank(0)["step"] > step, "steps that the manager sees again")
    assert [state(plane, rank) for rank in range(4)] == ["alive"] * 4
    assert [plane.rank(rank)["incarnation"] for rank in range(4)] == [1] * 4
    trainers[1].process.kill()  # the new agent sees deaths, too, as the first one did
    wait_for(lambda: state(plane, 1) == "dead" and plane.rank(1)["exit_code"] == -9, "rank 1 dead")


def test_a_killed_manager_comes_back_and_training_never_notices(plane: Plane) -> None:
    plane.manager.start()
    trainers = plane.train(0, 1, 2, 3)
    agents = [plane.agent_pid(node) for node in ("left", "right")]
    plane.manager.kill()
    trainers[3].process.kill()  # while there is no manager
    plane.manager.start()
    wait_for(lambda: [state(plane, rank) for rank in range(4)] == ["alive"] * 3 + ["dead"], "what happened meanwhile")
    step = plane.rank(0)["step"]
    wait_for(lambda: plane.rank(0)["step"] > step, "steps that go on")
    assert [plane.agent_pid(node) for node in ("left", "right")] == agents
    assert plane.rank(3)["exit_code"] == -9


def test_without_a_manager_start_returns_false_in_time_and_registers_later(plane: Plane) -> None:
    (trainer,) = plane.train(0, **SOON)
    assert trainer.started["init"] is True and trainer.started["start"] is False
    assert trainer.started["seconds"] > 0.9
    wait_for_reason(trainer, f"there is no manager at 127.0.0.1:{plane.port}")
    assert trainer.said().count("is not registered") == 1, trainer.said()
    plane.manager.start()
    wait_for(lambda: trainer.ask("state")["acknowledged"], "a registration in the background")
    wait_for(lambda: "is registered with the manager now" in trainer.said(), "the word of it")
    assert trainer.said().count("is registered with the manager now") == 1, trainer.said()
    assert plane.rank(0)["pid"] == trainer.pid


def test_a_wrong_key_and_a_wrong_job_each_give_their_sentence(plane: Plane) -> None:
    plane.manager.start()
    (wrong,) = plane.train(0, TASKD_KEY="ab" * 32, **SOON)
    assert wrong.started["start"] is False
    wait_for_reason(wrong, "does not accept this node's key")
    wrong.end()
    plane.wait_for_no_agents()
    key = (plane.manager.folder / "key").read_text().strip()
    (foreign,) = plane.train(0, TASKD_KEY=key, TASKD_JOB_ID=f"{plane.job}-other", **SOON)
    assert foreign.started["start"] is False
    wait_for_reason(foreign, f"this is the manager of job {plane.job}")
    foreign.end()
    assert state(plane, 0) != "alive"


def test_a_second_worker_of_a_rank_is_refused_and_takes_over_when_the_first_has_gone(plane: Plane) -> None:
    plane.manager.start()
    (first,) = plane.train(0)
    (second,) = plane.train(0, **SOON)
    assert second.started["start"] is False
    wait_for_reason(second, str(first.pid))
    wait_for_reason(second, "rank 0")
    assert plane.rank(0)["pid"] == first.pid and state(plane, 0) == "alive"
    first.kill()
    wait_for(lambda: second.ask("state")["acknowledged"], "the second one in the first one's place")
    assert plane.rank(0)["pid"] == second.pid


def test_a_forked_child_inherits_nothing_and_stays_silent(plane: Plane) -> None:
    plane.manager.start()
    (trainer,) = plane.train(0)
    found = trainer.ask("fork")
    mine, child = found["mine"], found["fds"]
    ours = {fd for fd, name in mine.items() if name.startswith("socket:") or "taskd" in name}
    assert len(ours) >= 2, mine  # at least the connection to the agent and the page
    for fd in ours:
        assert child.get(fd, "/dev/null") == "/dev/null", (fd, mine[fd], child[fd])
    assert found["present"] is False and found["step_shown"] is False
    assert trainer.ask("state")["acknowledged"]


def test_a_stopped_worker_is_not_dead(plane: Plane) -> None:
    plane.manager.start()
    (trainer,) = plane.train(0)
    trainer.process.send_signal(signal.SIGSTOP)
    wait_for(lambda: plane.rank(0)["beat_age_ms"] > 1500, "a beat that has grown old")
    assert state(plane, 0) != "dead"
    trainer.process.send_signal(signal.SIGCONT)
    wait_for(lambda: plane.rank(0)["beat_age_ms"] < 1000, "a beat again")
    assert state(plane, 0) == "alive"


def test_a_worker_may_leave_and_come_back(plane: Plane) -> None:
    plane.manager.start()
    trainer, _ = plane.train(0, 1)
    assert trainer.ask("destroy") == {"destroyed": True}
    wait_for(lambda: state(plane, 0) == "left", "rank 0 that left")
    again = trainer.ask("start")
    assert again["start"] is True, trainer.said()
    wait_for(lambda: state(plane, 0) == "alive", "rank 0 back")


def test_the_agent_ends_soon_after_its_last_worker(plane: Plane) -> None:
    plane.manager.start()
    one, other = plane.train(0, 1)
    one.end()
    assert plane.agent_pid("left")
    other.end()
    plane.wait_for_no_agents()


def test_the_agent_starts_quickly_and_holds_no_terminal_of_ours(plane: Plane) -> None:
    plane.manager.start()
    (trainer,) = plane.train(0)
    pid = plane.agent_pid("left")
    status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    parent, session = int(status[1]), int(status[3])
    assert session not in (os.getsid(0), os.getsid(trainer.pid)) and parent != trainer.pid
    targets = {fd: os.readlink(f"/proc/{pid}/fd/{fd}") for fd in "012"}
    assert targets["0"] == targets["1"] == "/dev/null"
    assert "torch" not in Path(f"/proc/{pid}/maps").read_text()
    trainer.end()


def test_switched_off_nothing_happens(plane: Plane) -> None:
    (trainer,) = plane.train(0, TASKD_PROCESS_ENABLE="off")
    assert trainer.started["init"] is True and trainer.started["start"] is True
    assert trainer.said().count("TASKD_PROCESS_ENABLE is off") == 1
    assert not plane.agent_pid("left")
    assert trainer.ask("destroy") == {"destroyed": True}


@pytest.mark.parametrize("framework", ["ms"])
def test_the_other_framework_beats_only_and_says_so(plane: Plane, framework: str) -> None:
    plane.manager.start()
    (trainer,) = plane.train(0, FRAMEWORK=framework)
    assert trainer.started["start"] is True
    assert trainer.said().count("follows no steps") == 1
    assert plane.rank(0)["step"] == -1
