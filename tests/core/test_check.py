"""The check of nodes by itself: one case for each way in which a node, a link or a rail can be at fault."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from taskd.core import limits
from taskd.core.check import lines
from taskd.core.check.check import Check
from taskd.core.check.facts import Answers, Contact, Outcome, SelfTest, Side, Turn, Way
from taskd.core.check.findings import Finding, Report
from taskd.core.check.pairs import facing, matching, turns
from taskd.core.check.scale import scale
from tests.core.check_nodes import MS, Nodes, findings, harms, node

FOUR = (3, 7, 8, 20)
SILENT, ENDED = {7: Contact.SILENT}, {7: Contact.ENDED}


@pytest.mark.parametrize("numbers", [(5,), (4, 9), (1, 2, 3), FOUR, range(9), range(64)], ids=str)
def test_clean_nodes_are_healthy_after_one_round_or_two(numbers: Any) -> None:
    nodes = Nodes(numbers)
    report = nodes.check()
    assert not findings(report) and not harms(report) and not report.leaving(True)
    assert report.rounds == (0 if len(numbers) == 1 else 1)
    assert all(one.reason and one.witnesses for one in report.nodes)


@pytest.mark.parametrize(
    ("faults", "finding", "words"),
    [
        (
            {"contacts": SILENT},
            Finding.DOWN,
            "the manager hears nothing of it, and it answers nodes 3, 8 and 20 no more",
        ),
        ({"contacts": ENDED}, Finding.DOWN, "its own host says that its probe has ended"),
        ({"mute": [7]}, Finding.DOWN, "its agent is there and its probe hangs"),
        (
            {"cut": [(7, "red"), (7, "blue")]},
            Finding.DOWN,
            "it can exchange nothing with nodes 3, 8 and 20, on any rail",
        ),
        ({"wrong": [7]}, Finding.WRONG, "a product of it was wrong, as itself"),
        ({"wrong": [7], "denies": [7]}, Finding.WRONG, "it denies that"),
        ({"torch": {7: "2.12.1"}}, Finding.UNLIKE, "it has torch 2.12.1, and most nodes have torch 2.13.0"),
        ({"clocks": {7: 3}}, Finding.LIES, "it contradicts nodes 3, 8 and 20"),
        ({"torn": [7]}, Finding.DOWN, "its own ranks cannot exchange data"),
    ],
)
def test_one_bad_node_of_four_is_named(faults: dict[str, Any], finding: Finding, words: str) -> None:
    report = Nodes(FOUR, **faults).check()
    assert findings(report) == {7: finding} and words in node(report, 7).reason
    assert report.leaving(False) == ((7,) if finding is not Finding.LIES else ())
    assert node(report, 7).witnesses and report.rounds <= limits.CHECK_ROUNDS and not report.links


@pytest.mark.parametrize(
    ("faults", "component", "harm"),
    [
        ({"compute": {7: 3}}, "compute", []),
        ({"slow_rails": {(7, "red"): 4}}, "rail red", [(7, "red", "slow")]),
        ({"cut": [(7, "blue")]}, "rail blue", [(7, "blue", "dead")]),
        ({"lacks": {7: "blue"}}, "rail blue", [(7, "blue", "missing")]),
    ],
)
def test_a_straggler_leaves_only_if_that_is_wanted(faults: dict[str, Any], component: str, harm: list[Any]) -> None:
    nodes = Nodes(FOUR, **faults)
    report = nodes.check()
    assert findings(report) == {7: Finding.STRAGGLER} and node(report, 7).components == (component,)
    assert harms(report) == harm
    assert report.leaving(False) == () and report.leaving(True) == (7,)


def test_no_time_is_judged_by_one_round() -> None:
    nodes = Nodes(FOUR, compute={7: 3})
    nodes.check()
    assert len({turn.round for turn in nodes.turns}) > 1


def test_one_long_time_is_nothing() -> None:
    assert not findings(Nodes(FOUR, once={(7, 1): 9}).check())
    assert not findings(Nodes(FOUR, once={(7, 1): 9, (3, 2): 7}).check())


@pytest.mark.parametrize("rails", [("red",), ("red", "blue")])
def test_a_dead_link_is_named_and_its_nodes_are_healthy(rails: tuple[str, ...]) -> None:
    report = Nodes(FOUR, rails=rails, links=[(3, 20, rail) for rail in rails]).check()
    assert not findings(report) and harms(report) == [((3, 20), rails[0] if len(rails) == 1 else "", "dead")]


def test_a_rail_that_is_dead_everywhere_accuses_no_node() -> None:
    report = Nodes(FOUR, cut=[(number, "blue") for number in FOUR]).check()
    assert not findings(report) and harms(report) == [(None, "blue", "dead")]


def test_two_bad_of_four() -> None:
    report = Nodes(FOUR, wrong=[3], contacts={20: Contact.SILENT}).check()
    assert findings(report) == {3: Finding.WRONG, 20: Finding.DOWN}
    report = Nodes(FOUR, compute={3: 3, 20: 5}).check()
    assert findings(report) == {3: Finding.STRAGGLER, 20: Finding.STRAGGLER}


def test_a_split_network_accuses_nobody() -> None:
    low, high = range(8), range(8, 16)
    nodes = Nodes(range(16), rails=("red",), links=[(one, other, "red") for one in low for other in high])
    report = nodes.check()
    assert not report.leaving(True) and {one.harm.value for one in report.links} <= {"dead", "undecided"}


@pytest.mark.parametrize("sizes", [(2, 2), (2, 4), (2, 2, 2), (2, 2, 3), (2, 2, 2, 2), (3, 3), (5, 11)], ids=str)
def test_small_parts_of_a_split_network_accuse_nobody(sizes: tuple[int, ...]) -> None:
    part = [at for at, size in enumerate(sizes) for _ in range(size)]
    ends = [(one, other) for other in range(len(part)) for one in range(other) if part[one] != part[other]]
    nodes = Nodes(range(len(part)), links=[(one, other, rail) for one, other in ends for rail in ("red", "blue")])
    assert not nodes.check().leaving(True)


@pytest.mark.parametrize("heard", [2, 3, 7])
def test_a_manager_that_is_cut_off_with_a_few_nodes_accuses_nobody(heard: int) -> None:
    """The others do not hear them either, and the manager cannot know which part is at fault."""
    nodes = Nodes(range(16), contacts=dict.fromkeys(range(heard, 16), Contact.SILENT), beside=0)
    assert not nodes.check().leaving(True)


class Stalled(Nodes):
    """Node 7 does not answer for two turns."""

    def answer(self, turn: Turn) -> Answers:
        self.mute = [7] if len(self.turns) in (1, 2) else []
        return super().answer(turn)


def test_trouble_of_two_turns_is_nothing() -> None:
    assert not Stalled(FOUR).check().leaving(True)
    assert not Stalled(range(6, 22)).check().leaving(True)


class Named(Nodes):
    """Each node has a name of its own for its rail."""

    def own(self, number: int) -> SelfTest:
        return SelfTest("2.13.0", ((f"enp{number}", Way.OK),), self.work(number, number))

    def side(self, number: int, _peer: int) -> Side | None:
        return Side((), self.work(number, number), None, MS)


@pytest.mark.parametrize("numbers", [(1, 2, 3), FOUR, range(16)], ids=str)
def test_nodes_whose_rails_all_have_other_names_stay(numbers: Any) -> None:
    report = Named(numbers).check()
    assert set(findings(report).values()) == {Finding.UNDECIDED} and not report.leaving(True)


class Late(Nodes):
    """The first words of some nodes about themselves get lost."""

    lost: tuple[int, ...] = ()
    asked = False

    def check(self) -> Report:
        """Check them; return the report."""
        told = {number: self.own(number) for number in self.numbers if number not in self.lost}
        check = Check(self.numbers, told, dict.fromkeys(self.numbers, Contact.HEARD))
        while check.turn is not None:
            self.turns.append(check.turn)
            self.asked |= {*self.lost} <= {*check.turn.again}
            check.take(self.answer(check.turn))
        assert check.report is not None
        return check.report


def test_a_node_that_says_nothing_of_itself_is_asked_again() -> None:
    nodes = Late(FOUR, torch={7: "2.12.1"})
    nodes.lost = (7,)
    assert findings(nodes.check()) == {7: Finding.UNLIKE} and nodes.asked


def test_a_few_words_are_no_majority() -> None:
    nodes = Late(range(10), torch={0: "2.12.0"} | dict.fromkeys(range(3, 10), "2.12.0"))
    nodes.lost = tuple(range(3, 10))
    report = nodes.check()
    assert node(report, 0).finding is not Finding.UNLIKE, "most nodes have its version"


def test_a_rail_that_comes_up_late_is_not_missing() -> None:
    class Slow(Nodes):
        def own(self, number: int) -> SelfTest:
            self.lacks = {7: "blue"} if not self.turns else {}
            return super().own(number)

    report = Slow(FOUR).check()
    assert not findings(report) and not harms(report)


# ---- two and three nodes


def test_of_two_that_do_not_reach_each_other_nobody_is_named() -> None:
    report = Nodes((0, 1), links=[(0, 1, "red"), (0, 1, "blue")]).check()
    assert findings(report) == {0: Finding.UNDECIDED, 1: Finding.UNDECIDED}
    assert harms(report) == [((0, 1), "", "undecided")] and not report.leaving(True)


@pytest.mark.parametrize(
    ("faults", "finding"),
    [
        ({"contacts": {1: Contact.SILENT}}, Finding.DOWN),
        ({"contacts": {1: Contact.ENDED}}, Finding.DOWN),
        ({"wrong": [1]}, Finding.WRONG),
        ({"compute": {1: 4}}, Finding.STRAGGLER),
    ],
)
def test_of_two_the_bad_one_is_named_by_two_witnesses(faults: dict[str, Any], finding: Finding) -> None:
    report = Nodes((0, 1), **faults).check()
    assert node(report, 1).finding is finding and len(node(report, 1).witnesses) == 2
    assert not node(report, 0).leaves(True)


def test_a_manager_beside_the_only_witness_is_no_second_one() -> None:
    report = Nodes((0, 1), contacts={1: Contact.SILENT}, beside=0).check()
    assert node(report, 1).finding is Finding.UNDECIDED and not report.leaving(True)


@pytest.mark.parametrize("faults", [{"wrong": [1], "denies": [1]}, {"clocks": {1: 3}}, {"torch": {1: "2.12.1"}}])
def test_of_two_that_contradict_each_other_nobody_leaves(faults: dict[str, Any]) -> None:
    report = Nodes((0, 1), **faults).check()
    assert set(findings(report).values()) == {Finding.UNDECIDED} and not report.leaving(True)


@pytest.mark.parametrize(
    "faults",
    [{"cut": [(2, "red"), (2, "blue")]}, {"wrong": [2]}, {"compute": {2: 3}}, {"clocks": {2: 4}}, {"mute": [2]}],
)
def test_of_three_the_bad_one_is_named(faults: dict[str, Any]) -> None:
    report = Nodes((1, 2, 3), **faults).check()
    assert list(findings(report)) == [2] and findings(report)[2] is not Finding.UNDECIDED


def test_a_manager_that_hears_only_the_node_beside_it_accuses_nobody() -> None:
    report = Nodes(range(6), contacts=dict.fromkeys(range(1, 6), Contact.SILENT), beside=0).check()
    assert set(findings(report).values()) == {Finding.UNDECIDED} and not report.leaving(True)


# ---- the six nodes of the guide


def test_the_guides_six_nodes() -> None:
    """Nodes 1 to 6, and node 6 is bad. The guide needs two rounds of new processes to suspect it."""
    nodes = Nodes((1, 2, 3, 4, 5, 6), mute=[6])
    report = nodes.check()
    assert findings(report) == {6: Finding.DOWN} and report.leaving(False) == (6,)
    first = lines.round_line(0, nodes.lines[0])
    assert first.startswith("Round 0: The node elapsed time are {1: ") and first.endswith("6: 3600.0}")
    assert first.count("3600.0") == 1
    assert lines.leaving_line(node(report, 6), False) == "The node is down."
    assert [lines.leaving_line(node(report, number), True) for number in range(1, 6)] == [""] * 5


def test_a_straggler_has_a_line_of_its_own() -> None:
    verdict = node(Nodes(FOUR, compute={7: 4}).check(), 7)
    assert lines.leaving_line(verdict, True) == "The node is a straggler and exits."
    assert lines.leaving_line(verdict, False) == ""


# ---- bad input, and the parts


def test_answers_that_were_not_asked_for_are_dropped() -> None:
    check = Check((0, 1), {}, {0: Contact.HEARD, 1: Contact.HEARD})
    assert check.turn is not None and check.turn.pairs == ((0, 1),)
    strange = Outcome((8, 9), (Side(), Side()))
    again = ((0, SelfTest("x", ())),)
    while check.turn is not None:
        check.take(Answers((strange, Outcome((1, 0), (None, None)), Outcome((0, 1), (Side(), Side()))), (), again))
    assert check.report is not None and not check.report.leaving(True)


@pytest.mark.parametrize("time_ns", [10**400, -1, float("nan"), None, True])
def test_an_answer_with_an_impossible_time_is_none(time_ns: Any) -> None:
    class Odd(Nodes):
        def side(self, number: int, peer: int) -> Side | None:
            side = super().side(number, peer)
            return replace(side, elapsed_ns=time_ns) if side is not None and number == 7 else side

    nodes = Odd(FOUR)
    assert findings(nodes.check()) == {7: Finding.UNDECIDED}, "its partners say that all was well"
    assert all(0 < one <= 3600 for line in nodes.lines for one in line.values())


def test_of_two_answers_the_first_counts() -> None:
    class Twice(Nodes):
        def answer(self, turn: Turn) -> Answers:
            found = super().answer(turn)
            self.torn = []
            return replace(found, again=found.again * 2, contacts=found.contacts * 2)

    nodes = Twice(FOUR, torn=[7])
    assert findings(nodes.check()) == {7: Finding.UNDECIDED}, "it was said once"


def test_everyone_meets_everyone_once() -> None:
    for count in range(2, 20):
        pairs = [pair for turn in range(turns(count)) for pair in facing(range(count), turn)]
        assert len(pairs) == len(set(pairs)) == count * (count - 1) // 2
    assert facing([4], 0) == [] and turns(1) == 0


def test_a_matching_uses_each_node_once() -> None:
    assert matching([(1, [5, 6]), (2, [5, 6]), (5, [7]), (3, [6, 3])]) == [(1, 5), (2, 6)]


def test_up_to_half_may_be_slow() -> None:
    usual = scale([10, 10, 31, 33])
    assert usual is not None and usual.slow(31) and not usual.slow(14)
    uneven = scale([10, 12, 14, 17, 20, 23, 26, 30])
    assert uneven is not None and not uneven.slow(30)
    assert scale([]) is None
