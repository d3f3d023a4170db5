"""Messages to many nodes: the manager encodes them once. Each node gets the bytes that it would have got alone."""

from __future__ import annotations

import msgpack
import pytest

from taskd.core.messages import Order, Report, Seat, StoreAnswer
from taskd.core.types import Stage, StoreStatus
from taskd.manager import outbox
from taskd.manager.outbox import Outbox
from taskd.wire.codec import VERSION, Envelope, body_of, decode, encode, seal

ORDER = Order(1, 2, Stage.PARKED, 1, -1, (Seat(0, 2, "a"),), (), "why")


def test_a_message_to_many_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: list[object] = []
    monkeypatch.setattr(outbox, "body_of", lambda message: bodies.append(message) or body_of(message))
    box = Outbox("job", 7)
    for node in "abc":
        box.post(node.encode(), ORDER, node)
    box.post(b"d", Order(1, 2, Stage.PARKED, 1, -1, (), (), "why"), "d")
    sent = box.take()
    assert len(bodies) == 2 and [place for place, _ in sent] == [b"a", b"b", b"c", b"d"]
    assert [decode(data)[0] for _, data in sent] == [  # type: ignore[index]
        Envelope("job", node, 7, number) for number, node in enumerate("abcd", 1)
    ]
    assert sent[0][1] == encode(ORDER, Envelope("job", "a", 7, 1)) and box.take() == []


@pytest.mark.parametrize("message", [ORDER, Report(True, 1, ()), StoreAnswer(3, StoreStatus.DONE, 0, (b"x",) * 20)])
def test_a_sealed_body_is_one_array(message: object) -> None:
    data = seal(body_of(message), Envelope("job", "n", 2**40, 3))  # type: ignore[arg-type]
    row = msgpack.unpackb(data, raw=False)
    assert data == msgpack.packb(row) and row[:6] == [VERSION, row[1], "job", "n", 2**40, 3]
