"""Tests state that goes from one rank to another: read in place or sent. It arrives whole, or it is refused.

Two real processes over a gloo group run workers/replica.py, which reports what it did.
"""

from __future__ import annotations

import ctypes
import subprocess
from typing import Any

import pytest

from taskd.errors import PeerError
from taskd.state.nearby import Memory
from tests.train.guarded import Ranks


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Return the reports of the giver and of the taker, by the way in which the state went."""
    with Ranks("replica", 2, tmp_path_factory.mktemp("replica")) as ranks:
        giver, taker = ranks.results()
    return {given["how"]: [given, taken] for given, taken in zip(giver, taker, strict=True)}


@pytest.mark.parametrize(("how", "read"), [("near", True), ("far", False), ("stranger", False), ("odd", False)])
def test_the_taker_holds_what_the_giver_holds(said: dict[str, list[dict[str, Any]]], how: str, read: bool) -> None:
    """`far`: the memory may not be read. `stranger`: another process has the giver's pid. `odd`: not contiguous."""
    given, taken = said[how]
    assert taken["state"] == given["state"] != taken["before"]
    assert (taken["read"] > 4_000_000) is read, taken


@pytest.mark.parametrize("how", ["near spoilt", "far spoilt"])
def test_what_arrives_changed_is_refused(said: dict[str, list[dict[str, Any]]], how: str) -> None:
    sentence = "the state from rank 0 arrived changed: the checksum of model.1.weight differs"
    assert said[how][1]["error"] == sentence


def test_a_giver_that_is_gone_is_an_error() -> None:
    with subprocess.Popen(["sleep", "100"]) as giver:
        giver.kill()
    target = ctypes.create_string_buffer(8)
    with pytest.raises(PeerError, match=f"memory of process {giver.pid} could not be read: No such process"):
        Memory(giver.pid, []).read(4096, ctypes.addressof(target), 8)
