"""The journal: what is written comes back. A disk that is full, broken or locked costs a warning and no more."""

from __future__ import annotations

import logging
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest

from taskd.core.effects import EndJob, Note, Tell
from taskd.core.events import ConnectionLost, ProofVerdict, Reached, Restarted, Said, Sender, Tick, Verdict
from taskd.core.messages import Answer, Confirmed, DeviceReport, Goodbye, Order, Refused, Seat, Stillness, Stop
from taskd.core.types import ProofFinding, RankState, Stage, StopKind
from taskd.manager import journal, record
from taskd.manager.journal import Broken, Journal

ROOT = Path(__file__).resolve().parents[2]

EVENTS = (
    Said(Sender("a", 2**62, 7), Goodbye("done")),
    ConnectionLost("b"),
    Said(Sender("a", 2**62, 8), DeviceReport(())),
    Said(Sender("a", 2**62, 9), Stillness((), ())),
    Verdict("b", RankState.DEAD, 1_500_000_000, "silent"),
    Restarted(),
    Reached(7),
    Tick(),
)
ORDER = Order(3, 1, Stage.PARKED, 1, -1, (Seat(0, 2, "a"),), (), "rank 0 died")
EFFECTS = [
    Tell("a", ORDER),
    Tell("b", ORDER),
    Tell("a", Answer(3, False, "no", False, 0, (), ()), 99),
    Note("dead", "rank 0 died", 0, "a", 1, 1),
    EndJob(75, "ann", StopKind.ASKED),
    Tell("a", Stop(3, 75, "ann", StopKind.ASKED)),
]


