"""When an agent reports which of its node's rails: news at once, all rails in turn, never more than fits. Also which
ranks it passes a rail order to."""

from __future__ import annotations

from dataclasses import replace

from taskd.core import limits
from taskd.core.counters import Counters
from taskd.core.crew import Crew
from taskd.core.limits import MS, SECOND
from taskd.core.local import LocalRank
from taskd.core.messages import RailOrder, RailReport, RailsFollowed
from taskd.core.rails.news import RailNews
from taskd.core.rails.relay import RailRelay
from taskd.core.types import RailState, RankState, Stage

UP = RailReport("a", "n1", RailState.UP, 0, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0)
STEADY_NS = limits.RAIL_NEWS_NS


def steady(*reports: RailReport) -> RailNews:
    """Return lines that have had no news for long and were reported just now, at STEADY_NS."""
    news = RailNews()
    news.read(reports, 0)
    assert set(news.due(STEADY_NS)) == set(reports)
    return news


def test_bytes_alone_wait_for_their_turn() -> None:
    news = steady(UP)
    moved = replace(UP, bytes_out=1000, bytes_in=10, age_ms=100, pairs_moved=2, round_trip_ns=7, hedged=1)
    news.read((moved,), STEADY_NS + 100 * MS)
    assert news.due(STEADY_NS + 100 * MS) == ()
    assert news.due(STEADY_NS + limits.FULL_REPORT_NS - 1) == ()
    assert news.due(STEADY_NS + limits.FULL_REPORT_NS) == (moved,)


def test_a_change_of_state_is_told_with_every_beat_for_a_while() -> None:
    other = replace(UP, rail="b")
    news = steady(UP, other)
    for change in (
        {"state": RailState.DOWN},
        {"downs": 1},
        {"pairs_up": 1},
        {"pairs": 3},
        {"last_error": 104},
        {"pairs_starved": 1},
    ):
        now = STEADY_NS + SECOND
        news = steady(UP, other)
        lost = replace(UP, **change)
        news.read((lost, other), now)
        for beat in range(0, limits.RAIL_NEWS_NS, 100 * MS):
            news.read((lost, other), now + beat)
            assert lost in news.due(now + beat)
        assert lost not in news.due(now + limits.RAIL_NEWS_NS)


def test_a_line_that_nobody_uses_is_told_for_a_while_only() -> None:
    news = steady(UP)
    unused = replace(UP, pairs=0, pairs_up=0)
    news.read((unused,), STEADY_NS + SECOND)
    assert news.due(STEADY_NS + SECOND) == (unused,)
    later = STEADY_NS + SECOND + limits.RAIL_NEWS_NS
    assert news.due(later) == () == news.due(later + 100 * SECOND)
    news.read((UP,), later + 100 * SECOND)
    assert news.due(later + 100 * SECOND) == (UP,)


def test_more_lines_than_fit_take_turns_and_none_waits_for_ever() -> None:
    reports = tuple(replace(UP, peer=f"n{number}") for number in range(1000))
    news = RailNews()
    news.read(reports, 0)
    seen: dict[str, int] = {}
    for beat in range(20):
        told = news.due(STEADY_NS + beat * 100 * MS)
        assert len(told) <= limits.MAX_RAIL_REPORTS
        for report in told:
            seen[report.peer] = seen.get(report.peer, 0) + 1
    assert len(seen) == 1000 and set(seen.values()) == {1}


def test_news_of_many_lines_take_turns_too() -> None:
    reports = tuple(replace(UP, peer=f"n{number}") for number in range(1000))
    news = RailNews()
    news.read(reports, 0)
    told = [report.peer for beat in range(4) for report in news.due(beat)]
    assert len(set(told)) == 1000


def test_a_new_manager_is_told_everything() -> None:
    news = steady(UP)
    assert news.due(STEADY_NS + 1) == ()
    news.again()
    assert news.due(STEADY_NS + 2) == (UP,)


def test_lines_are_bounded() -> None:
    news = RailNews()
    news.read(tuple(replace(UP, peer=f"n{number}") for number in range(limits.MAX_RAIL_RECORDS + 5)), 0)
    count = 0
    while told := news.due(STEADY_NS):
        count += len(told)
    assert count == limits.MAX_RAIL_RECORDS


# ---- orders on their way through the agent --------------------------------------------------------------------------


def test_a_rank_that_could_not_follow_is_asked_again_after_a_pause() -> None:
    counters = Counters()
    crew = Crew("j", counters)
    record = crew.ranks[3] = LocalRank(3, 1, 0, Stage.RUNNING, state=RankState.ALIVE, acknowledged=True)
    relay = RailRelay(crew, counters)
    relay.ordered(RailOrder(1, 5, ("red",), "a test"))
    assert relay.due(0) and not relay.due(1)
    assert relay.answered(RailsFollowed(3, 1, 5, False, "it is broken")) is record
    assert record.report().rail_trouble == "it is broken" and not relay.due(limits.ORDER_REPEAT_NS)
    assert relay.due(limits.RAIL_FOLLOW_NS) and not relay.due(limits.RAIL_FOLLOW_NS + 1)
    assert relay.answered(RailsFollowed(3, 1, 5, True, "bytes have moved")) is record
    assert (record.report().rail_trouble, record.report().rail_words) == ("", "bytes have moved")
    assert not relay.due(10 * limits.RAIL_FOLLOW_NS)
