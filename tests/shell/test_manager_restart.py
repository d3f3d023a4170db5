"""The lives of a manager: it is ready quickly, alone, killed and started again, with and without its journal."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taskd.core.messages import Answer, Evidence, Goodbye, Report
from taskd.core.types import EvidenceKind, RankState
from tests.patience import PATIENCE_S
from tests.shell.manager_process import ROOT, HandAgent, ManagerProcess, wait_for

MakeManager = Callable[..., ManagerProcess]


@pytest.fixture
def make(run_dir: Path, free_port: Callable[[], int]) -> Iterator[MakeManager]:
    made: list[ManagerProcess] = []

    def start(**words: Any) -> ManagerProcess:
        process = ManagerProcess(run_dir, words.pop("port", None) or free_port(), **words)
        made.append(process)
        return process

    yield start
    for process in made:
        if process.process is not None and process.process.poll() is None:
            process.end()


def incidents(manager: ManagerProcess) -> list[dict[str, Any]]:
    done = manager.cli("incidents", "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["incidents"]
    return found


def replayed(manager: ManagerProcess) -> subprocess.CompletedProcess[str]:
    return manager.cli("replay", str(manager.folder / "journal.db"))


def die(agent: HandAgent, rank: int, code: int = -9) -> None:
    agent.states[rank] = {**agent.states[rank], "state": RankState.DEAD, "exit_code": code, "reason": "killed"}
    agent.say(Evidence(EvidenceKind.PROCESS_EXIT, rank, 1, -1, code, "killed"))
    agent.report()


def states(manager: ManagerProcess) -> list[str]:
    facts = manager.status()
    return [one["state"] for one in [*facts["nodes"], *facts["ranks"]]]


def without(facts: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name not in names}


def stable(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the facts of the ranks that do not change with time."""
    return [without(rank, "beat_age_ms", "step", "updates", "step_ms") for rank in facts["ranks"]]


def test_it_is_ready_and_leaves_no_note(make: MakeManager) -> None:
    manager = make()
    manager.start()
    assert manager.end() == 0
    assert "ready: manager of job job on tcp://127.0.0.1:" in manager.said()
    assert not (manager.folder / "manager.json").exists()
    assert {"journal.db", "key", "manager.lock", "term"} <= set(os.listdir(manager.folder))
    assert "SIGTERM was received" in manager.said()


def test_a_second_manager_is_told_who_is_there(make: MakeManager) -> None:
    first = make(job="first").start()
    assert first.process is not None
    same_port = make(job="second", port=first.port).start(ready=False)
    assert same_port.process is not None and same_port.process.wait(PATIENCE_S) == 1
    assert f"port {first.port} is taken by the manager of job first (pid {first.process.pid})" in same_port.said()
    same_job = make(job="first").start(ready=False)
    assert same_job.process is not None and same_job.process.wait(PATIENCE_S) == 1
    expected = f"job first has a manager on this host already, pid {first.process.pid} on port {first.port}"
    assert expected in same_job.said() and "Traceback" not in same_job.said() + same_port.said()
    assert first.note() and first.status()["job"] == "first"


