"""Whatever nodes answer, a check ends within its rounds, asks for sound turns, and expels nobody without two
witnesses."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.core import limits
from taskd.core.check.check import Check
from taskd.core.check.facts import Answers, Contact, Leg, Outcome, SelfTest, Side, Way, Work

TIMES = st.sampled_from([-5, 0, 1, 10, 11, 40, 10**12])
WORKS = st.builds(Work, st.booleans(), TIMES, TIMES)
LEGS = st.lists(
    st.builds(Leg, st.sampled_from(["red", "blue", ""]), *[st.sampled_from(Way)] * 2, TIMES, TIMES), max_size=3
)
SIDES = st.one_of(st.none(), st.builds(Side, LEGS.map(tuple), WORKS, st.one_of(st.none(), WORKS), TIMES))
RAILS = st.lists(st.tuples(st.sampled_from(["red", "blue", ""]), st.sampled_from(Way)), max_size=3).map(tuple)
OWN = st.builds(SelfTest, st.sampled_from(["2.12", "2.13"]), RAILS, WORKS, st.sampled_from(Way))


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_any_answers(data: st.DataObject) -> None:
    nodes = data.draw(st.sets(st.integers(0, 30), max_size=10))
    own = data.draw(st.dictionaries(st.sampled_from(sorted(nodes)), OWN)) if nodes else {}
    contacts = {number: data.draw(st.sampled_from(Contact)) for number in nodes}
    check = Check(nodes, own, contacts, data.draw(st.sampled_from([None, *sorted(nodes)])))
    turns = 0
    while check.turn is not None:
        turn, turns = check.turn, turns + 1
        busy = [number for pair in turn.pairs for number in pair]
        assert len(busy) == len(set(busy)) and set(busy) <= nodes and turn.limit_ns > 0
        assert turn.round < limits.CHECK_ROUNDS and turns <= 60 and (turn.pairs or turn.again)
        outcomes = tuple(Outcome(pair, (data.draw(SIDES), data.draw(SIDES))) for pair in turn.pairs)
        again = tuple((number, data.draw(OWN)) for number in turn.again)
        check.take(Answers(outcomes, tuple((number, data.draw(st.sampled_from(Contact))) for number in nodes), again))
    assert check.report is not None and [one.node for one in check.report.nodes] == sorted(nodes)
    for verdict in check.report.nodes:
        assert verdict.reason and len(verdict.reason) <= limits.MAX_TEXT
        assert not verdict.leaves(True) or len(verdict.witnesses) >= 2 or verdict.witnesses == ("itself",)
