"""Tests plain attributes of optimizers: put back whole, taken from another rank if they began equal, never deleted."""

from __future__ import annotations

import enum
from types import SimpleNamespace
from typing import Any

from taskd.state.attributes import Attributes


class Stage(enum.IntEnum):
    EARLY = 1
    MAIN = 2


def rank(**own: Any) -> tuple[SimpleNamespace, Attributes]:
    """Return an optimizer as one rank has set it up, at the begin of its loop."""
    optimizer = SimpleNamespace(**own)
    attributes = Attributes({"optimizer": optimizer})
    attributes.look()
    return optimizer, attributes


def test_a_step_that_is_given_up_leaves_nothing() -> None:
    optimizer, attributes = rank(updates=3, cache=[1], kept="x")
    noted = attributes.note()
    optimizer.updates, optimizer.cache, optimizer.fresh = 4, None, 1
    del optimizer.kept
    attributes.put_back(noted)
    assert vars(optimizer) == {"updates": 3, "cache": None, "kept": "x"}  # what was not plain stays as it is


def test_who_lacks_an_update_takes_what_it_moved() -> None:
    giver, theirs = rank(updates=0, rate=0.1, none=None)
    taker, mine = rank(updates=0, rate=0.1, none=None)
    giver.updates, giver.rate, giver.fresh = 5, 0.2, True
    taker.updates = 4
    mine.take(theirs.tell())
    assert vars(taker) == {"updates": 5, "rate": 0.2, "none": None, "fresh": True}


def test_what_is_a_ranks_own_is_left() -> None:
    giver, theirs = rank(rank=0, seed=10, path="0", ema=None, cache=None, stage=Stage.EARLY)
    taker, mine = rank(rank=1, seed=11, path="1", ema=None, cache=None, stage=Stage.EARLY)
    giver.seed, giver.path, giver.ema, giver.stage = 12, "0-1", [1.0], Stage.MAIN
    taker.cache, taker.own = [2.0], 7
    mine.take(theirs.tell())
    assert vars(taker) == {
        "rank": 1,
        "seed": 11,
        "path": "1",
        "ema": None,
        "cache": [2.0],
        "own": 7,
        "stage": Stage.EARLY,  # not a plain value
    }


def test_one_that_is_registered_for_a_later_loop_is_carried_too() -> None:
    owners: dict[str, Any] = {"first": SimpleNamespace(n=0)}
    attributes, others = Attributes(owners), Attributes({"first": SimpleNamespace(n=0), "second": SimpleNamespace(n=0)})
    attributes.look()
    owners["first"].n = 2
    owners["second"] = SimpleNamespace(n=0)
    attributes.look()
    others.look()
    owners["second"].n = 9
    others.take(attributes.tell())
    assert others.tell() == {"first": [{"n": 0}, {"n": 2}], "second": [{"n": 0}, {"n": 9}]}


def test_what_has_no_attributes_has_none() -> None:
    attributes = Attributes({"optimizer": 3})
    attributes.look()
    attributes.put_back(attributes.note())
    attributes.take(attributes.tell())
    assert attributes.tell() == {"optimizer": [{}, {}]}
