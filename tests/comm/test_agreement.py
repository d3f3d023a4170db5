"""Tests a meeting: every member learns the addresses of all, or who did not come and why. Also tests its store traffic.

The members are threads. They use a fake store that stands for any of torch's stores, and real stores. The cost of a
meeting is counted on the manager's store.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from taskd import _c10d
from taskd.bench.meeting import Meeting
from taskd.comm import agreement
from taskd.errors import BackendError
from taskd.manager.store_desk import StoreDesk
from tests.shell.store_plane import StorePlane

LONG = timedelta(seconds=60)


class FakeStore:
    """A store for threads: it keeps values and lets threads wait for them."""

    def __init__(self, extended: bool = True) -> None:
        self.values: dict[str, bytes] = {}
        self._extended = extended
        self._changed = threading.Condition()

    def has_extended_api(self) -> bool:
        return self._extended

    def _put(self, key: str, change: Callable[[bytes], bytes]) -> bytes:
        with self._changed:
            self.values[key] = change(self.values.get(key, b""))
            self._changed.notify_all()
            return self.values[key]

    def set(self, key: str, value: bytes) -> None:
        self._put(key, lambda _: value)

    def append(self, key: str, value: bytes) -> None:
        assert self._extended
        self._put(key, lambda before: before + value)

    def add(self, key: str, amount: int) -> int:
        return int(self._put(key, lambda before: b"%d" % (int(before or b"0") + amount)))

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self.values for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self.check(keys), timeout.total_seconds()):
                raise RuntimeError(f"wait timeout for {keys}")

    def get(self, key: str) -> bytes:
        self.wait([key], LONG)
        return self.values[key]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        assert self._extended
        return [self.get(key) for key in keys]


def meet(members: Sequence[int], come: Callable[[int], Any]) -> list[Any]:
    """Run `come` for each rank in a thread. Returns for each rank its result, or the text of its error."""

    def one(rank: int) -> Any:
        try:
            return come(rank)
        except BackendError as error:
            return str(error)

    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(one, range(len(members))))


@pytest.fixture(params=[True, False], ids=["appends", "plain"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeStore:
    monkeypatch.setattr(agreement, "PART", 3)
    monkeypatch.setattr(agreement, "PIECE", 40)
    monkeypatch.setattr(agreement, "FAREWELL_S", 60.0)
    return FakeStore(request.param)


def test_every_member_learns_where_all_are(store: FakeStore) -> None:
    members = [10, 11, 12, 13, 14, 15, 16, 20]
    where = [b"at \0%d" % member * 9 for member in members]
    found = meet(members, lambda rank: agreement.exchange(store, rank, members, "rail", where[rank], LONG))
    assert found == [where] * len(members)
    assert len([key for key in store.values if key.startswith(f"{agreement.ALL_KEY}/")]) >= 1  # it is stored in pieces


def test_who_is_alone_meets_itself(store: FakeStore) -> None:
    assert agreement.exchange(store, 0, [4], "rail", b"here", LONG) == [b"here"]


def test_who_goes_over_something_else_is_named(store: FakeStore) -> None:
    members = [3, 4, 5, 6]
    overs = ("rail", "gloo", "rail", "rail")
    found = meet(members, lambda rank: agreement.exchange(store, rank, members, overs[rank], b"", LONG))
    assert all("rank 4 over gloo and rank 3, 5, 6 over rail" in words for words in found)


def test_who_cannot_come_says_why(store: FakeStore) -> None:
    members = [3, 4, 5, 6]

    def come(rank: int) -> object:
        with agreement.or_decline(store, rank, 4):
            if rank == 2:
                raise BackendError("there is no rail" + 5_000 * "!")
        return agreement.exchange(store, rank, members, "rail", b"", LONG)

    found = meet(members, come)
    assert all(words.startswith("rank 5 cannot come: there is no rail!") for words in found[:2] + found[3:])
    assert found[2].startswith("there is no rail")


def test_who_did_not_come_is_named(store: FakeStore) -> None:
    members = [*range(20, 28)]
    short = timedelta(seconds=1)  # the test is about this timeout; whoever comes needs a moment on a busy machine

    def come(rank: int) -> object:
        return agreement.exchange(store, rank, members, "rail", b"", short) if rank not in (1, 6) else None

    found = meet(members, come)
    assert all("rank 21, 26 did not come within 1 s" in words for at, words in enumerate(found) if at not in (1, 6))


# ---- real stores ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["file", "hash", "tcp", "own"])
def each(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Any]]:
    """Return a function that opens the same store once more, so that each member has its own, as processes do."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "file":
        yield lambda: dist.FileStore(str(folder / "store"), -1)
    elif request.param == "hash":
        store = dist.HashStore()
        yield lambda: store
    elif request.param == "tcp":
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        yield lambda: dist.TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
    else:
        with StorePlane(folder / "run", 32000 + os.getpid() % 900, "meeting") as plane:
            yield lambda: _c10d.AgentStore(plane.name.encode(), LONG)


