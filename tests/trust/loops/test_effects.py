"""What a step owes, as the ledger has it. Only the newest attempt counts."""

from __future__ import annotations

from taskd.errors import StepAbandoned
from taskd.state.ledger import Ledger
from taskd.worker.effects import Effects


def test_an_attempt_that_asks_for_less_owes_less() -> None:
    ledger = Ledger(lambda number, data: None)
    effects, done = Effects(ledger, lambda: 0), []
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


def test_a_function_that_communicates_is_known_even_if_it_is_left() -> None:
    operations = [0]
    effects = Effects(Ledger(lambda number, data: None), lambda: operations[0])

    def talk(fails: bool) -> None:
        operations[0] += 1
        if fails:
            raise StepAbandoned("given up")

    assert effects.outside() == []
    effects.begin()
    effects.add(talk, (True,))
    effects.forward_ended(4)
    effects.pay(5)
    assert effects.outside() and effects.owes(5), "it was not done"


def test_what_the_body_saves_by_itself_is_told_once() -> None:
    effects = Effects(Ledger(lambda number, data: None), lambda: 0)
    effects.begin()
    assert effects.saves() == [], "before the backward: nobody can have the update"
    effects.forward_ended(4)
    assert len(effects.saves()) == 1 and effects.saves() == []
