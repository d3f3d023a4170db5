"""taskd status, events, incidents and replay with a real manager, as people and programs see them."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taskd.cli.incidents import story
from taskd.cli.status import picture
from taskd.client import Client, NoManager
from taskd.core.messages import Evidence, Proof, Proofs
from taskd.core.repair.incident import Incident, IncidentCause
from taskd.core.types import EvidenceKind, Outcome, RankState, Strategy
from tests.patience import PATIENCE_S
from tests.ready import readable
from tests.shell.manager_process import ROOT, HandAgent, ManagerProcess, wait_for

ESCAPE = "\x1b"


@pytest.fixture
def manager(run_dir: Path, free_port: Callable[[], int]) -> Iterator[ManagerProcess]:
    process = ManagerProcess(run_dir, free_port()).start()
    yield process
    assert process.end() == 0, process.said()


@pytest.fixture
def agent(manager: ManagerProcess) -> Iterator[HandAgent]:
    with HandAgent(manager, "a", (0, 1)) as one:
        one.join()
        with one.beating():
            yield one


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `taskd WORDS`; the command ends with the test."""
    made: list[subprocess.Popen[str]] = []

    def run(*words: str, **options: Any) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TASKD_JOB_ID": "job", **options.pop("variables", {})}
        command = [sys.executable, "-u", "-m", "taskd.cli.main", *words]
        made.append(subprocess.Popen(command, env=environment, text=True, **options))
        return made[-1]

    yield run
    for process in made:
        process.kill()
        process.communicate()


Start = Callable[..., "subprocess.Popen[str]"]


def fault(manager: ManagerProcess, agent: HandAgent) -> None:
    agent.states[1] = {"state": RankState.DEAD, "exit_code": -9, "reason": "killed"}
    agent.say(Evidence(EvidenceKind.PROCESS_EXIT, 1, 1, -1, -9, "killed"))
    agent.report()
    wait_for(lambda: json.loads(manager.cli("incidents", "--json").stdout)["incidents"], "an incident")


def test_status_shows_every_rank(manager: ManagerProcess, agent: HandAgent) -> None:
    done = manager.cli("status")
    assert done.returncode == 0 and not done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("job job | manager ") and f":{manager.port} (pid " in lines[0]
    assert "term 1 | epoch 1 | 2 of 4 ranks alive | 0 incidents" in lines[0]
    assert lines[2].split() == [
        "RANK",
        "NODE",
        "PID",
        "STATE",
        "EPOCH",
        "STEP",
        "PHASE",
        "BEAT",
        "STEP",
        "TIME",
        "NOTE",
    ]
    first = lines[3].split()
    assert first[:7] == ["0", "a", str(os.getpid()), "alive", "1", "5", "body"]
    assert first[8:] == ["ms", "20", "ms"] and first[7].isdigit()
    assert lines[5].split()[:4] == ["2", "-", "-", "absent"]
    assert ESCAPE not in done.stdout


def test_whoever_looks_at_the_port_has_had_nothing_dropped(manager: ManagerProcess, agent: HandAgent) -> None:
    """The job's own launcher looks at the port before it starts a manager."""
    socket.create_connection(("127.0.0.1", manager.port)).close()
    wait_for(lambda: "port looked at" in manager.status()["manager"]["refused"], "a look is counted")
    assert "dropped" not in manager.cli("status").stdout


def test_status_as_json_holds_what_programs_need(manager: ManagerProcess, agent: HandAgent) -> None:
    facts = manager.status()
    assert {"job", "term", "epoch", "counters", "nodes", "ranks", "manager"} <= facts.keys()
    assert {"node", "host", "pid", "state", "age_ms", "spawns"} <= facts["nodes"][0].keys()
    wanted = {
        "rank",
        "node",
        "pid",
        "incarnation",
        "state",
        "epoch",
        "stage",
        "step",
        "phase",
        "beat_age_ms",
        "step_ms",
    }
    assert wanted | {"exit_code"} <= facts["ranks"][0].keys()
    assert {"pid", "host", "port", "uptime_ms", "connections", "refused", "journal"} <= facts["manager"].keys()