@pytest.fixture(autouse=True)
def heard(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Add pytest's handler to taskd's logger, which passes nothing on to the root logger, where pytest listens."""
    logger = logging.getLogger("taskd")
    logger.addHandler(caplog.handler)
    yield
    logger.removeHandler(caplog.handler)


def written(path: Path, count: int = 3) -> Journal:
    made = Journal(str(path))
    assert made.open()
    for number in range(count):
        made.append(number * 10, record.events_row(EVENTS, "job"), record.effects_row(EFFECTS))
    made.commit()
    return made


def test_events_and_effects_return(tmp_path: Path) -> None:
    made = written(tmp_path / "journal.db")
    made.set_meta(settings="{}", term="1")
    made.close()
    assert (tmp_path / "journal.db").stat().st_mode & 0o777 == 0o600
    meta, rows, _ = journal.read(str(tmp_path / "journal.db"))
    found = list(rows)
    assert meta["term"] == "1" and [row.number for row in found] == [1, 2, 3] and found[2].at_ns == 20
    assert tuple(record.events_of(found[0].events)) == EVENTS
    effects = record.effects_of(found[0].effects)
    assert [type(effect) for effect in effects] == [type(effect) for effect in EFFECTS]
    assert effects[3:5] == EFFECTS[3:5]
    assert record.effects_row(effects) == found[0].effects
    told = [effect for effect in effects if isinstance(effect, Tell)]
    assert [(tell.node, tell.life, tell.message.term) for tell in told] == [
        ("a", 0, 0),
        ("b", 0, 0),
        ("a", 99, 0),
        ("a", 0, 0),
    ]


def test_an_end_that_an_older_version_wrote_returns() -> None:
    assert record.effects_of(msgpack.packb([["end", 1, "over"]])) == [EndJob(1, "over", StopKind.OVER)]
    asked = "an operator has stopped the job: ann"
    assert record.effects_of(msgpack.packb([["end", 75, asked]])) == [EndJob(75, asked, StopKind.ASKED)]


def test_a_proof_that_an_older_version_wrote_returns() -> None:
    row = ["proof", 0, 1, 77, 4, [2], [], False, False, "", "not compared between ranks: moment"]
    verdict = ProofVerdict(ProofFinding.BASE, 1, 77, 4, (2,), (), False, False, False, "", row[-1])
    assert record.events_of(msgpack.packb([row])) == [verdict]
    for taken in (False, True):
        event = replace(verdict, finding=ProofFinding.DIFFERS, ranks=(0, 1), taken=taken)
        assert tuple(record.events_of(record.events_row((event,), "job"))) == (event,)


def test_the_same_message_to_many_nodes_is_written_once() -> None:
    seats = tuple(Seat(rank, 1, "node-with-a-name") for rank in range(200))
    order = Order(1, 1, Stage.PARKED, 1, -1, seats, (), "")
    one = record.effects_row([Tell("0", order)])
    many = record.effects_row([Tell(str(node), order) for node in range(100)])
    assert len(many) < len(one) + 500


def test_it_goes_on_where_it_ended(tmp_path: Path) -> None:
    written(tmp_path / "journal.db").close()
    again = written(tmp_path / "journal.db", 2)
    assert [row.number for row in again.rows()] == [1, 2, 3, 4, 5]
    again.close()


def test_what_was_committed_survives_a_kill(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from taskd.manager.journal import Journal\n"
        "made = Journal(sys.argv[1]); made.open()\n"
        "made.append(1, b'one', b''); made.commit(); made.append(2, b'two', b'')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = tmp_path / "journal.db"
    done = subprocess.run([sys.executable, "-c", code, str(path)], env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == -9
    made = Journal(str(path))
    assert made.open() and [row.events for row in made.rows()] == [b"one"]
    made.close()


@pytest.mark.parametrize("damage", ["text", "torn", "zeros", "other database", "other format"])
def test_a_damaged_file_is_moved_aside_and_a_new_one_begins(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "journal.db"
    written(path, 200).close()
    size = path.stat().st_size
    if damage == "text":
        path.write_bytes(b"no database at all " * 100)
    elif damage == "torn":
        os.truncate(path, size // 2 - 100)
    elif damage == "zeros":
        path.write_bytes(path.read_bytes()[:100] + bytes(size - 100))
    else:
        path.unlink()
        with sqlite3.connect(path) as database:
            if damage == "other format":
                database.executescript(journal._SCHEMA + "INSERT INTO meta VALUES ('format', '99');")
            else:
                database.execute("CREATE TABLE something (x)")
        database.close()
    before = path.read_bytes()
    made = Journal(str(path))
    assert made.open() and not made.trouble
    assert not list(made.rows())
    made.append(1, b"x", b"")
    made.close()
    aside = tmp_path / "journal.db.damaged-1"
    assert aside.read_bytes()[100:] == before[100:]
    assert str(aside) in caplog.text and "cannot be read" in caplog.text


def test_a_locked_file_degrades_to_memory_and_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = written(tmp_path / "journal.db")
    other = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for number in range(5):
        made.append(number, b"x", b"")
        made.commit()
    assert "locked" in made.trouble and made.trouble.startswith("memory only since ")
    assert caplog.text.count("CANNOT BE WRITTEN") == 1
    other.execute("ROLLBACK")
    other.close()
    assert len(list(journal.read(str(tmp_path / "journal.db"))[1])) == 3


def test_a_full_disk_degrades_to_memory_with_one_loud_line(tmp_path: Path) -> None:
    """RLIMIT_FSIZE makes the kernel refuse what a full disk would refuse."""
    code = (
        "import sys; from taskd.manager.journal import Journal\n"
        "made = Journal(sys.argv[1]); assert made.open()\n"
        "for number in range(200): made.append(number, bytes(4000), b''); made.commit()\n"
        "print(made.trouble); made.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "journal.db")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("memory only since ")
    assert done.stderr.count("THE JOURNAL") == 1 and "the job goes on" in " ".join(done.stderr.split())


def test_a_journal_that_cannot_be_made_degrades_to_memory(tmp_path: Path) -> None:
    (tmp_path / "journal.db").symlink_to(tmp_path / "elsewhere")
    made = Journal(str(tmp_path / "journal.db"))
    assert not made.open() and made.trouble
    made.append(1, b"x", b"")
    made.commit()
    made.set_meta(term="1")
    assert made.meta() == {} and not list(made.rows())
    made.close()
    assert not (tmp_path / "elsewhere").exists()


def test_it_is_bounded(tmp_path: Path) -> None:
    made = Journal(str(tmp_path / "journal.db"), rows_max=10)
    assert made.open()
    for number in range(20):
        made.append(number, b"x", b"")
        made.commit()
    assert "10 steps" in made.trouble
    assert len(list(journal.read(str(tmp_path / "journal.db"))[1])) == 10


def test_a_snapshot_stands_in_place_of_the_rows_before(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    made = written(path, 5)
    assert made.snapshot() is None and made.fresh_rows == 5
    made.append(50, b"x", b"")  # not written yet, but already known
    made.put_together(60, b"all that is known")
    assert not list(made.rows()) and made.fresh_rows == 0
    made.append(70, b"y", b"")
    made.commit()
    made.close()
    for _ in range(2):
        made = Journal(str(path))
        assert made.open() and made.fresh_rows == 1
        kept = made.snapshot()
        assert kept is not None and (kept.number, kept.at_ns, kept.state) == (6, 60, b"all that is known")
        assert [(row.number, row.events) for row in made.rows()] == [(7, b"y")]
        made.close()
    _, rows, found = journal.read(str(path))
    assert found == kept and [row.number for row in rows] == [7]
    assert made.open()
    made.put_together(80, b"more")
    made.close()
    assert made.open() and made.fresh_rows == 0 and made.snapshot() == journal.read(str(path))[2]
    made.append(90, b"z", b"")
    made.commit()
    assert [row.number for row in made.rows()] == [8]
    made.close()


def test_rows_are_bounded_from_the_snapshot_on(tmp_path: Path) -> None:
    made = Journal(str(tmp_path / "journal.db"), rows_max=10)
    assert made.open()
    for number in range(40):
        made.append(number, b"x", b"")
        if made.fresh_rows == 9:
            made.put_together(number, b"")
    made.commit()
    assert not made.trouble and len(list(made.rows())) == 4
    made.close()


def test_a_snapshot_that_cannot_be_written_leaves_the_rows(tmp_path: Path) -> None:
    made = written(tmp_path / "journal.db")
    other = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    made.put_together(40, b"x")
    assert "locked" in made.trouble
    other.execute("ROLLBACK")
    other.close()
    _, rows, kept = journal.read(str(tmp_path / "journal.db"))
    assert len(list(rows)) == 3 and kept is None


def test_a_journal_of_the_format_before_is_taken_up(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    written(path).close()
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("DROP TABLE snapshot")
    database.execute("UPDATE meta SET value='2' WHERE name='format'")
    database.close()
    meta, rows, kept = journal.read(str(path))
    assert meta["format"] == "2" and len(list(rows)) == 3 and kept is None
    made = Journal(str(path))
    assert made.open() and made.meta()["format"] == str(journal.FORMAT) and made.snapshot() is None
    made.put_together(40, b"x")
    assert not made.trouble
    made.close()


def test_a_damaged_snapshot_is_named(tmp_path: Path) -> None:
    made = written(tmp_path / "journal.db")
    made.put_together(40, b"x")
    made.close()
    database = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    database.execute("UPDATE snapshot SET state = 'a text'")
    database.close()
    with pytest.raises(Broken, match="snapshot 3"):
        journal.read(str(tmp_path / "journal.db"))
    again = Journal(str(tmp_path / "journal.db"))
    assert again.open() and not list(again.rows())  # the damaged journal was moved aside
    again.close()


def test_old_journals_are_put_aside_and_the_last_few_are_kept(tmp_path: Path) -> None:
    made = Journal(str(tmp_path / "journal.db"))
    assert made.open()
    for number in range(6):
        made.append(number, b"x", b"")
        made.commit()
        made.start_over("a test", "old")
        assert not list(made.rows())
    made.close()
    names = sorted(name for name in os.listdir(tmp_path) if ".old-" in name)
    assert names == ["journal.db.old-4", "journal.db.old-5", "journal.db.old-6"]


@pytest.mark.parametrize("content", [None, b"", b"no database", b"SQLite format 3\0" + bytes(5000)])
def test_reading_what_is_no_journal_says_so(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Broken):
        list(journal.read(str(path))[1])


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x91\xc0", b"\x91\x92\xa4said\xc4\x01x", b"\x91\x91\xa4what", b"\x07"]
)
def test_rows_that_no_manager_wrote_are_named(data: bytes) -> None:
    with pytest.raises(record.Unreadable):
        record.events_of(data)
    if data:
        with pytest.raises(record.Unreadable):
            record.effects_of(data)


def test_a_step_is_described_for_people() -> None:
    """A message to several nodes is one line. Only the decision gives the reason."""
    assert record.describe(list(EFFECTS)) == [
        "dead: rank 0 died",
        "end of the job with exit code 75: ann",
        "to a and b: epoch 1: park, rank 0 as incarnation 2 on a",
        "to a: not let in: no",
        "to a: stop with exit code 75 (ann)",
    ]
    known = Answer(1, True, "", False, 1, (Confirmed(0, 1), Confirmed(1, 1)), (Refused(2, 1, 0, "it is held"),))
    again = Order(1, 2, Stage.RUNNING, 1, -1, (Seat(0, 2, "a"), Seat(1, 3, "b")), (), "")
    on = Order(1, 2, Stage.RUNNING, 1, 7, (Seat(0, 2, "a"),), (), "")
    assert record.describe([Tell("a", known), Tell("b", again), Tell("b", on)]) == [
        "to a: ranks 0-1 confirmed; rank 2 refused: it is held",
        "to b: epoch 2: start again, rank 0 as incarnation 2 on a and rank 1 as incarnation 3 on b",
        "to b: epoch 2: go on from 7 updates",
    ]
