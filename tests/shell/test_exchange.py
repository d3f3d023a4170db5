"""The job's key in a store that everybody may read and write: which askers get it, and what garbage breaks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from taskd.core.limits import ASKS_MAX
from taskd.wire import exchange, sealed
from taskd.wire.exchange import Asker, Giver, Notice
from taskd.wire.keys import Key

KEY = Key(b"k" * 32, "a test")
OTHER = Key(b"o" * 32, "another test")


class Shelf:
    """A store inside one process."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def add(self, key: str, value: int) -> int:
        self.values[key] = str(int(self.values.get(key, b"0")) + value).encode()
        return int(self.values[key])

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self.values for key in keys)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        if self.values.get(key, b"") == expected.encode():
            self.values[key] = desired.encode()
        return self.values.get(key, expected.encode())


class Plain(Shelf):
    """A store without compare_set, like torch's store for etcd."""

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        raise RuntimeError("pure virtual")


NOTICE = exchange.notice_of(KEY, given=False)


def asked(store: Shelf) -> Asker:
    asker = Asker(store, NOTICE)
    assert asker.ask()
    return asker


@pytest.mark.parametrize("store", [Shelf(), Plain()])
def test_each_asker_gets_the_key_and_a_reader_learns_nothing(store: Shelf) -> None:
    store.set("notice", NOTICE.text())
    early = [asked(store) for _ in range(3)]
    giver = Giver(store, KEY)
    giver.serve_all(2)
    assert giver.number == 3
    giver.serve_all(99)
    late = asked(store)
    giver.serve_all(99)
    assert [asker.answer() for asker in (*early, late)] == [(KEY.secret, "")] * 4
    assert giver.given == 4
    for name, value in store.values.items():
        assert KEY.secret not in value and KEY.secret.hex().encode() not in value, name
        assert KEY.giver_private.hex().encode() not in value, name


def test_a_place_that_was_answered_already_is_left_for_another() -> None:
    """A stranger wrote an empty value there. A store cannot tell that from an empty place."""
    store = Shelf()
    store.set("ask/1", "")
    giver = Giver(store, KEY)
    asker = asked(store)
    store.set("ask/1", "")
    giver.serve_all(9)
    assert asker.number == 1 and asker.answer() == (b"", "")
    assert asker.ask() and asker.number == 2 and asked(store).number == 3
    giver.serve_all(9)
    assert asker.answer() == (KEY.secret, "")


def test_two_givers_say_the_same() -> None:
    store = Shelf()
    asker = asked(store)
    Giver(store, KEY).serve()
    first = dict(store.values)
    Giver(store, Key(KEY.secret, "elsewhere")).serve()
    assert store.values == first and asker.answer() == (KEY.secret, "")


@pytest.mark.parametrize(
    "garbage",
    ["nobody", "ab" * 31, "zz" * 32, "\udcff" * 64, " " * 64, bytes(32).hex(), (1).to_bytes(32, "little").hex()],
)
def test_a_bad_ask_gets_nothing_and_the_next_one_is_served(garbage: str) -> None:
    store = Shelf()
    store.values["ask/1"] = garbage.encode("utf-8", "surrogateescape")
    asker = asked(store)
    assert asker.number == 2
    giver = Giver(store, KEY)
    giver.serve_all(99)
    assert store.get("give/1") == exchange.REFUSED.encode() and giver.given == 1
    assert asker.answer() == (KEY.secret, "")


def test_an_asker_that_dies_half_way_keeps_the_others_only_until_they_ask_again() -> None:
    store = Shelf()
    store.add("asks", 1)  # an asker drew its number and died
    first, second = asked(store), asked(store)
    giver = Giver(store, KEY)
    giver.serve_all(99)
    assert not store.check([first.waits_for])
    assert first.ask() and first.number == 1
    giver.serve_all(99)
    assert first.answer() == second.answer() == (KEY.secret, "")


@pytest.mark.parametrize("drawn", [ASKS_MAX + 5, 10**15, -7])
def test_a_counter_that_somebody_plays_with_costs_nobody_the_key(drawn: int) -> None:
    store = Shelf()
    store.add("asks", drawn)
    asker = asked(store)
    Giver(store, KEY).serve_all(99)
    assert asker.answer() == (KEY.secret, "")


def test_so_many_are_served_and_no_more() -> None:
    store = Shelf()
    store.values |= {f"ask/{number}": b"garbage" for number in range(1, ASKS_MAX + 9)}
    giver = Giver(store, KEY)
    giver.serve_all(2 * ASKS_MAX)
    assert giver.exhausted and giver.number == ASKS_MAX + 1
    assert not Asker(store, NOTICE).ask()


def test_another_giver_than_at_first_is_refused() -> None:
    store = Shelf()
    asker = asked(store)
    Giver(store, OTHER).serve()
    found, why = asker.answer()
    assert not found and "another public key than at first" in why and "TASKD_KEY_FILE" in why


@pytest.mark.parametrize(
    "answer",
    [
        "",
        ":",
        "given",
        NOTICE.mark.hex(),
        f"{NOTICE.mark.hex()}:",
        f"{NOTICE.mark.hex()}:{'ab' * sealed.BOX_BYTES}",
        "\udcff",
    ],
)
def test_an_answer_that_is_garbage_is_no_key(answer: str) -> None:
    store = Shelf()
    asker = asked(store)
    store.values[asker.waits_for] = answer.encode("utf-8", "surrogateescape")
    found, why = asker.answer()
    assert not found and "TASKD_KEY_FILE" in why


def test_who_asks_a_false_giver_gets_no_false_key_of_the_true_one() -> None:
    """A false giver answers in the true giver's name, without the true giver's private key."""
    store = Shelf()
    asker = asked(store)
    asker_public = bytes.fromhex(store.get("ask/1").decode())
    box = sealed.seal(OTHER.secret, OTHER.giver_private, NOTICE.mark, asker_public, b"taskd job key 1")
    assert box is not None
    store.set(asker.waits_for, f"{NOTICE.mark.hex()}:{box.hex()}")
    assert asker.answer()[0] == b""


def test_a_key_that_was_given_is_known_by_a_fingerprint() -> None:
    notice = exchange.notice_of(KEY, given=True)
    assert notice.fits(KEY) and not notice.fits(OTHER) and NOTICE.fits(KEY) and not NOTICE.fits(OTHER)
    assert exchange.notice_from(notice.text()) == notice and exchange.notice_from(NOTICE.text()) == NOTICE
    assert len(notice.mark) == 8 and KEY.secret.hex() not in notice.text()
    assert exchange.trouble(notice, KEY) == exchange.trouble(NOTICE, None) == exchange.trouble(NOTICE, KEY) == ""
    assert "handed on to nobody" in exchange.trouble(notice, None)
    assert "another key than the first node" in exchange.trouble(notice, OTHER)
    assert "the first node of the job was not" in exchange.trouble(NOTICE, OTHER)
    for said in (exchange.trouble(notice, None), exchange.trouble(notice, OTHER), exchange.trouble(NOTICE, OTHER)):
        assert "TASKD_KEY_FILE" in said and OTHER.secret.hex() not in said


@pytest.mark.parametrize(
    "text", ["", "given", "given:", "ask:abcd", "ask:" + "zz" * 32, KEY.secret.hex(), "other:" + "ab" * 32]
)
def test_what_is_no_notice(text: str) -> None:
    assert exchange.notice_from(text) is None


def test_a_notice_shows_no_more_than_it_says() -> None:
    assert isinstance(NOTICE, Notice) and KEY.secret.hex() not in repr(NOTICE)