def proofs(updates: int, *ranks: int, **held: bytes) -> Proofs:
    """Return what these ranks report about two units; with r1=..., rank 1 holds something else."""
    names = "lr of group 0\nweight"
    words = {rank: held.get(f"r{rank}", b"1" * 8 + b"2" * 8) for rank in ranks}
    return Proofs(
        tuple(
            Proof(rank, 1, 1, updates, 96, 7, 2, 0, False, 0, words[rank], "" if rank else names, "") for rank in ranks
        )
    )


def test_the_last_proof_and_what_it_found(manager: ManagerProcess, agent: HandAgent) -> None:
    assert "proof" not in manager.cli("status").stdout
    with HandAgent(manager, "b", (2, 3)) as other:
        other.join()
        with other.beating():
            for updates, held in ((1, {}), (32, {})):
                agent.say(proofs(updates, 0, 1))
                other.say(proofs(updates, 2, 3, **held))
            wait_for(lambda: manager.status()["proof"]["updates"] == 32, "four ranks are alike")
            found = re.search(r"^last proof: (.*) ago; (.*)$", manager.cli("status").stdout, re.MULTILINE)
            assert found is not None and found[1].startswith("update 32, 4 ranks alike, ")
            assert found[2] == "all of it every 96 updates"
            agent.say(proofs(64, 0, 1))
            other.say(proofs(64, 2, 3, r3=b"1" * 8 + b"3" * 8))
            wait_for(lambda: manager.status()["proof"]["differences"], "a difference is found")
            assert "ranks did not hold the same once: `taskd incidents` names" in manager.cli("status").stdout
            incident = json.loads(manager.cli("incidents", "--json").stdout)["incidents"][0]
            assert (incident["kind"], incident["ranks"], incident["outcome"]) == ("proof", [3], "observed")
            assert "after update 64 rank 3 holds other contents of weight than ranks 0-2" in incident["reason"]