def test_one_meeting_follows_another(each: Callable[[], Any]) -> None:
    members = [7, 8, 9, 11]

    def come(rank: int) -> list[list[bytes]]:
        store = each()
        return [
            agreement.exchange(
                dist.PrefixStore(f"follows{epoch}", store), rank, members, "rail", b"%d in %d" % (rank, epoch), LONG
            )
            for epoch in range(5)
        ]

    found = meet(members, come)
    assert found == [[[b"%d in %d" % (rank, epoch) for rank in range(4)] for epoch in range(5)]] * 4


def test_who_gave_up_may_come_again(each: Callable[[], Any]) -> None:
    """A rank that gave up has counted itself already. It must not be counted as missing."""
    members = [7, 8, 9, 11]
    soon = timedelta(seconds=0.05)  # the rank gives up after this timeout

    def come(rank: int, timeout: timedelta = LONG) -> list[bytes]:
        store = dist.PrefixStore("again", each())
        return agreement.exchange(store, rank, members, "rail", b"%d" % rank, timeout)

    for _ in range(3):
        with pytest.raises(BackendError, match=r"rank 8, 9, 11 did not come within 0.05 s"):
            come(0, soon)
    with pytest.raises(BackendError, match=r"rank 9, 11 did not come"):
        come(1, soon)
    assert meet(members, come) == [[b"0", b"1", b"2", b"3"]] * 4


# ---- the cost -------------------------------------------------------------------------------------------------------


def test_a_member_costs_the_store_the_same_in_a_group_of_any_size(tmp_path: Path) -> None:
    """Counts the operations and the keys that are read."""
    for size in (8, 40, 300):
        desk = StoreDesk(str(tmp_path))
        desk.begin(fresh=True, epoch=1)
        meeting = Meeting(desk, "epoch1/g", size)
        meeting.hold()
        assert meeting.asked <= 4 * size + 3
        assert meeting.keys <= 4 * size + 2 + 2 * -(-size // agreement.PART)
        assert len(desk.store.contents.values) <= 2 + -(-size // agreement.PART)
        desk.close()


# ---- groups that are rebuilt together -------------------------------------------------------------------------------


class _Engine:
    """A fake rail engine: it has an endpoint and notes what it was asked to join."""

    endpoint = b"here"

    def __init__(self) -> None:
        self.joined: list[tuple[int, str, list[bytes]]] = []

    def join(self, epoch: int, identity: str, endpoints: list[bytes], *_: Any, **__: Any) -> object:
        self.joined.append((epoch, identity, endpoints))
        return object()


def test_whoever_has_met_in_this_epoch_does_not_meet_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from taskd.comm import rail, rail_engine

    engine, met = _Engine(), list[tuple[int, ...]]()
    monkeypatch.setattr(rail_engine, "own", rail_engine.Own())
    rail_engine.own.engine = engine

    def meeting(_store: Any, _rank: int, members: Sequence[int], *_: Any) -> tuple[_Engine, list[bytes]]:
        met.append(tuple(members))
        return engine, [b"%d" % member for member in members]

    monkeypatch.setattr(rail, "_meet", meeting)

    def make(epoch: int, *members: int, together: bool = True) -> None:
        rail.make_inner(None, 0, LONG, epoch=epoch, identity="g", members=members, together=together)

    make(2, 0, 1, 2, 3)
    make(2, 2, 0)
    make(2, 0, 1, 2, 3)
    assert met == [(0, 1, 2, 3)]
    assert engine.joined[1:] == [(2, "g", [b"2", b"0"]), (2, "g", [b"0", b"1", b"2", b"3"])]
    make(2, 0, 4)  # rank 4 was not at the meeting
    make(3, 0, 1)  # another epoch
    make(3, 0, 1, together=False)  # the script makes this group, and other ranks may come late
    make(3, 0, 1, 2, together=False)
    make(3, 0, 1, 2)  # a group that the script made is not a meeting of all ranks
    assert met[1:] == [(0, 4), (0, 1), (0, 1), (0, 1, 2), (0, 1, 2)]
