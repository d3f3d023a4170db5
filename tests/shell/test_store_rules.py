"""The rules of the job's store and its file, without any process."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from taskd.core import limits
from taskd.core.messages import StoreAnswer, StoreAsk
from taskd.core.types import StoreOperation as Op
from taskd.core.types import StoreStatus as Status
from taskd.manager.store import Due, Store
from taskd.manager.store_file import StoreFile


class Asker:
    """One life of a relay that asks a store directly."""

    def __init__(self, store: Store, life: int = 1) -> None:
        self.store, self.life, self.number, self.now_ns = store, life, 0, 0

    def make(self, operation: Op, *items: bytes, amount: int = 0, settled: int = 0) -> StoreAsk:
        self.number += 1
        return StoreAsk(self.number, settled, operation, amount, items)

    def say(self, ask: StoreAsk) -> list[Due]:
        return self.store.ask(self.now_ns, self.life, ask, b"place %d" % self.life)

    def ask(self, operation: Op, *items: bytes, amount: int = 0, settled: int = 0) -> StoreAnswer:
        (due,) = self.say(self.make(operation, *items, amount=amount, settled=settled))
        return due.answer

    def why(self, operation: Op, *items: bytes, amount: int = 0) -> str:
        answer = self.ask(operation, *items, amount=amount)
        assert answer.status is Status.FAILED
        return answer.items[0].decode()


# ---- the rules


def test_an_operation_that_is_repeated_is_applied_once_until_it_is_settled() -> None:
    asker = Asker(Store())
    add = asker.make(Op.ADD, b"n", amount=5)
    first, again = asker.say(add), asker.say(add)
    assert first == again and first[0].answer.amount == 5
    assert asker.ask(Op.ADD, b"n", amount=1, settled=2).amount == 6
    assert asker.say(add) == []  # a late copy of an answered operation is neither applied nor answered
    other = Asker(asker.store, life=2)
    assert other.ask(Op.ADD, b"n", amount=1).amount == 7  # the same number in another life is another operation
    assert asker.store.contents.values == {b"n": b"7"}


def test_a_wait_is_answered_once_when_its_last_key_comes_and_a_repeated_one_is_the_same() -> None:
    store = Store()
    waiter, setter = Asker(store, 1), Asker(store, 2)
    get = waiter.make(Op.GET, b"a", b"b")
    assert waiter.say(get) == [] and waiter.say(get) == [] and len(store.waits) == 1
    assert len(setter.say(setter.make(Op.SET, b"a", b"1"))) == 1
    setter.ask(Op.DELETE, b"a")
    assert len(setter.say(setter.make(Op.SET, b"b", b"2"))) == 1  # a is gone again, so the wait goes on
    due = setter.say(setter.make(Op.SET, b"a", b"3"))
    assert [(one.place, one.answer.items) for one in due] == [(b"place 2", ()), (b"place 1", (b"3", b"2"))]
    assert len(store.waits) == 0 and store.waits.next_deadline() is None and not store.waits._by_key


def test_waits_that_are_forgotten_or_not_repeated_go() -> None:
    store = Store()
    asker = Asker(store)
    asker.say(asker.make(Op.WAIT, b"a"))
    number = asker.number
    asker.say(asker.make(Op.FORGET, amount=number))
    assert len(store.waits) == 0
    kept, lost = asker.make(Op.WAIT, b"a"), asker.make(Op.WAIT, b"a")
    asker.say(kept)
    asker.say(lost)
    asker.now_ns = limits.STORE_LEASE_NS // 2
    asker.say(kept)
    store.waits.expire(limits.STORE_LEASE_NS)
    assert len(store.waits) == 1
    assert store.waits.next_deadline() == limits.STORE_LEASE_NS + asker.now_ns
    store.waits.expire(limits.STORE_LEASE_NS + asker.now_ns)
    assert len(store.waits) == 0 and not store.waits._by_key


@pytest.mark.parametrize("prefix", [b"", b"default_pg/", b"generation0/default_pg/0/"])
def test_a_new_epoch_deletes_what_belongs_to_older_ones_and_fails_their_waits(prefix: bytes) -> None:
    def key(epoch: int, name: bytes) -> bytes:
        return prefix + b"epoch%d/0@0-3/%s" % (epoch, name)

    store = Store()
    asker = Asker(store)
    users = b"my/epoch3/loss"  # a user's key: after a prefix only a group's own meeting place counts
    for name in (key(0, b"x"), key(3, b"x"), key(4, b"x"), users, b"epochs", b"plain"):
        asker.ask(Op.SET, name, b"1")
    for name in (key(3, b"y"), key(4, b"y"), b"plain2"):
        assert asker.say(asker.make(Op.WAIT, b"plain", name)) == []
    (due,) = store.begin_epoch(4)
    assert due.answer.number == asker.number - 2 and due.answer.status is Status.FAILED
    assert b"epoch 3 is over" in due.answer.items[0]
    assert set(store.contents.values) == {key(0, b"x"), key(4, b"x"), users, b"epochs", b"plain"}
    assert len(store.waits) == 2
    for operation, items in (
        (Op.SET, (key(3, b"x"), b"1")),
        (Op.GET, (key(3, b"x"),)),
        (Op.ADD, (key(2, b"x"),)),
        (Op.MULTI_SET, (b"plain", b"2", key(3, b"x"), b"1")),
    ):
        assert "is over" in asker.why(operation, *items)
    assert store.contents.values[b"plain"] == b"1"
    assert store.begin_epoch(4) == [] and store.begin_epoch(2) == [] and store.epoch == 4


def test_what_is_too_much_is_refused_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    asker = Asker(store)
    full, half = b"x" * limits.MAX_STORE_VALUE, b"y" * (limits.MAX_STORE_VALUE // 2 + 1)
    asker.ask(Op.SET, b"k" * limits.MAX_STORE_KEY, full)
    assert "1025 bytes, 1024 at most" in asker.why(Op.SET, b"k" * 1025, b"")
    asker.ask(Op.SET, b"half", half)
    assert "would have 1048578 bytes" in asker.why(Op.APPEND, b"half", half)
    assert store.contents.values[b"half"] == half
    for number in range(9):
        asker.ask(Op.SET, b"full%d" % number, full)
    assert "ask for fewer at once" in asker.why(Op.GET, *(b"full%d" % number for number in range(9)))
    assert "64 bits" in asker.why(Op.ADD, b"n", amount=asker.ask(Op.ADD, b"n", amount=2**63 - 1).amount)
    assert "holds no number" in asker.why(Op.ADD, b"half", amount=1)
    assert "takes 2" in asker.why(Op.SET, b"a") and "a value for each key" in asker.why(Op.MULTI_SET, b"a")
    monkeypatch.setattr(limits, "MAX_STORE_BYTES", store.contents.size_bytes + 1000)
    assert "it is full" in asker.why(Op.MULTI_SET, b"a", b"1", b"b", b"x" * 900)
    assert b"a" not in store.contents.values  # all or nothing
    asker.ask(Op.DELETE, b"full0")
    assert asker.ask(Op.SET, b"b", b"x" * 900).status is Status.DONE
    costs = [len(k) + len(v) + limits.STORE_KEY_OVERHEAD for k, v in store.contents.values.items()]
    assert store.contents.size_bytes == sum(costs)
    monkeypatch.setattr(limits, "MAX_STORE_KEYS", len(store.contents.values))
    assert "it is full" in asker.why(Op.SET, b"another", b"") and asker.ask(Op.SET, b"b", b"").status is Status.DONE


# ---- the file


def reopened(path: Path, fresh: bool = False) -> tuple[Store, StoreFile]:
    store, file = Store(), StoreFile(str(path))
    file.open(store, fresh)
    return store, file


def test_the_file_gives_back_values_and_answers_that_may_be_asked_for_again(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store, file = reopened(path)
    asker = Asker(store)
    asker.ask(Op.SET, b"gone", b"1")
    asker.ask(Op.SET, b"\0bytes\xff", bytes(range(256)))
    add = asker.make(Op.ADD, b"n", amount=3, settled=2)
    asker.say(add)
    file.write(store.take_changes())
    asker.ask(Op.DELETE, b"gone", settled=3)
    file.write(store.take_changes())
    file.close()
    assert path.stat().st_mode & 0o777 == 0o600
    again, file = reopened(path)
    assert again.contents.values == {b"\0bytes\xff": bytes(range(256)), b"n": b"3"}
    assert again.contents.size_bytes == store.contents.size_bytes
    late = Asker(again)
    assert late.say(add)[0].answer.amount == 3 and again.contents.values[b"n"] == b"3"
    assert {number for life in again.answers.lives.values() for number in life.applied} == {3, 4}
    file.close()
    fresh, file = reopened(path, fresh=True)
    assert not fresh.contents.values and not fresh.answers.lives
    file.close()


@pytest.mark.parametrize("content", [b"no database at all" * 100, None], ids=["garbage", "another database"])
def test_a_damaged_file_is_moved_aside(tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "store.db"
    if content is not None:
        path.write_bytes(content)
    else:
        database = sqlite3.connect(path)
        database.execute("CREATE TABLE kept (key TEXT, value TEXT)")
        database.close()
    store, file = reopened(path)
    Asker(store).ask(Op.SET, b"a", b"1")
    file.write(store.take_changes())
    file.close()
    assert not file.trouble and (tmp_path / "store.db.damaged-1").exists()
    assert reopened(path)[0].contents.values == {b"a": b"1"}


def test_a_file_that_cannot_be_written_costs_one_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store, file = reopened(tmp_path / "no" / "store.db")
    assert file.trouble.startswith("memory only because")
    for _ in range(3):
        Asker(store).ask(Op.SET, b"a", b"1")
        file.write(store.take_changes())
    file.close()
    said = capfd.readouterr().err
    assert said.count("cannot be written") == 1
