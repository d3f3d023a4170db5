"""Tests wrong use of guarded groups: the error says what is wrong and what to do, and the job is as before.

Two real ranks run workers/guard_bad_input.py, which asserts that the groups still work. Their error messages are
checked here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.train.guarded import Ranks


def run(folder: Path, how: str, inner: str) -> list[dict[str, Any]]:
    with Ranks("guard_bad_input", 2, folder, how, env={"TASKD_INNER": inner}) as ranks:
        return [said_of[0] for said_of in ranks.results()]


@pytest.mark.parametrize(("inner", "no_rail"), [("rail", "there is no rail a"), ("gloo", "no rail to choose")])
def test_groups(tmp_path: Path, inner: str, no_rail: str) -> None:
    one, other = run(tmp_path, "groups", inner)
    for found in (one, other):
        assert "no groups of backend quux; it knows gloo, nccl, hccl" in found["unknown backend"]
        assert all(word in found["unknown inner"] for word in ("quux", "rail", "gloo"))
        assert "quux" in found["unknown backend of torch"]
        assert "cannot be rebuilt for epoch" in found["twice"] and "or later" in found["twice"]
        assert found["back"].count("cannot go back") == 3 and found["back"].count("cannot be rebuilt") == 1
        assert "is a guard itself" in found["two guards"] and found["adopted twice"] == "[]"
        assert no_rail in found["rail"]
    assert "nowhere0" in other["constructor"] and "rank 1 cannot come: " in one["constructor"]
    assert "nowhere0" in one["constructor"] and "rank 1 did not come within 3 s" in one["never"]


def test_rails_that_each_rank_names_otherwise(tmp_path: Path) -> None:
    one, other = run(tmp_path, "rails", "rail")
    for found, has in ((one, "a, b"), (other, "x, y")):
        for name, words in found.items():
            assert words == f"refused: UsageError: there is no rail {name}; this process has {has}."
    assert list(one) == ["green", "x"] and list(other) == ["green", "a"]
