"""Tests the codec with messages of every class, made from the classes' own bounds, and with bytes of every kind."""

from __future__ import annotations

import dataclasses
from enum import IntEnum
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.core import limits, messages
from taskd.core.events import Said, Sender
from taskd.core.messages import MESSAGES, Evidence, Question, RankReport, Report, Stop
from taskd.core.types import Cover, EvidenceKind, Phase, RankState, Stage, StopKind
from taskd.core.words import cut
from taskd.manager import record
from taskd.wire import codec, compile, older
from taskd.wire.codec import MAX_LIFE, VERSION, Envelope, WireError, decode, encode

QUICK = settings(max_examples=60)
ENVELOPE = Envelope("job", "node-a", 7, 9)


def values_of(field: compile.Field) -> st.SearchStrategy[Any]:
    """Return values of a field, up to the bounds in its annotation."""
    base: Any = field.base
    if base is bool:
        return st.booleans()
    if base is int:
        return st.one_of(st.integers(field.low, field.high), st.sampled_from((field.low, field.high)))
    if base is str:
        return st.text(st.characters(exclude_categories=("Cs",)), max_size=min(field.most, 50))
    if base is bytes:
        return st.binary(max_size=min(field.most, 50))
    if base is tuple:
        assert field.item is not None
        return st.lists(values_of(field.item), max_size=min(field.most, 5)).map(tuple)
    if issubclass(base, IntEnum):
        return st.sampled_from(list(base))
    return messages_of(base)


def messages_of(cls: Any) -> st.SearchStrategy[Any]:
    return st.builds(cls, **{field.name: values_of(field) for field in compile.fields_of(cls)})


ENVELOPES = st.builds(
    Envelope,
    st.text(st.characters(exclude_categories=("Cs",)), max_size=limits.MAX_NAME),
    st.text(st.characters(exclude_categories=("Cs",)), max_size=limits.MAX_NAME),
    st.integers(0, MAX_LIFE),
    st.integers(0, MAX_LIFE),
)
ANY_MESSAGE = st.one_of([messages_of(cls) for cls in MESSAGES])
PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(), st.binary()),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=20,
)


def row_of(message: Any) -> list[Any]:
    return list(msgpack.unpackb(encode(message, ENVELOPE)))


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_every_class_returns_as_it_was_sent(cls: type) -> None:
    @QUICK
    @given(messages_of(cls), ENVELOPES)
    def check(message: Any, envelope: Envelope) -> None:
        assert decode(encode(message, envelope)) == (envelope, message)

    check()


@settings(max_examples=500)
@given(st.binary(max_size=300))
def test_random_bytes_are_an_error_value(data: bytes) -> None:
    found = decode(data)
    assert isinstance(found, WireError)
    assert found.reason and "\n" not in found.reason and len(found.reason) < 400


@settings(max_examples=400)
@given(PLAIN)
def test_any_msgpack_value_is_an_error_value(value: Any) -> None:
    found = decode(msgpack.packb(value))
    assert isinstance(found, WireError) and found.reason


@settings(max_examples=400)
@given(ANY_MESSAGE, st.data())
def test_one_changed_byte_never_raises_and_never_leaves_the_bounds(message: Any, data: st.DataObject) -> None:
    good = bytearray(encode(message, ENVELOPE))
    good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    found = decode(bytes(good))
    if not isinstance(found, WireError):
        envelope, changed = found
        assert encode(changed, envelope)  # no assertion fails: what the decoder accepts can be encoded


@QUICK
@given(ANY_MESSAGE, st.data())
def test_truncated_and_prolonged_messages_are_refused(message: Any, data: st.DataObject) -> None:
    good = encode(message, ENVELOPE)
    assert isinstance(decode(good[: data.draw(st.integers(0, len(good) - 1))]), WireError)
    assert isinstance(decode(good + b"\0"), WireError)


@QUICK
@given(ANY_MESSAGE, st.data(), PLAIN)
def test_a_field_of_another_kind_is_refused_by_name(message: Any, data: st.DataObject, value: Any) -> None:
    row = row_of(message)
    index = data.draw(st.integers(codec.HEAD, len(row) - 1))
    row[index] = value
    found = decode(msgpack.packb(row))
    if isinstance(found, WireError):
        assert found.kind in ("bounds", "garbage")
    else:
        assert row_of(found[1])[index] == value and type(row_of(found[1])[index]) is type(value)


