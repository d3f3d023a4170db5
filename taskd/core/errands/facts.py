"""The state of an errand as plain values for people and programs: what `taskd restart-rank` and `drain-node` show.

A module of its own, like the facts of pauses: it reads the errand and changes nothing.
"""

from __future__ import annotations

from typing import Any

from taskd.core import limits
from taskd.core.errands.errands import Errand, Errands, ErrandState
from taskd.core.membership import Membership


def of_errand(errands: Errands, members: Membership, request: str = "") -> dict[str, Any] | None:
    """Return the errand of this request, or (empty) the one that is under way. None: there is none."""
    errand = errands.known(request) if request else errands.errand
    return None if errand is None else _errand(errand, members)


def _errand(errand: Errand, members: Membership) -> dict[str, Any]:
    over = errand.state is ErrandState.ENDED
    rows = []
    for rank in errand.wish.ranks[: limits.STATUS_ROWS]:
        record, before = members.ranks[rank], errand.before[rank]
        incarnation, where = errand.after[rank] if over else (record.incarnation, record.where)
        row = {"rank": rank, "node": before[1], "incarnation": before[0], "node_now": where}
        rows.append({**row, "incarnation_now": incarnation, "replaced": incarnation != before[0]})
    return {
        "request": errand.wish.request,
        "by": errand.wish.by,
        "what": errand.what,
        "stops": errand.wish.kind.stops,
        "state": errand.state.value,
        "over": over,
        "done": errand.done,
        "words": errand.words,  # empty while it is under way
        "incident": errand.incident,  # 0: its ranks are not ended yet
        "ranks": rows,
    }