def test_a_port_that_somebody_else_has_is_named(make: MakeManager, free_port: Callable[[], int]) -> None:
    port = free_port()
    code = "import socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); print('up'); input()"
    with subprocess.Popen(
        [sys.executable, "-u", "-c", code, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == b"up\n"
        manager = make(port=port).start(ready=False)
        assert manager.process is not None and manager.process.wait(PATIENCE_S) == 1
        assert f"port {port} is taken by process {other.pid}" in manager.said()
        other.communicate(b"\n")


def test_an_address_that_is_not_this_hosts_is_refused(make: MakeManager) -> None:
    manager = make(TASKD_MANAGER_BIND="192.0.2.1").start(ready=False)
    assert manager.process is not None and manager.process.wait(PATIENCE_S) == 1
    assert "TASKD_MANAGER_BIND" in manager.said() and "Traceback" not in manager.said()


def test_membership_and_incidents_survive_kill_9(make: MakeManager) -> None:
    manager = make().start()
    with HandAgent(manager, "a", (0, 1)) as agent, HandAgent(manager, "b", (2, 3)) as other:
        agent.join()
        other.join()
        die(agent, 1)
        wait_for(lambda: incidents(manager), "the incident is open")
        wait_for(lambda: manager.status()["ranks"][1]["state"] == "dead", "rank 1 is dead")
        before, story = manager.status(), incidents(manager)
        manager.kill()
        manager.start()
        after = manager.status()
        assert after["term"] == before["term"] + 1 and after["epoch"] == before["epoch"]
        dead = [rank for rank in stable(after) if rank["state"] == "dead"]
        assert dead == [rank for rank in stable(before) if rank["state"] == "dead"]
        assert [rank["node"] for rank in after["ranks"]] == ["a", "a", "b", "b"]
        (known,) = incidents(manager)
        assert {name: known[name] for name in ("id", "kind", "ranks", "nodes", "reason", "strategy")} == {
            name: story[0][name] for name in ("id", "kind", "ranks", "nodes", "reason", "strategy")
        }
        assert known["opened_wall_ns"] == pytest.approx(story[0]["opened_wall_ns"], abs=60e9)

        # The agents only send the messages that they would have sent anyway, and are known again.
        def known_again() -> bool:
            while agent.receive(0.02) is not None or other.receive(0.02) is not None:
                pass
            return agent.term == other.term == after["term"]

        with agent.beating(), other.beating():
            wait_for(known_again, "the agents follow the new term")
            wait_for(lambda: states(manager) == ["up", "up", "alive", "dead", "alive", "alive"], "all is as it was")
    assert manager.end() == 0
    done = replayed(manager)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every decision is the same as the recorded one" in done.stdout and "died" in done.stdout


BROKEN_CORE = """
from taskd.core import manager
step = manager.Manager.step
def broken(self, now_ns, event):
    if getattr(getattr(event, "message", None), "reason", "") == "poison":
        self._job.epoch = 10**6
        raise KeyError("planted")
    return step(self, now_ns, event)
manager.Manager.step = broken
def rails(self, now_ns):
    raise ZeroDivisionError("planted, too")
manager.Manager.rails = rails
"""


@pytest.mark.parametrize("journal", ["on", "off"])
def test_a_message_that_breaks_the_core_is_set_aside(make: MakeManager, tmp_path: Path, journal: str) -> None:
    """The agent repeats it, so another manager would break, too. Changes by the half-processed message are undone."""
    planted = tmp_path / "planted"
    planted.mkdir()
    (planted / "sitecustomize.py").write_text(BROKEN_CORE)
    manager = make(PYTHONPATH=f"{planted}:{ROOT}", TASKD_MANAGER_JOURNAL=journal).start()
    poison = Evidence(EvidenceKind.COLLECTIVE_ERROR, -1, 1, 0, 0, "poison")
    with HandAgent(manager, "a", (0, 1)) as agent, HandAgent(manager, "b", (2, 3)) as other:
        agent.join()
        other.join()
        agent.say(poison)
        wait_for(lambda: manager.status()["term"] == 2, "another core")
        agent.say(poison)
        if journal == "off":
            agent.hello()
            other.hello()
        with agent.beating(), other.beating():
            wait_for(lambda: states(manager) == ["up"] * 2 + ["alive"] * 4, "it knows them as before")
        assert manager.status()["epoch"] < 1000
        die(agent, 1)
        wait_for(lambda: incidents(manager), "it still sees who dies")
        assert manager.cli("rail", "list").returncode != 0
        assert manager.note(), "who only looks does not end it"
    assert manager.said().count("THE MANAGER BROKE at Evidence") == 1
    assert "poison" in (manager.folder / "set-aside.txt").read_text()
    assert manager.end() == 0


def test_three_lives_give_the_same_decisions_again(make: MakeManager) -> None:
    """Silence, kills and restarts are mixed. The journal has the verdicts, but not what was learned from beats."""
    manager = make().start()
    for life in range(3):
        with HandAgent(manager, "a", (0, 1)) as agent, HandAgent(manager, "b", (2, 3)) as other:
            for one in (agent, other):
                one.interval_ms = 100
                one.join()
            for _ in range(12):
                agent.report()
                other.report()
                wait_for(lambda: agent.receive(0.05) is None, "nothing more is said")
        # Both connections break, and no agent speaks: a silence with a witness.
        wait_for(
            lambda: any(node["state"] != "up" for node in manager.status()["nodes"]), f"a node is silent in life {life}"
        )
        manager.kill()
        manager.start()
    events = manager.cli("events", "--json").stdout
    assert manager.status()["term"] == 4 and len(events.splitlines()) > 5
    done = replayed(manager)
    assert done.returncode == 0, done.stdout + done.stderr


def test_quiet_beats_are_not_written(make: MakeManager) -> None:
    manager = make().start()
    with HandAgent(manager, "a", (0, 1)) as agent:
        agent.join()
        agent.report()
        manager.status()
        size = rows(manager)
        for step in range(200):
            agent.states[0] = agent.states[1] = {"step": 10 + step, "beat_age_ms": step % 40}
            agent.report()
        facts = wait_for(lambda: (f := manager.status())["ranks"][0]["step"] == 209 and f, "the last beat is known")
    assert facts["ranks"][0]["step"] == 209
    assert rows(manager) - size < 10


def rows(manager: ManagerProcess) -> int:
    import sqlite3

    with sqlite3.connect(f"file:{manager.folder / 'journal.db'}?mode=ro", uri=True) as database:
        ((count,),) = database.execute("SELECT count(*) FROM steps")
    database.close()
    return int(count)


def test_a_run_that_is_over_does_not_haunt_the_next(make: MakeManager) -> None:
    """All of the job's processes on this host are gone. The same id is now another run, with a higher term."""
    manager = make().start()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with HandAgent(manager, "a", (0, 1)) as agent:
        agent.states = {rank: {"pid": gone.pid} for rank in (0, 1)}
        agent.hello(pid=gone.pid)
        agent.report()
        wait_for(lambda: manager.status()["ranks"][0]["pid"] == gone.pid, "the first run is known")
    manager.kill()
    manager.start()
    facts = manager.status()
    assert not facts["nodes"] and all(rank["state"] == "absent" for rank in facts["ranks"])
    assert facts["term"] == 2 and (manager.folder / "journal.db.old-1").exists()
    assert "none of its" in manager.said()


def test_other_sizes_are_another_job(make: MakeManager) -> None:
    manager = make().start()
    with HandAgent(manager, "a", (0, 1)) as agent:
        agent.join()
        manager.end()
    bigger = make(port=manager.port, TASKD_JOB_PROC_PER_NODE="4").start()
    facts = bigger.status()
    assert len(facts["ranks"]) == 8 and facts["term"] == 2
    assert "other sizes or settings" in bigger.said()


@pytest.mark.parametrize("damage", ["text", "torn", "rows"])
def test_a_damaged_journal_is_put_aside_and_the_job_goes_on(make: MakeManager, damage: str) -> None:
    manager = make().start()
    with HandAgent(manager, "a", (0, 1)) as agent:
        agent.join()
        manager.end()
        path = manager.folder / "journal.db"
        if damage == "rows":
            import sqlite3

            with sqlite3.connect(path) as database:
                database.execute("UPDATE steps SET events = x'c1'")
            database.close()
        else:
            content = path.read_bytes()
            path.write_bytes(b"nonsense" * 1000 if damage == "text" else content[: len(content) // 2 - 500])
        manager.start()
        assert (manager.folder / "journal.db.damaged-1").exists()
        assert str(manager.folder / "journal.db.damaged-1") in manager.said()
        followed = agent.term
        agent.confirmed.clear()
        agent.join()
        assert agent.term > followed, "agents must find the term of the manager that knows nothing the higher"
        facts = manager.status()
    assert facts["ranks"][0]["node"] == "a" and facts["manager"]["journal"] == str(path)


def test_a_full_disk_degrades_to_memory_and_says_so_everywhere(make: MakeManager) -> None:
    """RLIMIT_FSIZE makes the kernel refuse what a full disk would refuse."""
    manager = make(prefix=("prlimit", "--fsize=120000"), TASKD_STD_LOG_LEVEL="error")
    if shutil.which("prlimit") is None:
        pytest.skip("needs prlimit of util-linux to limit another process' files")
    manager.start()
    with HandAgent(manager, "a", (0, 1)) as agent:
        agent.join()

        def full() -> bool:
            for _ in range(20):
                agent.hello(pid=1 + agent.sequence)  # something new each time, so it goes into the journal
                agent.say(Evidence(EvidenceKind.COLLECTIVE_ERROR, 0, 1, 1, 0, "x" * 1000))
            return manager.status()["manager"]["journal"].startswith("memory only since ")

        wait_for(full, "the journal is full")
        with agent.beating():
            wait_for(lambda: manager.status()["ranks"][0]["state"] == "alive", "the job goes on")
        assert "memory only since" in manager.cli("status").stdout
    assert manager.said().count("THE JOURNAL") == 1
    assert manager.end() == 0


@pytest.mark.root
def test_a_disk_that_is_really_full(make: MakeManager, run_dir: Path) -> None:
    run_dir.mkdir(mode=0o700)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(run_dir)], capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is forbidden here")
    try:
        run_dir.chmod(0o700)
        manager = make().start()
        with HandAgent(manager, "a", (0, 1)) as agent:
            agent.join()
            ballast = os.open(run_dir / "ballast", os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                while True:
                    os.write(ballast, b"x" * 4096)
            except OSError as error:
                assert error.errno == errno.ENOSPC
            finally:
                os.close(ballast)
            die(agent, 1)
            facts = wait_for(lambda: (f := manager.status())["ranks"][1]["state"] == "dead" and f, "rank 1 is dead")
            assert "full" in facts["manager"]["journal"]
            manager.kill()
            manager.start(ready=False)  # the disk is as full as before: not even its note can be written
            place = ("--host", "127.0.0.1", "--port", str(manager.port))
            wait_for(lambda: manager.cli("status", *place).returncode == 0, "it is ready all the same")
            facts = json.loads(manager.cli("status", "--json", *place).stdout)
            assert facts["manager"]["journal"].startswith("memory only since ")
            followed = agent.term
            agent.states[1] = {}
            agent.confirmed.clear()
            agent.join()
            assert agent.term > followed
        assert manager.end() == 0
    finally:
        subprocess.run(["umount", "-l", str(run_dir)], check=True)


def test_without_a_journal_nothing_is_written(make: MakeManager) -> None:
    manager = make(TASKD_MANAGER_JOURNAL="off").start()
    with HandAgent(manager, "a", (0, 1)) as agent:
        agent.join()
        assert "as configured" in manager.status()["manager"]["journal"]
        followed = agent.term
        manager.kill()
        manager.start()
        agent.confirmed.clear()
        agent.join()
        assert agent.term > followed
    manager.end()
    assert "journal.db" not in os.listdir(manager.folder)


def test_when_all_have_left_the_manager_ends_and_the_next_begins_anew(make: MakeManager) -> None:
    manager = make().start()
    with HandAgent(manager, "a", (0, 1)) as agent, HandAgent(manager, "b", (2, 3)) as other:
        agent.join()
        other.join()
        for one in (agent, other):
            one.states = {rank: {"state": RankState.LEFT} for rank in one.states}
            one.report()
        for one in (agent, other):
            one.say(Goodbye("all workers have ended"))
        assert manager.process is not None and manager.process.wait(PATIENCE_S) == 0
    assert "the job is over" in manager.said()
    manager.start()
    facts = manager.status()
    assert all(rank["state"] == "absent" for rank in facts["ranks"]) and facts["term"] == 2


def test_a_thousand_reports_are_answered_while_operators_ask(make: MakeManager) -> None:
    manager = make().start()
    with HandAgent(manager, "a", (0, 1)) as agent:
        agent.join()
        row = agent.rows()
        for number in range(1000):
            agent.say(Report(False, agent.term, (dataclasses.replace(row[0], step=10 + number),)))
        wait_for(lambda: manager.status()["ranks"][0]["step"] == 1009, "the last one is known")
        agent.confirmed.clear()
        agent.hello()
        agent.report()
        answer = agent.receive()
    assert isinstance(answer, Answer) and answer.accepted


def test_a_manager_that_was_stopped_for_a_while_accuses_nobody(make: MakeManager) -> None:
    manager = make().start()
    with HandAgent(manager, "a", (0, 1)) as agent:
        agent.join()
        assert manager.process is not None
        with agent.beating():
            for _ in range(2):
                manager.process.send_signal(signal.SIGSTOP)
                time.sleep(2.0)  # lasts: the manager's own sleep
                manager.process.send_signal(signal.SIGCONT)
                wait_for(lambda: states(manager)[:2] == ["up", "alive"], "the node is heard")
        assert not incidents(manager)