def test_host_port_and_job_may_be_given_or_are_found(manager: ManagerProcess, free_port: Callable[[], int]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("TASKD_JOB_ID", None)

    def taskd(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "taskd.cli.main", *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    assert taskd("status").returncode == 0, "the only manager of this host is the one that is meant"
    assert taskd("status", "--job", "job").returncode == 0
    assert taskd("status", "--port", str(manager.port)).returncode == 0, "its key is found, too"
    assert taskd("status", "--host", "127.0.0.1", "--port", str(manager.port)).returncode == 0
    nobody = taskd("status", "--port", str(free_port()))
    assert nobody.returncode == 3 and "the key of job default is not in" in nobody.stderr
    named = taskd("status", "--job", "job", "--host", "127.0.0.1", "--port", str(manager.port), "--json")
    assert json.loads(named.stdout)["job"] == "job"
    other = taskd("status", "--job", "other", "--port", str(manager.port))
    assert other.returncode == 3 and "the key of job other is not in" in other.stderr
    key = (manager.folder / "key").read_text().strip()
    environment["TASKD_KEY"] = key
    wrong_job = taskd("status", "--job", "other", "--host", "127.0.0.1", "--port", str(manager.port))
    assert wrong_job.returncode == 2 and "this is the manager of job job, not of other" in wrong_job.stderr
    environment["TASKD_KEY"] = "ab" * 32
    wrong_key = taskd("status", "--job", "job", "--host", "127.0.0.1", "--port", str(manager.port))
    assert wrong_key.returncode == 3 and "does not accept the key of job job" in wrong_key.stderr


def test_a_wrong_key_may_be_refused_before_the_question_is_sent(
    manager: ManagerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKD_KEY", "ab" * 32)
    connect = Client._connect

    def connected(self: Client) -> None:
        connect(self)
        assert self._monitor.poll(1000 * PATIENCE_S)  # the manager has ended the connection

    monkeypatch.setattr(Client, "_connect", connected)
    with (
        Client("job", host="127.0.0.1", port=manager.port) as client,
        pytest.raises(NoManager, match="does not accept the key of job job"),
    ):
        client.status()


@pytest.mark.parametrize("of", ["this job", "another job", "no job"])
def test_a_port_alone_finds_the_job_and_its_key_in_any_jobs_environment(manager: ManagerProcess, of: str) -> None:
    """Pods have the job, the first node and a port in their environment; a shell in a pod has it, too."""
    environment = {**manager.environment, "MASTER_ADDR": "192.0.2.7", "TASKD_MANAGER_PORT": "9"}
    del environment["TASKD_JOB_ID"]
    environment |= {"this job": {"MINDX_TASK_ID": "job"}, "another job": {"MINDX_TASK_ID": "other"}, "no job": {}}[of]
    command = [sys.executable, "-m", "taskd.cli.main", "status", "--json", "--port", str(manager.port)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0 and json.loads(done.stdout)["job"] == "job", done.stderr


def test_no_manager_is_one_sentence_with_the_cure(manager: ManagerProcess, free_port: Callable[[], int]) -> None:
    port = free_port()
    for words in (["status"], ["status", "--watch"], ["events"], ["incidents"]):
        done = manager.cli(*words, "--host", "127.0.0.1", "--port", str(port))
        assert done.returncode == 3 and not done.stdout
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"taskd: no manager of job job at 127.0.0.1:{port} (Connection refused)")
        assert "start it, or say where it is with --host, --port and --job" in line


def test_a_stopped_manager_is_reported_after_a_while(manager: ManagerProcess) -> None:
    assert manager.process is not None
    manager.process.send_signal(signal.SIGSTOP)
    try:
        done = manager.cli("status")
    finally:
        manager.process.send_signal(signal.SIGCONT)
    assert done.returncode == 3 and "has not answered for 5 s" in done.stderr


def test_events_tell_the_story_in_order(manager: ManagerProcess, agent: HandAgent) -> None:
    begin_ns = time.time_ns()
    fault(manager, agent)
    text = manager.cli("events").stdout
    rows = [json.loads(line) for line in manager.cli("events", "--json").stdout.splitlines()]
    assert [row["number"] for row in rows] == list(range(1, len(rows) + 1))
    assert 0 < len(text.splitlines()) <= len(rows) and ESCAPE not in text
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  ", line) for line in text.splitlines())
    assert any("rank 1" in row["text"] and row["incident"] for row in rows)
    assert begin_ns <= rows[-1]["wall_ns"] <= time.time_ns()


def test_events_follow_and_outlive_the_manager(manager: ManagerProcess, agent: HandAgent, start: Start) -> None:
    follower = start("events", "--follow", "--json", stdout=subprocess.PIPE)
    assert follower.stdout is not None
    seen = [json.loads(follower.stdout.readline())]
    fault(manager, agent)
    while not seen[-1]["incident"]:
        seen.append(json.loads(follower.stdout.readline()))
    manager.kill()
    manager.start()
    while seen[-1]["kind"] != "restarted":
        seen.append(json.loads(follower.stdout.readline()))
    follower.send_signal(signal.SIGINT)
    assert follower.wait(PATIENCE_S) == 0
    numbers = [row["number"] for row in seen]
    assert numbers == sorted(set(numbers)), "nothing twice, nothing out of order"


def test_incidents_say_who_and_why(manager: ManagerProcess, agent: HandAgent) -> None:
    assert "nothing has failed" in manager.cli("incidents").stdout
    assert json.loads(manager.cli("incidents", "--json").stdout) == {"incidents": []}
    fault(manager, agent)
    table = manager.cli("incidents").stdout
    assert table.splitlines()[0].split()[:3] == ["ID", "OPENED", "KIND"] and "observe" in table
    story = manager.cli("incidents", "1").stdout
    for words in ("incident 1", "ranks     1", "nodes     a", "strategy  observe", "why       rank 1 died (SIGKILL"):
        assert words in story, story
    one = json.loads(manager.cli("incidents", "1", "--json").stdout)
    assert one["id"] == 1 and one["ranks"] == [1] and one["outcome"] == "open" and one["closed_wall_ns"] is None
    missing = manager.cli("incidents", "7")
    assert missing.returncode == 2 and "there is no incident 7; known are: 1" in missing.stderr
    nonsense = manager.cli("incidents", "x" * 2000)
    assert nonsense.returncode == 2 and len(nonsense.stderr) < 400


def test_watch_prints_tables_into_a_pipe_until_the_manager_ends(
    manager: ManagerProcess, agent: HandAgent, start: Start
) -> None:
    watcher = start("status", "--watch", "--interval", "0.1", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert watcher.stdout is not None
    tables = 0
    while tables < 3:
        tables += watcher.stdout.readline().startswith("job job | ")
    manager.end()
    out, err = watcher.communicate(timeout=PATIENCE_S)
    assert watcher.returncode == 3 and ESCAPE not in out
    assert err.count("\n") == 1 and "manager" in err


def test_watch_draws_in_place_on_a_terminal(manager: ManagerProcess, agent: HandAgent, start: Start) -> None:
    """Each picture overwrites the last. The screen is never cleared as a whole, and is restored at the end."""
    ours, its = pty.openpty()
    size = {"TERM": "xterm", "COLUMNS": "200", "LINES": "6"}
    watcher = start("status", "--watch", "--interval", "0.1", stdout=its, stderr=its, variables=size)
    os.close(its)
    text = read_until(ours, lambda text: text.count("\x1b[H") >= 3)
    manager.kill()
    text += read_until(ours, lambda text: "still looking" in text)
    manager.start()
    text += read_until(ours, lambda text: text.count("ranks alive") >= 2)
    watcher.send_signal(signal.SIGINT)
    text += read_until(ours, lambda text: "\x1b[?1049l" in text)
    assert watcher.wait(PATIENCE_S) == 0
    os.close(ours)
    assert text.startswith("\x1b[?1049h\x1b[?25l") and text.rstrip().endswith("\x1b[?25h\x1b[?1049l")
    assert "\x1b[2J" not in text and "more lines" in text
    assert "\x1b[32malive\x1b[0m" in text


def read_until(descriptor: int, enough: Callable[[str], bool]) -> str:
    text = ""
    deadline = time.monotonic() + PATIENCE_S
    while not enough(text):
        assert time.monotonic() < deadline, text
        if readable([descriptor], 0.1):  # expires: and looks again
            try:
                text += os.read(descriptor, 65536).decode()
            except OSError:  # the other end of a terminal has closed
                return text
    return text


def test_replay_prints_the_decisions_again(manager: ManagerProcess, agent: HandAgent) -> None:
    fault(manager, agent)
    path = str(manager.folder / "journal.db")
    live = manager.cli("replay", path)  # while the manager writes it
    assert live.returncode == 0 and "rank 1" in live.stdout, live.stdout + live.stderr
    rows = [json.loads(line) for line in manager.cli("replay", path, "--json").stdout.splitlines()]
    assert rows[-1] == {"steps": len(rows) - 1, "same": True}
    assert [row["step"] for row in rows[:-1]] == list(range(1, len(rows)))


def test_a_start_from_the_beginning_is_told_with_what_it_cost() -> None:
    incident = Incident(2, "process", 10)
    incident.start_over(40, "all again", 0)
    incident.move(IncidentCause.REPAIR)
    incident.close(IncidentCause.HEALED, incident.good_end, 5_000_000_010)
    told = story({**incident.facts(0), "opened_wall_ns": 1, "closed_wall_ns": 2}, colour=False)
    assert told.startswith("incident 2  process, started over, 40 steps lost\n") and "healed" not in told
    manager = {"host": "h", "port": 1, "pid": 2, "uptime_ms": 3, "journal": "j", "refused": {}}
    facts: dict[str, Any] = {"job": "job", "manager": manager, "term": 1, "epoch": 3, "ranks": [], "nodes": []}
    facts |= {"world_size": 0, "states": {}}
    facts["incidents"] = {"known": 1, "open": 0, "started_over": 1, "steps_lost": 40}
    assert "| all ranks started over 1 time, 40 steps lost\n" in picture(facts, colour=False)
    facts["incidents"]["started_over"] = 0
    assert "started over" not in picture(facts, colour=False)


def test_the_story_of_a_rail_tells_its_cost_and_no_attempts() -> None:
    incident = Incident(2, "rail", 10, strategy=Strategy.BORROW, reason="rail red of a to b is lost")
    incident.move(IncidentCause.REPAIR)
    incident.close(IncidentCause.HEALED, Outcome.HEALED, 5_000_000_010)
    incident.cost = {"borrowed_bytes": 952_865_276, "hedged_frames": 8}
    told = story({**incident.facts(0), "opened_wall_ns": 1, "closed_wall_ns": 2}, colour=False).splitlines()
    assert "  strategy  borrow" in told and "  cost      952865276 borrowed bytes, 8 hedged frames" in told
    incident.cost, incident.attempts = {}, 2
    told = story({**incident.facts(0), "opened_wall_ns": 1, "closed_wall_ns": 2}, colour=False).splitlines()
    assert "  strategy  borrow, 2 attempts" in told and not any("cost" in line for line in told)


def test_replay_reads_like_what_happened(manager: ManagerProcess, agent: HandAgent) -> None:
    fault(manager, agent)
    lines = manager.cli("replay", str(manager.folder / "journal.db")).stdout.splitlines()
    texts = [line.split(None, 3)[3] for line in lines[:-1]]
    assert "joined: ranks 0-1 joined on node a" in texts and "to a: ranks 0-1 confirmed" in texts
    died = next(at for at, text in enumerate(texts) if text.startswith("process: rank 1 died"))
    assert texts[died + 1].startswith("decision: rank 1 died")


def test_a_journal_of_another_version_is_named(manager: ManagerProcess, agent: HandAgent) -> None:
    import sqlite3

    fault(manager, agent)
    manager.end()
    path = manager.folder / "journal.db"
    with sqlite3.connect(path) as database:
        ((settings,),) = database.execute("SELECT value FROM meta WHERE name = 'settings'")
        kept = {name: value for name, value in json.loads(settings).items() if name != "max_restarts"}
        database.execute("UPDATE meta SET value = ? WHERE name = 'settings'", (json.dumps(kept),))
    database.close()
    done = manager.cli("replay", str(path))
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "another version of taskd wrote it: its settings lack max_restarts" in done.stderr
    manager.start()


def test_replay_names_the_first_difference(manager: ManagerProcess, agent: HandAgent) -> None:
    import sqlite3

    fault(manager, agent)
    manager.end()
    path = manager.folder / "journal.db"
    with sqlite3.connect(path) as database:
        ((number, effects),) = database.execute(
            "SELECT number, effects FROM steps WHERE instr(effects, CAST('rank 1' AS BLOB)) ORDER BY number LIMIT 1"
        )
        changed = bytes(effects).replace(b"rank 1", b"rank 7")
        database.execute("UPDATE steps SET effects = ? WHERE number = ?", (changed, number))
    database.close()
    done = manager.cli("replay", str(path))
    assert done.returncode == 1 and f"step {number} at " in done.stdout
    assert "recorded: " in done.stdout and "rank 7" in done.stdout.split("recorded: ")[1].splitlines()[0]
    last: Any = json.loads(manager.cli("replay", str(path), "--json").stdout.splitlines()[-1])
    assert last["step"] == number and last["same"] is False and last["recorded"] != last["replayed"]
    manager.start()


@pytest.mark.parametrize("content", [None, b"", b"no journal"])
def test_replay_of_what_is_no_journal_is_one_sentence(
    manager: ManagerProcess, tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "file.db"
    if content is not None:
        path.write_bytes(content)
    done = manager.cli("replay", str(path))
    assert done.returncode == 2 and not done.stdout
    assert len(done.stderr.splitlines()) == 1 and "cannot be replayed" in done.stderr


def test_words_of_other_machines_cannot_write_into_the_terminal(manager: ManagerProcess, agent: HandAgent) -> None:
    evil = "evil\x1b[2J\nwords"
    agent.say(Evidence(EvidenceKind.EXCEPTION, 1, 1, 1, 0, evil))
    with HandAgent(manager, evil, (3,)) as other:
        other.hello()
        wait_for(lambda: manager.status()["manager"]["refused"].get("unexpected"), "no node is called that")
    for command in ("status", "events", "incidents"):
        assert ESCAPE not in manager.cli(command).stdout
    wait_for(lambda: "evil\N{REPLACEMENT CHARACTER}[2J" in manager.cli("events").stdout, "the rest of it is shown")
    assert ESCAPE not in manager.said() and "\nwords" not in manager.said()