def test_bounds_are_refused_on_both_sides() -> None:
    row = row_of(Question("status", ""))
    row[6] = "x" * (limits.MAX_NAME + 1)
    found = decode(msgpack.packb(row))
    assert isinstance(found, WireError) and found.kind == "bounds"
    assert "Question.topic" in found.reason and f"at most {limits.MAX_NAME} characters" in found.reason
    with pytest.raises(AssertionError):
        encode(Question("x" * (limits.MAX_NAME + 1), ""), ENVELOPE)
    with pytest.raises(AssertionError):
        encode(Question("status", ""), Envelope("job", "node", -1, 0))
    assert encode(Question("status", cut("x" * 5000)), ENVELOPE)
    assert cut("x" * 5000).endswith("...") and len(cut("x" * 5000)) == limits.MAX_TEXT and cut("short") == "short"


def full_report() -> Report:
    names: dict[str, Any] = {field.name: 0 for field in dataclasses.fields(RankReport)}
    kinds = {"state": RankState.ALIVE, "acknowledged": True, "ok": True, "stage": Stage.RUNNING, "phase": Phase.BODY}
    kinds["cover"], kinds["saves"] = Cover.HEALED, True
    names["rail_words"] = names["rail_trouble"] = names["reason"] = ""
    return Report(
        True,
        1,
        tuple(
            RankReport(**{**names, **kinds, "rank": rank, "incarnation": 1, "pid": 1000 + rank})
            for rank in range(limits.MAX_RANKS_PER_NODE)
        ),
    )


@pytest.mark.parametrize("value", [True, 1.0, float("nan"), None, "1", [1], 2**63, -(2**40), 7, b"1"])
def test_a_rank_that_is_no_rank_is_refused(value: Any) -> None:
    row = row_of(full_report())
    row[8][5][0] = value
    found = decode(msgpack.packb(row))
    if value == 7 and value is not True:
        assert not isinstance(found, WireError)
    else:
        assert isinstance(found, WireError) and "Report.ranks[5].rank" in found.reason


@pytest.mark.parametrize("value", [True, 1.0, 99, None, [], "ALIVE"])
def test_an_enum_takes_its_own_numbers_only(value: Any) -> None:
    row = row_of(full_report())
    at = [field.name for field in dataclasses.fields(RankReport)].index("state")
    row[8][0][at] = value
    found = decode(msgpack.packb(row))
    assert isinstance(found, WireError) and "Report.ranks[0].state" in found.reason


def test_sizes_versions_and_numbers() -> None:
    big = decode(b"\xc4" * (limits.MAX_MESSAGE_BYTES + 1))
    assert isinstance(big, WireError) and big.kind == "oversized"
    row = row_of(Question("status", ""))
    for version in (0, VERSION + 6, 2**64 - 1, -1):
        found = decode(msgpack.packb([version, *row[1:]]))
        assert isinstance(found, WireError) and found.kind == "version"
        assert found.reason == f"the other side speaks version {version}, this side speaks {VERSION}"
    for number in (len(MESSAGES), -1, 2**64 - 1):
        unknown = decode(msgpack.packb([VERSION, number, *row[2:]]))
        assert isinstance(unknown, WireError) and unknown.kind == "unknown"
    for bad in ([True, *row[1:]], [VERSION, True, *row[2:]], [1.0, *row[1:]]):
        assert isinstance(decode(msgpack.packb(bad)), WireError)


REPORT_OF_4 = [
    *(4, 6, "job", "node", 7, 9),
    *(True, 3, [[2, 1, 1002, 1, 0, True, 4, 0, 10, 11, 3, 5, 100, "", True, 8, "unsupported"]], 4),
    *([["red", "b", 0, 12, 2, 2, 1, 100, 200, 50_000, 1, 3, 4, 5, 110]], 8),
]
"""A report as version 4 wrote it."""


