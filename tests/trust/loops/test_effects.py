"""What a step owes, as it is written down: by the newest attempt alone."""

from __future__ import annotations

from taskd.state.ledger import Ledger
from taskd.worker.effects import Effects


def test_an_attempt_that_asks_for_less_owes_less() -> None:
    ledger = Ledger(lambda number, data: None)
    effects, done = Effects(ledger), []
    for asked in (["a", "b"], ["c"], []):
        effects.begin()
        for value in asked:
            effects.add(done.append, (value,))
        effects.forward_ended(4)
        assert effects.owes(5) == bool(asked)
    effects.pay(5)
    assert done == []
    effects.begin()
    effects.add(done.append, ("d",))
    effects.forward_ended(4)
    effects.pay(5)
    assert done == ["d"] and not effects.owes(5)
