"""Tests groups that are guarded late or aborted, the beat page, and every way in which a process with guards may end.

Real ranks run workers/guard_adopt.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.train.guarded import Ranks

SIZE = 2


def run(folder: Path, how: str) -> list[list[dict[str, Any]]]:
    with Ranks("guard_adopt", SIZE, folder, how) as ranks:
        return ranks.results()


def test_existing_groups_are_adopted_under_a_live_ddp(tmp_path: Path) -> None:
    for said, end in run(tmp_path, "adopt"):
        assert said["identities"] == ["0@0-1", "1@0-1"] and said["name"] == "gloo"
        assert said["rebuilt"] == ["0@0-1", "1@0-1", "2@0-1"] and said["same"]
        assert end == {"left": []}


def test_aborted_group_fails_at_once_and_alone(tmp_path: Path) -> None:
    first, second = (said_of[0] for said_of in run(tmp_path, "abort"))
    assert first["groups"] == second["groups"] == ["0@0-1"]
    assert first["texts"][0].startswith("DistBackendError: allreduce")
    assert "in group 1@0-1 failed: the group was aborted" in first["texts"][0]
    assert second["texts"][0] == second["texts"][1] == first["texts"][1]
    assert first["texts"][1] == "UsageError: barrier was called on group 1@0-1, which was destroyed."


def test_progress_of_each_group_stands_in_the_beat_page(tmp_path: Path) -> None:
    first, second = (said_of[0] for said_of in run(tmp_path, "page"))
    assert second["seen"] == {"0@0-1": [3, 3, 4000, 0], "1@0-1": [1, 1, 0, 0]}
    # Rank 0 has entered an operation that rank 1 has not entered. By this difference the culprit is named.
    assert first["seen"] == {"0@0-1": [4, 3, 40, 0], "1@0-1": [1, 1, 0, 0]} and first["last"] == "0@0-1"
    assert first["after"] == second["after"] == ["0@0-1"]


@pytest.mark.parametrize("how", ["end", "leave", "leave busy"])
def test_process_ends_by_itself(tmp_path: Path, how: str) -> None:
    """The exit code is 0, also if the process destroys no group, or ends in the middle of an operation."""
    assert run(tmp_path, how) == [[{"same": True}]] * SIZE
