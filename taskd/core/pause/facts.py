"""The state of a pause as plain values for people and programs: what `taskd pause` and `taskd status` show.

A module of its own, like the facts of rails: it reads the pause and changes nothing. Times are in milliseconds.
"""

from __future__ import annotations

from typing import Any

from taskd.core import limits
from taskd.core.membership import Membership
from taskd.core.pause.pauses import Pause, Pauses
from taskd.core.words import milliseconds


def of_pause(pauses: Pauses, now: int) -> dict[str, Any] | None:
    """Return the pause that is under way. None: there is none."""
    return None if pauses.pause is None else _pause(pauses.pause, now)


def of_ranks(pauses: Pauses, members: Membership, now: int) -> dict[str, Any]:
    """Return the pause that is under way, the one before it, and what each rank has answered to the newest order."""
    answers = [pauses.answer(record.rank) for record in members.ranks]
    return {
        "pause": of_pause(pauses, now),
        "last": None if pauses.last is None else _pause(pauses.last, now),
        "resumed_by": pauses.resumed,
        "order": pauses.number,
        "answered": sum(answer is not None for answer in answers),
        "standing": sum(answer is not None and answer.stands for answer in answers),
        "world_size": members.world_size,
        "ranks": [
            {
                "rank": record.rank,
                "node": record.where,
                "answered": answer is not None,
                "stands": answer is not None and answer.stands,
                "next_step": -1 if answer is None else answer.begun + 1,
                "trouble": "" if answer is None else answer.trouble,
            }
            for record, answer in zip(members.ranks[: limits.STATUS_ROWS], answers, strict=False)
        ],
    }


def _pause(pause: Pause, now: int) -> dict[str, Any]:
    return {
        "request": pause.request,
        "by": pause.by,
        "state": pause.state.value,
        "step": pause.step,  # the agreed one; -1: none yet
        "wanted": pause.wanted,  # the operator's own; -1: none
        "place": pause.place,
        "lease_ms": milliseconds(pause.lease_ns),
        "left_ms": None if pause.until is None else milliseconds(max(pause.until - now, 0)),
        "outcome": pause.outcome,  # empty while it is under way
        "words": pause.words,
    }
