"""The ladder: a pure function that returns a strategy and a sentence about it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.core.repair.ladder import REPAIRS, Loss, Objection, Situation, causes_first, decide
from taskd.core.types import Strategy

KILLED = Loss(2, "a", -9, "", 0, home=True, watched_only=False, finished=False)
PLAIN = Situation(
    losses=(KILLED,),
    trouble="",
    world_size=4,
    left=(),
    allowed=REPAIRS,
    exhausted=frozenset(),
    max_restarts=3,
    trained=True,
    state_lost=False,
    repairing=False,
    all_start=True,
)
DIFFERS = Objection("w differs")
VAIN = Objection(to_starting_over="it was in vain")
LOST = replace(KILLED, exit_code=0, reason="node a has been silent", home=False)
IN_PLACE, RESPAWN, RECOVER = Strategy.IN_PLACE, Strategy.RESPAWN, Strategy.RECOVER


@pytest.mark.parametrize(
    ("changes", "strategy", "says"),
    [
        ({}, IN_PLACE, "rank 2 died (SIGKILL) on node a, whose agent can start it again: recover-in-place"),
        ({"allowed": frozenset()}, Strategy.OBSERVE, "recovery is off in this job"),
        ({"allowed": frozenset({Strategy.RETRY})}, Strategy.OBSERVE, "recovery is off in this job"),
        ({"trained": False}, RESPAWN, "before any step was seen to be done"),
        ({"trained": False, "allowed": frozenset({IN_PLACE})}, IN_PLACE, "can start it again"),
        ({"losses": (LOST,)}, RECOVER, "which cannot start it again: recover"),
        ({"losses": (LOST,), "allowed": frozenset({IN_PLACE})}, Strategy.EXIT, "no allowed strategy"),
        ({"exhausted": frozenset({IN_PLACE})}, RESPAWN, "repair in place has failed"),
        ({"exhausted": frozenset({IN_PLACE}), "all_start": False}, RECOVER, "where it has failed"),
        ({"exhausted": REPAIRS}, Strategy.EXIT, "recover, recover-in-place and respawn have failed"),
        ({"state_lost": True, "losses": (), "trouble": "none is left"}, RESPAWN, "none is left, so all start again"),
        ({"objection": DIFFERS}, RESPAWN, "died (SIGKILL) on node a; w differs, so all start again: respawn"),
        ({"objection": DIFFERS, "losses": (LOST,), "all_start": False}, RESPAWN, "so all start again"),
        ({"objection": DIFFERS, "allowed": frozenset({IN_PLACE})}, Strategy.EXIT, "w differs: exit"),
        ({"objection": DIFFERS, "losses": (), "trouble": "it broke"}, IN_PLACE, "it broke: recover-in-place"),
        ({"objection": VAIN}, IN_PLACE, "whose agent can start it again: recover-in-place"),
        ({"objection": VAIN, "trained": False}, Strategy.EXIT, "died (SIGKILL) on node a; it was in vain: exit"),
        ({"objection": VAIN, "state_lost": True}, Strategy.EXIT, "died (SIGKILL) on node a; it was in vain: exit"),
        ({"left": (1,)}, Strategy.EXIT, "rank 1 has left with exit code 0 before and can"),
        ({"losses": (replace(KILLED, restarts=3),)}, Strategy.EXIT, "started again 3 times, which is the limit"),
        ({"losses": (replace(KILLED, finished=True),)}, Strategy.OBSERVE, "when its work was done, so nothing is lost"),
        ({"losses": (replace(LOST, watched_only=True),)}, Strategy.OBSERVE, "whose launcher is not ours"),
    ],
)  # fmt: skip
def test_rungs(changes: dict[str, object], strategy: Strategy, says: str) -> None:
    decision = decide(replace(PLAIN, **changes))
    assert decision.strategy is strategy
    assert says in decision.reason


@pytest.mark.parametrize(
    "reason", ["DistBackendError: it has failed", "RuntimeError: [/gloo/transport/tcp/pair.cc:9] x"]
)
def test_who_began_it_is_named_first_and_gives_the_exit_code(reason: str) -> None:
    """One report names all deaths of a node, in the order of their ranks."""
    follows = Loss(0, "a", 1, reason, 0, home=True, watched_only=False, finished=False)
    began = replace(follows, rank=1, exit_code=3, reason="ValueError: no such file")
    ordered = causes_first((follows, began))
    assert ordered == (began, follows) == causes_first(ordered)
    decision = decide(replace(PLAIN, losses=ordered, world_size=2, trained=False))
    assert decision.exit_code == 3
    first = "rank 1 (exit code 3: ValueError: no such file) on node a and rank 0 (exit code 1: "
    assert decision.reason.startswith(first), decision.reason


def test_a_script_that_fails_on_every_rank_is_not_started_again() -> None:
    failed = tuple(replace(KILLED, rank=rank, exit_code=1, reason="no module named x") for rank in range(4))
    decision = decide(replace(PLAIN, losses=failed, trained=False))
    assert decision.strategy is Strategy.EXIT and decision.exit_code == 1
    assert decision.reason.count("no module named x") == 1


LOSSES = st.lists(
    st.builds(
        Loss, st.integers(0, 3), st.sampled_from("ab"), st.integers(-15, 3), st.sampled_from(["", "why"]),
        st.integers(0, 4), st.booleans(), st.booleans(), st.booleans(),
    ),
    max_size=4,
    unique_by=lambda loss: loss.rank,
).map(tuple)  # fmt: skip
SITUATIONS = st.builds(
    Situation, LOSSES, st.just("something else is wrong"), st.just(4), st.sampled_from([(), (1,)]),
    st.frozensets(st.sampled_from(list(Strategy))), st.frozensets(st.sampled_from(sorted(REPAIRS, key=str))),
    st.integers(0, 4), st.booleans(), st.booleans(), st.booleans(), st.booleans(),
    st.builds(Objection, st.sampled_from(["", "w differs"]), st.sampled_from(["", "it was in vain"])),
)  # fmt: skip


@given(SITUATIONS)
def test_only_what_is_allowed_and_not_exhausted(situation: Situation) -> None:
    decision = decide(situation)
    assert decision.strategy in (situation.allowed - situation.exhausted) & REPAIRS | {Strategy.OBSERVE, Strategy.EXIT}
    assert decision.reason and (decision.exit_code != 0) == (decision.strategy is Strategy.EXIT)


@given(SITUATIONS)
def test_the_ladder_ends(situation: Situation) -> None:
    """Whatever fails, each rung is used once at most. Then only observe or exit is left."""
    for _ in range(len(REPAIRS)):
        strategy = decide(situation).strategy
        situation = replace(situation, exhausted=situation.exhausted | {strategy})
    assert decide(situation).strategy in (Strategy.EXIT, Strategy.OBSERVE)
