"""A newcomer plays back a recorded set-up all alone. A set-up that differs is named in an error, and never run.

Three real ranks record workers/guard_sandbox.py once, and single processes play it back. Records with a torn end are
tested without torch in test_guard_sanitizers.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.train.guarded import Ranks
from tests.train.workers import setup_record

SIZE = 3


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("recorded")
    with Ranks("guard_sandbox", SIZE, folder, "record") as ranks:
        return folder, [said_of[0] for said_of in ranks.results()]


def play_back(folder: Path, rank: int, *change: str) -> dict[str, Any]:
    with Ranks("guard_sandbox", SIZE, folder, "replay", *change, start=False) as ranks:
        ranks.start(rank)
        return ranks.results(ranks=[rank])[0][0]


@pytest.mark.parametrize(("rank", "how"), [(0, ""), (1, ""), (2, "bytes")])
def test_newcomer_sees_what_the_dead_saw(recorded: tuple[Path, list[dict[str, Any]]], rank: int, how: str) -> None:
    folder, seen = recorded
    replayed = play_back(folder, rank, how)
    assert replayed.pop("left") == 0
    # This tensor is too large for the record. The newcomer keeps its own, and gets the values with the state.
    assert replayed.pop("large") == float(rank)
    assert replayed == {name: value for name, value in seen[rank].items() if name not in ("large", "entries")}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("kind", ["calls broadcast in group 0@0-2 of (Double[8])", "called allreduce in group 0@0-2 of (Double[8])"]),
        ("shape", ["calls allreduce in group 0@0-2 of (Double[9])", "called allreduce in group 0@0-2 of (Double[8])"]),
        ("group", ["calls gather in group 0@0-2", "called allreduce in group 0@0-2"]),
        ("more", ["calls allreduce in group 0@0,2", "had ended there"]),
    ],
)
def test_difference_is_named(recorded: tuple[Path, list[dict[str, Any]]], change: str, words: list[str]) -> None:
    said = play_back(recorded[0], 2, change)
    assert said["error"] == "UsageError"
    for word in words:
        assert word in said["text"], said


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "record0").write_bytes(b"nothing of the kind")
    assert "not a record" in play_back(tmp_path, 0)["text"]


def test_record_as_python_reads_it(recorded: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, seen = recorded
    data = (folder / "record2").read_bytes()
    whole = setup_record.read(data)
    assert len(whole.entries) == seen[2]["entries"] and whole.state is setup_record.State.CLOSED and not whole.torn
    messages = [entry for entry in whole.entries if entry.kind == "recv"]
    assert [(entry.peer, entry.tag, entry.source) for entry in messages] and {m.source for m in messages} == {0}
    large = [entry for entry in whole.entries if entry.tensors and entry.tensors[0].shape == (300_000,)]
    assert large and large[0].tensors[0].data is None
    torn = setup_record.read(data[:-20])
    assert torn.torn and torn.entries == whole.entries[:-1]
