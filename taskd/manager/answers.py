"""The answers to operators: the JSON behind `taskd status`, `events`, `incidents`, `rail`, `pause`
and `restart-rank`.

Each answer is one JSON object. It is made from the core's facts, the manager's facts about itself, and the notes kept
for people. An answer that is too large for a message is shortened, and says by how much. The functions are pure, except
for the functions that they are given.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from taskd.core import limits
from taskd.core.events import ErrandWish, PauseWish
from taskd.core.messages import Reply
from taskd.core.types import ErrandKind
from taskd.manager.snapshot import Told

ROOM = limits.MAX_REPLY_TEXT - 64 * 1024
"""How many bytes of text an answer may have, without the envelope."""


def status(facts: Callable[[int], dict[str, Any]], argument: str, manager: dict[str, Any]) -> Reply:
    """The state of the job: the core's facts, and the manager's facts about itself.

    The core's facts begin at the position in `argument` (empty: the first part)."""
    if argument and not (argument.isascii() and argument.isdigit()):
        return Reply(False, f"the status goes on from a number, {argument[:40]!r} is none")
    return _reply({**facts(int(argument[:18] or 0)), "manager": manager}, "ranks")


def events(notes: Iterable[Told], argument: str, last: int) -> Reply:
    """The notes after the number in `argument` (empty: all that are kept), and the number of the last note."""
    if argument and not (argument.isascii() and argument.isdigit()):
        return Reply(False, f"events come after a number, {argument[:40]!r} is none")
    after = int(argument[:18]) if argument else 0
    rows = [
        {
            "number": told.number,
            "wall_ns": told.wall_ns,
            "kind": told.note.kind,
            "text": told.note.text,
            "rank": told.note.rank,
            "node": told.note.node,
            "epoch": told.note.epoch,
            "incident": told.note.incident,
        }
        for told in notes
        if told.number > after
    ]
    return _reply({"events": rows, "last": last}, "events")


def incidents(known: list[dict[str, Any]], argument: str, wall_ns: Callable[[int], int]) -> Reply:
    """All incidents, or the one with the number `argument`. `wall_ns` converts the core's times to wall-clock times."""
    known = [_dated(incident, wall_ns) for incident in known]
    if not argument:
        return _reply({"incidents": known}, "incidents")
    found = [incident for incident in known if str(incident["id"]) == argument.strip()]
    if not found:
        names = ", ".join(str(incident["id"]) for incident in known[-20:]) or "none"
        return Reply(False, f"there is no incident {argument[:40]}; known are: {names}")
    return _reply({"incidents": found}, "incidents")


def rails(facts: dict[str, Any]) -> Reply:
    """The state of every rail, from the core's facts."""
    return _reply(facts, "rails")


def rail_wish(argument: str) -> tuple[str, str] | None:
    """The rail and the node (empty: all) in the argument of an operator's order; None: it names no rail.

    The node is on a line of its own, since a name may have spaces."""
    rail, _, node = argument.partition("\n")
    return (rail, node) if rail else None


def pauses(facts: dict[str, Any]) -> Reply:
    """The pause of the job and what each rank has answered, from the core's facts."""
    return _reply(facts, "ranks")


def errand(facts: dict[str, Any]) -> Reply:
    """The same without the ranks, for those who look again and again."""
    return Reply(True, _text({name: value for name, value in facts.items() if name != "ranks"}))


def pause_wish(argument: str, resumes: bool, usual_ms: int, longest_ms: int) -> PauseWish | str:
    """An operator's wish, or the sentence that says what is wrong with it. Its lines are the request and the operator;
    for a pause, the step (-1: none) and the milliseconds (0: as usual), too."""
    request, by, *numbers = argument.split("\n")
    if not request or not by or len(numbers) != (0 if resumes else 2):
        return "a pause is asked for by request, operator, step and milliseconds, a resume by request and operator"
    if resumes:
        return PauseWish(request, by)
    try:
        step, lease_ms = (int(number) for number in numbers)
    except ValueError:
        return f"the step and the milliseconds of a pause are whole numbers, not {' and '.join(numbers)[:80]!r}"
    if not -1 <= step <= limits.MAX_STEP:
        return f"a step is a whole number from 0 on, not {step}"
    lease_ms = lease_ms or usual_ms
    if not 0 < lease_ms <= longest_ms:
        return f"a pause lasts from 1 ms to {longest_ms / 1000:g} s at most (pause.limit_ms); then it is renewed"
    return PauseWish(request, by, step, lease_ms * limits.MS)


def errand_wish(argument: str, kind: ErrandKind, longest_ms: int) -> ErrandWish | str:
    """An operator's wish, or the sentence that says what is wrong with it. Its lines are the request, the operator, and
    the rank or the node. To stop the job needs none, but may name a node whose launcher was told to end. `longest_ms`:
    how long ranks may stand."""
    request, by, *named = argument.split("\n")
    lease_ns = min(limits.ERRAND_LEASE_NS, longest_ms * limits.MS)
    if request and by and not named and kind.stops:
        return ErrandWish(request, by, kind, (), "", lease_ns)
    if request and by and len(named) == 1 and named[0] and kind is ErrandKind.SAVE:
        return ErrandWish(request, by, kind, (), named[0], longest_ms * limits.MS)  # its launcher knows how long
    if not request or not by or len(named) != 1 or not named[0] or kind.stops:
        return "an errand is asked for by request, operator, and the rank or the node, if it is about one"
    if kind is not ErrandKind.RESTART:
        return ErrandWish(request, by, kind, (), named[0], lease_ns)
    if not (named[0].isascii() and named[0].isdigit()):
        return f"a rank is a whole number from 0 on, not {named[0][:40]!r}"
    return ErrandWish(request, by, kind, (int(named[0][:18]),), "", lease_ns)


def _dated(incident: dict[str, Any], wall_ns: Callable[[int], int]) -> dict[str, Any]:
    closed_at_ns = incident["closed_at_ns"]
    return {
        **incident,
        "opened_wall_ns": wall_ns(incident["opened_at_ns"]),
        "closed_wall_ns": None if closed_at_ns is None else wall_ns(closed_at_ns),
    }


def _reply(answer: dict[str, Any], longest: str) -> Reply:
    text = _text(answer)
    while len(text.encode()) > ROOM:
        rows = answer[longest]
        kept = max(1, len(rows) * ROOM // len(text.encode()) * 9 // 10)
        left_out = answer.get("left_out", 0) + len(rows) - kept
        # Of a history, keep the newest rows. Of the ranks, keep the first: the rest can be asked for.
        answer = {**answer, longest: rows[:kept] if longest == "ranks" else rows[-kept:], "left_out": left_out}
        text = _text(answer)
    return Reply(True, text)


def _text(answer: dict[str, Any]) -> str:
    return json.dumps(answer, separators=(",", ":"), ensure_ascii=False)