def test_a_journal_of_an_older_version_is_read() -> None:
    found = decode(msgpack.packb(REPORT_OF_4), older.OLDEST)
    assert not isinstance(found, WireError), found
    envelope, report = found
    assert envelope == Envelope("job", "node", 7, 9) and isinstance(report, Report)
    (rank,), (rail,) = report.ranks, report.rails
    assert (rank.rank, rank.rail_order, rank.rail_trouble, rank.rail_words) == (2, 8, "unsupported", "")
    assert (rail.rail, rail.pairs, rail.pairs_moved, rail.last_error, rail.pairs_starved) == ("red", 2, 1, 110, 0)
    (event,) = record.events_of(msgpack.packb([["said", msgpack.packb(REPORT_OF_4)]]))
    assert event == Said(Sender("node", 7, 9), report)


EVIDENCE_OF_5 = [5, 3, "job", "node", 7, 9, 2, -1, 1, 0, 0, "connection reset by peer"]
"""Evidence as version 5 wrote it, which had no late operations."""


def test_evidence_of_an_older_version_is_read() -> None:
    for version in (4, 5):
        found = decode(msgpack.packb([version, *EVIDENCE_OF_5[1:]]), older.OLDEST)
        assert not isinstance(found, WireError), found
        assert found[1] == Evidence(EvidenceKind.COLLECTIVE_ERROR, -1, 1, 0, 0, "connection reset by peer")


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("an operator has stopped the job: ann", StopKind.ASKED),
        ("an operator has drained node a: its ranks are on other nodes, and the job goes on", StopKind.DRAINED),
        ("all ranks have ended in good order", StopKind.OVER),
    ],
)
def test_a_stop_of_an_older_version_is_read(reason: str, kind: StopKind) -> None:
    """Version 14 said only in words that an operator wanted it."""
    found = decode(msgpack.packb([14, 10, "", "", 0, 0, 0, 75, reason]), older.OLDEST)
    assert not isinstance(found, WireError), found
    assert found[1] == Stop(0, 75, reason, kind)


def test_nobody_but_a_journal_understands_an_older_version() -> None:
    found = decode(msgpack.packb(REPORT_OF_4))
    assert isinstance(found, WireError) and found.kind == "version"
    for version in (older.OLDEST - 1, VERSION + 1):
        found = decode(msgpack.packb([version, *REPORT_OF_4[1:]]), older.OLDEST)
        assert isinstance(found, WireError) and found.kind == "version"


@pytest.mark.parametrize("at", range(6, 12))
@pytest.mark.parametrize("value", [None, 7, [], [7], [[]], "x"])
def test_older_rows_that_do_not_fit_are_refused(at: int, value: Any) -> None:
    row = list(REPORT_OF_4)
    row[at] = value
    assert isinstance(decode(msgpack.packb(row), older.OLDEST), tuple | WireError)
    assert isinstance(decode(msgpack.packb(row[:at]), older.OLDEST), WireError)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x91" * 5000,  # lists in lists in lists
        b"\x81\x00" * 2000,  # maps in maps
        b"\xdd\xff\xff\xff\xff",  # a list of 2**32 - 1 items
        b"\xdd\x00\x02\x00\x00" * 1500,  # long lists in long lists
        b"\xc6\xff\xff\xff\xff",  # announces bytes that do not follow
        b"\xd6\xff\x00\x00\x00\x00",  # a timestamp
        b"\xc7\x0c\xff" + b"\xff" * 12,  # an impossible timestamp
        b"\xd4\x05\x00",  # an extension type
        b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",  # NaN
        b"\xd9\x02\xff\xfe",  # text that is no UTF-8
        b"\xc1",  # the byte that msgpack never uses
        msgpack.packb([VERSION, 3, "job", "node", 0, 0, msgpack.Timestamp(1), None]),
    ],
    ids=lambda data: data[:6].hex(),
)
def test_hostile_bytes(data: bytes) -> None:
    found = decode(data)
    assert isinstance(found, WireError) and found.reason


def test_a_lone_surrogate_costs_a_character_not_the_message() -> None:
    found = decode(encode(Question("status", "file \udcff"), ENVELOPE))
    assert not isinstance(found, WireError) and found[1] == Question("status", "file ?")


def test_every_class_has_its_place_and_bounds() -> None:
    assert len(set(MESSAGES)) == len(MESSAGES)
    for cls in MESSAGES:
        assert compile.fields_of(cls), cls
    assert messages.MESSAGES[0].__name__ == "WorkerHello" and messages.MESSAGES[12].__name__ == "Reply"
