"""How the ranks of a torchrun job get the key from rank 0, through a store that a stranger reads, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from taskd import config
from taskd.wire import keys
from taskd.worker import keyshare
from taskd.worker.identity import Identity
from taskd.worker.keyshare import KeyShare

HEX = "ab" * 32
Rank = Callable[..., KeyShare]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dist.FileStore:
    """The store through which all ranks have met."""
    found = dist.FileStore(str(tmp_path / "store"), -1)
    torch = SimpleNamespace(distributed_c10d=SimpleNamespace(_get_default_store=lambda: found))
    monkeypatch.setattr(keyshare, "initialised_distributed", lambda: torch)
    return found


@pytest.fixture
def rank(tmp_path: Path, store: dist.FileStore) -> Rank:
    """Make a rank's search for the key, on its own host or on the named host."""

    def make(number: int, host: str = "", local_rank: int = 0, **variables: str) -> KeyShare:
        environ = {"TASKD_RUN_DIR": str(tmp_path / (host or f"host-{number}")), "TASKD_JOB_ID": "job", **variables}
        return KeyShare(config.load(environ=environ), Identity("job", "node", number, 4, local_rank, 0))

    return make


def made(tmp_path: Path, host: str) -> keys.Key:
    """Make the key on this host, as the manager does."""
    return keys.load_or_create(config.load(environ={"TASKD_RUN_DIR": str(tmp_path / host), "TASKD_JOB_ID": "job"}))


def test_the_key_reaches_another_host_and_no_reader_of_the_store(
    rank: Rank, tmp_path: Path, store: dist.FileStore
) -> None:
    key = made(tmp_path, "host-0")
    first, second, third = rank(0), rank(1), rank(2)
    assert second.look() == b""  # too early: rank 0 has announced nothing yet
    assert first.look() == key.secret and first.hands_on and not first.settled
    assert second.look() == third.look() == b""
    store.set("taskd/ask/3", "a stranger's garbage")
    first.look()
    assert second.look() == third.look() == key.secret and second.settled and third.settled
    late = rank(3)
    late.look()
    first.look()
    assert late.look() == key.secret and late.settled
    said = (tmp_path / "store").read_bytes()
    assert b"taskd/give/1" in said, "this is where it looks"
    assert key.secret not in said and key.secret.hex().encode() not in said
    first.close()
    late.close()


def test_on_the_first_ranks_host_nobody_asks(rank: Rank, tmp_path: Path, store: dist.FileStore) -> None:
    key = made(tmp_path, "host-0")
    first, second = rank(0), rank(1, "host-0", local_rank=1)
    first.look()
    assert second.look() == key.secret and second.settled and not store.check(["taskd/ask/1"])


def test_a_key_of_an_older_job_is_not_taken_for_this_ones(rank: Rank, tmp_path: Path) -> None:
    key, old = made(tmp_path, "host-0"), made(tmp_path, "host-1")
    first, second = rank(0), rank(1)
    first.look()
    second.look()
    first.look()
    assert second.look() == key.secret != old.secret


def test_of_a_node_one_rank_asks(rank: Rank, tmp_path: Path, store: dist.FileStore) -> None:
    made(tmp_path, "host-0")
    rank(0).look()
    other = rank(3, local_rank=1)
    other.look()
    assert not store.check(["taskd/ask/1"])
    other.proven = True  # the manager knows this rank by the key that the first rank of its node has brought
    assert other.settled
    other.proven, other._began = False, other._began - keyshare.ASK_AFTER_SECONDS
    other.look()
    assert not other.settled and store.check(["taskd/ask/1"])


def test_another_first_rank_than_before_is_refused(rank: Rank, tmp_path: Path, store: dist.FileStore) -> None:
    made(tmp_path, "host-0")
    made(tmp_path, "another")
    second = rank(1)
    rank(0).look()
    second.look()
    false = rank(0, "another")
    false.look()
    false.look()
    assert second.look() == b"" and "another public key than at first" in second.trouble
    for _ in range(5):
        second.look()
    assert not store.check(["taskd/ask/2"]), "it asks again after a while only"


@pytest.mark.parametrize(
    ("own", "says"), [({}, "handed on to nobody"), ({"TASKD_KEY": "cd" * 32}, "another key than the first node")]
)
def test_a_given_key_goes_nowhere_and_who_lacks_it_says_so(
    rank: Rank, tmp_path: Path, store: dist.FileStore, own: dict[str, str], says: str
) -> None:
    made(tmp_path, "host-1")  # left by an older job
    first, second, third = rank(0, TASKD_KEY=HEX), rank(1, **own), rank(2, TASKD_KEY=HEX)
    assert first.look().hex() == HEX and first.settled and not first.hands_on
    second.look()
    assert says in second.trouble and "TASKD_KEY_FILE" in second.trouble
    assert third.look().hex() == HEX and third.settled and not third.trouble
    assert store.get("taskd/key").decode() == f"given:{keys.Key(bytes.fromhex(HEX), '').fingerprint.hex()}"
    said = (tmp_path / "store").read_bytes()
    assert b"taskd/ask" not in said and HEX.encode() not in said and bytes.fromhex(HEX) not in said


def test_without_a_group_any_more_the_first_rank_lets_go_of_the_store(
    rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = made(tmp_path, "host-0")
    first = rank(0)
    first.look()
    assert first.hands_on
    monkeypatch.setattr(keyshare, "initialised_distributed", lambda: None)
    assert first.look() == key.secret and not first.hands_on and first._store is None
