"""The state of the rails as plain values for people and programs: what `taskd rail list` shows.

It reads the decisions of the rails machine and the reports, and changes nothing. Ages are in milliseconds.
"""

from __future__ import annotations

from typing import Any

from taskd.core.events import RailWish
from taskd.core.rails.rails import Rails
from taskd.core.rails.records import RESTING, Use
from taskd.core.rails.watch import RailWatch
from taskd.core.types import RailState
from taskd.core.words import join, milliseconds

_WORST = (RailState.UP, RailState.SUSPECT, RailState.PROBING, RailState.DOWN)


def of_rails(rails: Rails, watch: RailWatch, at: int) -> dict[str, Any]:
    """Every rail of every node, and the change that is under way, or else the last change."""
    seen = {key for key, peers in watch.sightings.peers.items() if peers}
    names = sorted(seen | {key for key, rail in rails.standing.known.items() if not rail.idle})
    shuffle = rails.shuffle or rails.last
    return {
        "rails": [_rail(rails, watch, node, name, at) for node, name in names],
        "change": None
        if shuffle is None
        else {
            "rail": shuffle.rail,
            "nodes": list(shuffle.nodes),
            "number": shuffle.number,
            "returns": shuffle.returns,
            "operator": shuffle.operator,
            "under_way": rails.shuffle is not None,
            "followed": shuffle.followed,
            "outcome": shuffle.outcome,
            "words": shuffle.words,
        },
    }


def _rail(rails: Rails, watch: RailWatch, node: str, name: str, at: int) -> dict[str, Any]:
    rail = rails.standing.known.get((node, name))
    peers = sorted(watch.sightings.peers.get((node, name), set()))
    lines = [_line(rails, watch, node, name, peer, at) for peer in peers]
    seen = [watch.sightings.of((node, name, peer)).report for peer in peers]
    state = max((rails.standing.state(node, name, peer) for peer in peers), key=_WORST.index, default=RailState.UP)
    in_use = rail is None or rail.use is Use.IN_USE
    lent = [line for line in lines if line["state"] in ("down", "probing")] if in_use else lines
    borrowers = sorted({one for line in lent for one in watch.carriers.of(node, name, line["peer"])})
    since = max((line["age_ms"] for line in lines if line["state"] != "up"), default=None)
    return {
        "node": node,
        "rail": name,
        "state": state.name.lower(),
        "use": Use.IN_USE.value if rail is None else rail.use.value,
        "age_ms": since if rail is None or rail.use is Use.IN_USE else milliseconds(max(at - rail.since, 0)),
        "reason": "" if rail is None else rail.reason,
        "borrowers": borrowers,
        "bytes_in": sum(report.bytes_in for report in seen),
        "bytes_out": sum(report.bytes_out for report in seen),
        "round_trip_ns": max((report.round_trip_ns for report in seen), default=0),
        "hedged": sum(report.hedged for report in seen),
        "retransmitted": sum(report.retransmitted for report in seen),
        "last_error": next((report.last_error for report in seen if report.last_error), 0),
        "back_off_ms": 0 if rail is None else milliseconds(rail.back_off_ns),
        "lines": lines,
    }


def _line(rails: Rails, watch: RailWatch, node: str, name: str, peer: str, at: int) -> dict[str, Any]:
    report = watch.sightings.of((node, name, peer)).report
    rail = rails.standing.known.get((node, name))
    line = rail.lines.get(peer) if rail is not None else None
    return {
        "peer": peer,
        "state": rails.standing.state(node, name, peer).name.lower(),
        "age_ms": report.age_ms if line is None else milliseconds(max(at - line.since, 0)),
        "pairs": report.pairs,
        "pairs_up": report.pairs_up,
        "bytes_in": report.bytes_in,
        "bytes_out": report.bytes_out,
    }


def wish(rails: Rails, watch: RailWatch, name: str, node: str, out: bool) -> RailWish | str:
    """An operator's wish with its nodes filled in, or the sentence that says why it is not possible."""
    reached = watch.sightings.peers
    having = sorted(where for where, rail in reached if rail == name and reached[where, rail])
    if not having:
        names = sorted({rail for (_, rail), peers in reached.items() if peers})
        return f"there is no rail {name[:40]!r}; this job has {join(names) if names else 'none that is reported'}"
    if node and node not in having:
        return f"node {node[:40]} has no rail {name}; {join(having)} {'has' if len(having) == 1 else 'have'} it"
    wanted = [node] if node else having
    if rails.shuffle is not None:
        busy = rails.shuffle
        return f"busy: rail {busy.rail} of {join(busy.nodes)} is being changed; try again when that has ended"
    if not out:
        resting = [where for where in wanted if rails.standing.use(where, name) is Use.OUT]
        if resting:
            return RailWish(name, tuple(resting), out)
        lent = [where for where in wanted if rails.standing.use(where, name) in RESTING]
        how = "is borrowed and comes back by itself" if lent else "is in use already"
        return f"rail {name} of {join(lent or wanted)} {how}"
    wanted = [where for where in wanted if rails.standing.use(where, name) is not Use.OUT]
    if not wanted:
        return f"rail {name} is out of use already"
    for where in wanted:
        for peer in sorted(reached[where, name]):
            # A peer's resting rail may have a name that this node lacks. It may be the other end of any rail here.
            resting = [one for one in rails.standing.out(peer) if one not in watch.sightings.names(where)]
            if len(watch.carriers.of(where, name, peer)) <= len(resting):
                between = f"within {where}" if where == peer else f"between {where} and {peer}"
                return f"rail {name} is the only one that carries {between}: it stays in use"
    return RailWish(name, tuple(wanted), out)
