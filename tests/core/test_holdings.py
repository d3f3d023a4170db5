"""Which state an attempt agrees on, and where each rank gets it: whatever ranks hold, the sources lead there."""

from __future__ import annotations

import random

from taskd.core.messages import RankReport
from taskd.core.repair.holdings import Holdings
from taskd.core.starts_over import StartsOver
from taskd.core.types import NOTHING_KEPT, Kept, Stage
from tests.core.builders import rank_report

RANKS = 5


def parked(rank: int, updates: int, part: int, kept: Kept, ok: bool = True) -> RankReport:
    """Return the report of a rank that has parked."""
    return rank_report(
        rank, stage=Stage.PARKED, updates=updates, part=part, ok=ok, kept_from=kept.first, kept_to=kept.last
    )


def test_whoever_lacks_the_update_gets_it_from_a_rank_that_has_it_or_makes_it() -> None:
    draw = random.Random(5)
    agreed = made = 0
    for _ in range(4000):
        parts = [draw.randint(1, 3) for _ in range(RANKS)]
        newcomers = frozenset(rank for rank in range(RANKS) if draw.random() < 0.3)
        held = {rank: draw.choice((7, 8)) for rank in range(RANKS) if rank not in newcomers}
        kept = {rank: draw.choice((NOTHING_KEPT, Kept(6, 7), Kept(7, 8), Kept(8, 8))) for rank in range(RANKS)}
        holdings = Holdings(tuple(range(RANKS)), newcomers, StartsOver())
        for rank in range(RANKS):
            holdings.parked(parked(rank, held.get(rank, -1), parts[rank], kept[rank]))
        holdings.agree(takes=True)
        newest = max(held.values(), default=-1)
        if holdings.updates < 0:
            assert not holdings.fetches and not holdings.complete
            reachable = {parts[rank] for rank in range(RANKS) if held.get(rank) == newest or kept[rank].reaches(newest)}
            assert newest < 0 or reachable != {*parts}, "it could have gone on"
            continue
        agreed += 1
        assert holdings.updates == newest, "no survivor goes back"
        assert holdings.complete == {rank for rank, updates in held.items() if updates == newest}
        lacking = {rank for rank in range(RANKS) if rank not in holdings.complete}
        assert {fetch.rank for fetch in holdings.fetches} == lacking
        for fetch in holdings.fetches:
            assert parts[fetch.source] == parts[fetch.rank]
            brought = {one.rank for one in holdings.fetches if one.rank == one.source}
            assert fetch.source in holdings.complete | brought
            if fetch.rank == fetch.source:
                made += 1
                assert kept[fetch.rank].reaches(newest)
                twins = [rank for rank in holdings.complete if parts[rank] == parts[fetch.rank]]
                assert not twins, "what another rank has is surer than what is made again"
    assert agreed > 500 and made > 200


def test_what_is_kept_saves_no_job_whose_survivors_hold_nothing() -> None:
    holdings = Holdings((0, 1), frozenset({1}), StartsOver())
    holdings.parked(parked(0, -1, 1, Kept(3, 4), ok=False))
    holdings.parked(parked(1, -1, 2, Kept(3, 4)))
    holdings.agree(takes=True)
    assert holdings.updates < 0 and holdings.nobody()


def test_a_last_checkpoint_is_written_by_those_that_hold_the_state() -> None:
    holdings = Holdings((0, 1), frozenset(), StartsOver())
    holdings.parked(parked(0, 4, 1, Kept(3, 4)))
    holdings.parked(parked(1, 3, 2, Kept(3, 4)))
    holdings.agree(takes=False)
    assert holdings.updates < 0, "nobody makes an update in order to save"
