"""Files that a step or an epoch writes. A file is whole or not there, and it is the same when it is written twice."""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest
import torch

import taskd
from taskd.worker.writes import WriteGuard


@pytest.mark.parametrize("before", ["", "1,0.5\n", "1,0.5\n2,0.2", "1,0.5\n2,0.25", "1,0.5\n2,0.25\n"])
def test_a_line_stands_once_and_whole(tmp_path: Path, before: str) -> None:
    """An earlier attempt may have left nothing, a part of the line or all of it."""
    path = tmp_path / "metrics.csv"
    path.write_text(before)
    for _ in range(2):
        taskd.add_line(path, "2,0.25")
    assert path.read_text() == before[:6] + "2,0.25\n"


def test_a_line_that_ends_like_another_is_added(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    for line in ("12,0.25", "2,0.25"):
        taskd.add_line(path, line)
    assert path.read_text() == "12,0.25\n2,0.25\n"


def test_the_rest_of_somebody_elses_line_stays(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("something")
    taskd.add_line(path, "2,0.25")
    assert path.read_text() == "something\n2,0.25\n"


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    taskd.save({"a": torch.ones(2)}, path)
    with pytest.raises(Exception, match=r"pickle|lambda"):
        taskd.save(lambda: None, path)
    assert torch.equal(torch.load(path)["a"], torch.ones(2))
    assert [one.name for one in tmp_path.iterdir()] == ["state.pt"]


def test_what_is_gone_is_no_open_file() -> None:
    """A script may keep a weak proxy of an object that is gone. Any use of the proxy is an error."""
    stopped: list[str] = []
    alive = torch.nn.Module()
    proxy = weakref.proxy(alive)
    del alive
    with pytest.raises(ReferenceError):
        isinstance(proxy, Path)
    with WriteGuard(stopped.append):
        pass
    assert not stopped
