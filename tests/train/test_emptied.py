"""Files that a newcomer's set-up empties: what had been in them is put back, and the script goes on behind it."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from taskd.worker import emptied


@pytest.mark.parametrize(
    ("before", "header", "whole"),
    [
        ("loss\n1\n2\n", "loss\n", "loss\n1\n2\n3\n"),
        ("at 9:00\n1\n2\n", "at 9:30\n", "at 9:00\n1\n2\nat 9:30\n3\n"),
        ("1\n2\n", "", "1\n2\n3\n"),
    ],
)
def test_a_log_goes_on_at_its_end(tmp_path: Path, before: str, header: str, whole: str) -> None:
    path = tmp_path / "log"
    path.write_text(before)
    emptied.keep(str(path))
    with path.open("w") as file:
        file.write(header)
        assert emptied.put_back() == []
        file.write("3\n")
    assert path.read_text() == whole


def test_another_rank_has_gone_on_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("w") as other:
        print("1", file=other, flush=True)
        emptied.keep(str(path))
        with path.open("w") as file:
            print("2", file=other, flush=True)
            emptied.put_back()
            print("3", file=other, flush=True)
            assert file.tell() == len("1\n2\n")
    assert path.read_text() == "1\n2\n3\n"


@pytest.mark.parametrize(("now", "then"), [("1.0", "1.0"), ("", "0.25"), ("0.25", "0.25")])
def test_what_the_set_up_has_written_whole_stays(tmp_path: Path, now: str, then: str) -> None:
    path = tmp_path / "mean.json"
    path.write_text("0.25")
    emptied.keep(str(path))
    path.write_text(now)
    assert bool(emptied.put_back()) == (now == "1.0") and path.read_text() == then


def test_what_is_no_plain_text_is_left_alone_and_named(tmp_path: Path) -> None:
    packed, binary = tmp_path / "log.gz", tmp_path / "table"
    for path in (packed, binary):
        path.write_bytes(b"1\0" if path == binary else b"1")
        emptied.keep(str(path))
    with gzip.open(packed, "wt") as file, binary.open("wb") as table:
        file.write("2")
        table.write(b"2")
        (sentence,) = emptied.put_back()
    assert "log.gz" in sentence and "table" in sentence
    with gzip.open(packed, "rt") as file:
        assert file.read() == "2" and binary.read_bytes() == b"2"


def test_what_is_lost_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emptied, "MOST_BYTES", 3)
    for name, size in (("large", 4), ("small", 3)):
        (tmp_path / name).write_bytes(os.urandom(size))
        emptied.keep(str(tmp_path / name))
    emptied.lose(str(tmp_path / "removed"))
    (sentence,) = emptied.put_back()
    assert "large" in sentence and "removed" in sentence and "small" not in sentence
    assert emptied.put_back() == []
