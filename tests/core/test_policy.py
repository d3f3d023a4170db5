"""The policy: which rule matches, what it says about a fault, and what is remembered of earlier starts.

What the manager does with it is told by the stories policy_*.txt.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.core.counters import Counters
from taskd.core.job import Job
from taskd.core.limits import SECOND
from taskd.core.membership import Membership
from taskd.core.policy.rules import DEFAULT, Event, Fail, Fault, Policy, Restart, Rule, Scope
from taskd.core.policy.ruling import PLAIN, History, answer
from taskd.core.records import RankRecord
from taskd.core.repair.case import Case
from taskd.core.repair.ladder import REPAIRS, Loss, decide
from taskd.core.repair.placement import events_of
from taskd.core.types import GivenUp, RankState, Strategy
from taskd.core.words import FOR_ITS_MEMORY, NOT_STARTED
from tests.core.test_ladder import KILLED, SITUATIONS, Situation
from tests.core.test_ladder import PLAIN as SITUATION

DIED = Fault(2, 77, frozenset({Event.PROCESS_EXIT}), "ValueError: no such file")
LOST = Fault(2, 0, frozenset({Event.NODE_LOST}), "node a has been silent")
RULE = Rule(4, "exitCodes: 77", codes=((77, 77),))


def policy(*rules: Rule, **changes: object) -> Policy:
    return replace(Policy("policy.yaml", rules), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rule", "matches"),
    [
        (RULE, True),
        (replace(RULE, codes=((1, 76), (78, 255))), False),
        (replace(RULE, codes=((1, 5), (70, 80))), True),
        (replace(RULE, codes=(), events=frozenset({Event.NODE_LOST, Event.PROCESS_EXIT})), True),
        (replace(RULE, events=frozenset({Event.NODE_LOST})), False),
        (replace(RULE, pattern="no such file"), True),
        (replace(RULE, pattern="Value*such"), True),
        (replace(RULE, pattern="such*Value"), False),
        (replace(RULE, pattern="KeyError|*file"), True),
        (replace(RULE, pattern="valueerror"), False),
        (replace(RULE, pattern="such*such"), False),
    ],
)
def test_all_conditions_have_to_hold(rule: Rule, matches: bool) -> None:
    assert rule.matches(DIED) is matches


def test_no_pattern_keeps_the_manager_busy() -> None:
    """A regular expression of this kind would take years, and this test would count as hanging."""
    rule = replace(RULE, pattern="|".join(["*".join(["a"] * 400) + "*b"] * 2))
    assert not rule.matches(replace(DIED, words="a" * 1024))


@pytest.mark.parametrize("restart", Restart)
@pytest.mark.parametrize(("fault", "by"), [(DIED, "code"), (LOST, "node"), (replace(DIED, exit_code=3), "other")])
def test_which_faults_start_again(restart: Restart, fault: Fault, by: str) -> None:
    """Without a rule for it, and with one."""
    always, never = restart in (Restart.ALWAYS, Restart.ON_FAILURE), restart is Restart.NEVER
    node = by == "node" and restart in (Restart.ON_NODE_FAIL, Restart.ON_NODE_FAIL_OR_EXIT_CODE)
    code = by == "code" and restart in (Restart.EXIT_CODE, Restart.ON_NODE_FAIL_OR_EXIT_CODE)
    alone = answer(policy(restart=restart, restart_line=2), fault)
    assert alone.restarts is (always or node) and not (never and alone.restarts)
    assert alone.restart_words.startswith(f"policy.yaml line 2 says restartPolicy {restart.value}")
    ruled = answer(policy(replace(RULE, restart=restart)), fault)
    if by == "code":
        assert ruled.restarts is (always or code) and ruled.rule is not None and ruled.rule.line == 4
    else:
        assert ruled.rule is None and ruled.restarts, "the rule is about another exit code"


def test_the_first_rule_that_matches_wins() -> None:
    rules = (replace(RULE, restart=Restart.NEVER), replace(RULE, line=9, codes=(), events=frozenset(Event)))
    found = answer(policy(*rules), DIED)
    assert not found.restarts and found.restart_words == "policy.yaml line 4 (exitCodes: 77) says restartPolicy Never"
    assert answer(policy(*reversed(rules)), DIED).restarts


def test_several_faults_have_one_ruling() -> None:
    """The widest scope, and no start if one fault may not be started again."""
    rules = (replace(RULE, scope=Scope.ALL), replace(RULE, line=9, codes=((3, 3),), restart=Restart.NEVER))
    history = History(policy(*rules, scope=Scope.NODE, scope_line=1))
    other = replace(DIED, rank=0, exit_code=5)
    assert history.ruling([other], 0, 0).why == "policy.yaml line 1 says restartScope Pod"
    found = history.ruling([other, DIED], 0, 0)
    assert (found.scope, found.ends) == (Scope.ALL, "") and found.why.endswith("says restartScope All")
    assert "restartPolicy Never" in history.ruling([DIED, replace(DIED, exit_code=3)], 0, 0).ends


def test_starts_are_counted_within_the_window() -> None:
    history = History(policy(window_ns=60 * SECOND, gap_ns=10 * SECOND, job_limit=3))
    for at in (0, 30, 50):
        history.started([DIED], [2], at * SECOND)
    assert [history.recent(2, at * SECOND) for at in (50, 59, 60, 89, 90, 110)] == [3, 3, 2, 2, 1, 0]
    assert [history.hold_ns([1, 2], at * SECOND) // SECOND for at in (50, 55, 60, 99)] == [10, 5, 0, 0]
    assert "3 repairs have started ranks" in history.ruling([DIED], 0, 55 * SECOND).ends
    assert not history.ruling([DIED], 0, 61 * SECOND).ends and not history.ruling([], 0, 55 * SECOND).ends


def test_a_rule_counts_its_own_starts() -> None:
    rule = replace(RULE, limit=1)
    history = History(policy(rule))
    history.started([replace(DIED, exit_code=3)], [2], 0)
    assert not history.ruling([DIED], 0, SECOND).ends
    history.started([DIED], [2], SECOND)
    assert history.ruling([DIED], 0, 2 * SECOND).ends.endswith("has started rank 2 1 time, its restartLimit")
    assert not history.ruling([replace(DIED, rank=1)], 0, 2 * SECOND).ends


def test_a_start_that_never_began_is_taken_back() -> None:
    history = History(policy(window_ns=60 * SECOND))
    history.take_back(2)
    history.started([DIED], [2], 0)
    history.started([DIED], [2], SECOND)
    history.take_back(2)
    assert history.recent(2, 2 * SECOND) == 1 and history.recent(1, 2 * SECOND) == 0


def test_the_default_remembers_nothing_and_forbids_nothing() -> None:
    history = History()
    history.started([DIED], [2], 5)
    assert history.ruling([DIED, LOST], 1 << 60, 9) == PLAIN and history.recent(2, 9) is None
    assert not history.hold_ns([2], 9) and not DEFAULT.counts and not history._starts and not history._repairs


def test_what_is_outlived() -> None:
    """failPolicy is asked whenever a rank fails for good, but parked ranks cannot go on without a repair."""
    zero = replace(KILLED, rank=0)
    spent: dict[str, object] = {"max_restarts": 0}
    for fail, losses, outlived in [
        (Fail.ANY, (KILLED,), False),
        (Fail.RANK_0, (KILLED,), True),
        (Fail.RANK_0, (KILLED, zero), False),
        (Fail.ALL, (KILLED, zero), True),
        (Fail.ALL, tuple(replace(KILLED, rank=rank) for rank in range(4)), False),
        (Fail.NONE, (zero,), True),
    ]:
        now = replace(SITUATION, losses=losses, ruling=replace(PLAIN, fail=fail), **spent)  # type: ignore[arg-type]
        wanted = Strategy.OBSERVE if outlived else Strategy.EXIT
        assert decide(now).strategy is wanted, fail
        assert decide(replace(now, repairing=True)).strategy is Strategy.EXIT


def test_no_cheaper_rung_is_left_when_all_shall_start_over() -> None:
    now = replace(SITUATION, ruling=replace(PLAIN, scope=Scope.ALL, why="p line 1 says restartScope All"))
    assert decide(now).strategy is Strategy.RESPAWN and "p line 1 says restartScope All, so all" in decide(now).reason
    gone = decide(replace(now, exhausted=frozenset({Strategy.RESPAWN})))
    assert gone.strategy is Strategy.EXIT and "and that has failed" in gone.reason


RULINGS = st.builds(
    replace, st.just(PLAIN), ends=st.sampled_from(["", "no"]), scope=st.sampled_from(Scope), fail=st.sampled_from(Fail)
)


@given(SITUATIONS, RULINGS)
def test_the_ladder_ends_under_every_ruling(situation: Situation, ruling: object) -> None:
    situation = replace(situation, ruling=ruling)
    for _ in range(len(REPAIRS)):
        situation = replace(situation, exhausted=situation.exhausted | {decide(situation).strategy})
    assert decide(situation).strategy in (Strategy.EXIT, Strategy.OBSERVE)


def test_ranks_that_followed_are_not_asked_about() -> None:
    from taskd.core.repair.ladder import faults

    follower = replace(KILLED, rank=0, exit_code=1, reason="DistBackendError: it has failed")
    beside: Loss = replace(KILLED, rank=1, exit_code=0, given_up=GivenUp.WITH_ITS_NODE)
    assert [fault.rank for fault in faults([follower, beside, KILLED])] == [2]
    assert [fault.rank for fault in faults([follower])] == [0] and KILLED.fault.exit_code == 137


def test_the_time_in_which_ranks_stand_for_an_operator_is_no_time_of_a_repair() -> None:
    members = Membership(2, Counters())
    members.stands(10 * SECOND, True)
    members.stands(50 * SECOND, False)  # a pause before the fault
    case = Case(Job(members, 1), SECOND, History())
    incident = case.open("process", [0], "rank 0 died", 0, 100 * SECOND)
    assert case.repair_ns(105 * SECOND) == 0  # nothing was tried yet
    incident.attempts = 1
    assert case.repair_ns(105 * SECOND) == 5 * SECOND
    members.stands(110 * SECOND, True)
    assert case.repair_ns(150 * SECOND) == 10 * SECOND
    members.stands(160 * SECOND, False)
    assert case.repair_ns(170 * SECOND) == 20 * SECOND


@pytest.mark.parametrize("before", ["", "device 0 reported Xid 79 (fallen off the bus) 1.2 s before; "])
def test_what_a_device_has_reported_hides_no_event(before: str) -> None:
    """The event of a device stands before the rank's own words."""
    words = f"{before}{FOR_ITS_MEMORY}the machine had no more"
    killed = RankRecord(0, state=RankState.DEAD, exit_code=-9, reason=words)
    assert events_of(killed) == {Event.PROCESS_EXIT, Event.OUT_OF_MEMORY}
    unborn = RankRecord(0, state=RankState.DEAD, exit_code=1, reason=f"{before}{NOT_STARTED}too many files")
    assert events_of(unborn) == {Event.NOT_STARTED}


def test_no_words_say_why_a_rank_was_given_up() -> None:
    gone = RankRecord(0, state=RankState.DEAD, reason="its set-up failed: without progress, as ann asked for it")
    hung, late = replace(gone, given_up=GivenUp.HUNG), replace(gone, given_up=GivenUp.NOT_FOLLOWED)
    assert events_of(hung) == {Event.HANG} and events_of(late) == {Event.NOT_FOLLOWED}
    assert not late.asked and replace(gone, given_up=GivenUp.ASKED, reason="").asked
