"""Converts the manager's events and effects to a journal row and back. Pure functions.

A message is kept as the bytes of taskd.wire, everything else as a few msgpack values. Rows of older versions can be
read, too (taskd/wire/older.py). The effects of one event are one value, in order. So a comparison of bytes shows
whether a replay makes the same decisions. The term is left out, since a replay may run under another one.

It does NOT touch the database (journal.py) or the core (replay.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import msgpack

from taskd.core.effects import EndJob, ManagerEffect, Note, Tell
from taskd.core.events import (
    ConnectionLost,
    ErrandVerdict,
    ErrandWish,
    HangVerdict,
    ManagerEvent,
    PauseVerdict,
    PauseWish,
    ProofVerdict,
    RailVerdict,
    RailWish,
    Reached,
    Restarted,
    Said,
    Sender,
    Tick,
    Verdict,
)
from taskd.core.messages import (
    Answer,
    FromAgent,
    Order,
    PauseOrder,
    RailOrder,
    RanksEnded,
    ToAgent,
    Unmended,
)
from taskd.core.types import (
    ErrandFinding,
    ErrandKind,
    HangFinding,
    PauseFinding,
    PauseKind,
    ProofFinding,
    RailFinding,
    RankState,
    Stage,
    StopKind,
)
from taskd.core.words import join, rank_words
from taskd.wire import codec, older


class Unreadable(Exception):
    """A journal row that this version cannot read; the text is a sentence. Never leaves the process."""


def events_row(events: Iterable[ManagerEvent], job: str) -> bytes:
    """The events of one step as bytes."""
    packed: bytes = msgpack.packb([_event_row(event, job) for event in events], use_bin_type=True)
    return packed


def _event_row(event: ManagerEvent, job: str) -> list[Any]:
    if isinstance(event, Said):
        sender = event.sender
        return ["said", codec.encode(event.message, codec.Envelope(job, sender.node, sender.life, sender.sequence))]
    if isinstance(event, ConnectionLost):
        return ["lost", event.node]
    if isinstance(event, Verdict):
        return ["verdict", event.node, int(event.state), event.age_ns, event.reason]
    if isinstance(event, Reached):
        return ["reached", event.steps]
    if isinstance(event, RailWish):
        return ["rail wish", event.rail, list(event.nodes), event.out]
    if isinstance(event, RailVerdict):
        named = (event.rail, list(event.nodes), list(event.peers), event.reason, list(event.borrowers))
        return ["rail", int(event.finding), *named, event.borrowed, event.hedged, event.retransmitted]
    if isinstance(event, PauseWish):
        return ["pause wish", event.request, event.by, event.step, event.lease_ns]
    if isinstance(event, PauseVerdict):
        return ["pause", int(event.finding), event.step, list(event.nodes), event.reason]
    if isinstance(event, ErrandWish):
        about = (int(event.kind), list(event.ranks), event.node, event.lease_ns)
        return ["errand wish", event.request, event.by, *about]
    if isinstance(event, ErrandVerdict):
        return ["errand", int(event.finding), event.reason]
    if isinstance(event, HangVerdict):
        return ["hang", int(event.finding), event.age_ns, list(event.ranks), event.reason]
    if isinstance(event, ProofVerdict):
        where = (event.updates, event.layout, event.total, list(event.units), list(event.ranks))
        told = (event.named, event.harmless, event.item, event.reason, event.taken)
        return ["proof", int(event.finding), *where, *told]
    return ["tick" if isinstance(event, Tick) else "restarted"]


def events_of(data: bytes) -> list[ManagerEvent]:
    """The events of one step; raises Unreadable."""
    try:
        return [_event_of(kind, values) for kind, *values in msgpack.unpackb(data, raw=False)]
    except (ValueError, TypeError, IndexError, msgpack.UnpackException) as error:
        raise Unreadable(f"events that cannot be read ({error})") from None


def _event_of(kind: str, values: list[Any]) -> ManagerEvent:
    if kind == "tick":
        return Tick()
    if kind == "restarted":
        return Restarted()
    if kind == "lost":
        return ConnectionLost(_text(values[0]))
    if kind == "verdict":
        return Verdict(_text(values[0]), RankState(values[1]), int(values[2]), _text(values[3]))
    if kind == "reached":
        return Reached(int(values[0]))
    if kind == "rail wish":
        return RailWish(_text(values[0]), _texts(values[1]), bool(values[2]))
    if kind == "rail":
        finding, rail, nodes, peers, reason, borrowers, *cost = values
        named = (_text(rail), _texts(nodes), _texts(peers), _text(reason), _texts(borrowers))
        return RailVerdict(RailFinding(finding), *named, *(int(one) for one in cost))
    if kind == "pause wish":
        return PauseWish(_text(values[0]), _text(values[1]), int(values[2]), int(values[3]))
    if kind == "pause":
        finding, step, nodes, reason = values
        return PauseVerdict(PauseFinding(finding), int(step), _texts(nodes), _text(reason))
    if kind == "errand wish":
        request, by, errand, ranks, node, lease_ns = values
        who = (_text(request), _text(by))
        return ErrandWish(*who, ErrandKind(errand), _numbers(ranks), _text(node), int(lease_ns))
    if kind == "errand":
        return ErrandVerdict(ErrandFinding(values[0]), _text(values[1]))
    if kind == "proof":
        finding, updates, layout, total, units, ranks, named, harmless, item, reason, *rest = values
        where = (int(updates), int(layout), int(total), _numbers(units), _numbers(ranks))
        told = (bool(named), any(rest), bool(harmless))  # the rows of older versions have no rest
        return ProofVerdict(ProofFinding(finding), *where, *told, _text(item), _text(reason))
    if kind == "hang":
        finding, age_ns, ranks, reason = values
        return HangVerdict(HangFinding(finding), int(age_ns), _numbers(ranks), _text(reason))
    if kind != "said":
        raise Unreadable(f"an event of the unknown kind {kind!r}")
    decoded = codec.decode(values[0], older.OLDEST)
    if isinstance(decoded, codec.WireError):
        raise Unreadable(decoded.reason)
    envelope, message = decoded
    if not isinstance(message, FromAgent):
        raise Unreadable(f"a {type(message).__name__}, which no agent says")
    return Said(Sender(envelope.node, envelope.life, envelope.sequence), message)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Unreadable(f"{value!r} where a text was expected")
    return value


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(_text(value) for value in values)


def _numbers(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def effects_row(effects: Iterable[ManagerEffect]) -> bytes:
    """The effects of one event as bytes; a message to many nodes is written once."""
    rows: list[list[Any]] = []
    last: tuple[ToAgent, bytes] | None = None
    for effect in effects:
        if isinstance(effect, Tell):
            if last is None or last[0] is not effect.message:
                last = (effect.message, codec.encode(_without_term(effect.message), codec.Envelope("", "", 0, 0)))
            data = last[1]
            if rows and rows[-1][:3] == ["tell", data, effect.life]:
                rows[-1][3].append(effect.node)
            else:
                rows.append(["tell", data, effect.life, [effect.node]])
        elif isinstance(effect, Note):
            rows.append(["note", *dataclasses.astuple(effect)])
        else:
            rows.append(["end", effect.exit_code, effect.reason, int(effect.kind)])
    packed: bytes = msgpack.packb(rows, use_bin_type=True, unicode_errors="replace")
    return packed


def effects_of(data: bytes) -> list[ManagerEffect]:
    """The effects of one step (their terms are 0); raises Unreadable."""
    effects: list[ManagerEffect] = []
    try:
        for kind, *values in msgpack.unpackb(data, raw=False) if data else ():
            if kind == "note":
                effects.append(Note(*values))
            elif kind == "end":
                exit_code, reason, *stop = values  # versions before 15 wrote no kind
                effects.append(EndJob(exit_code, reason, StopKind(stop[0]) if stop else older.stop_kind(reason)))
            else:
                effects += _tells(*values)
    except (ValueError, TypeError, IndexError, msgpack.UnpackException) as error:
        raise Unreadable(f"effects that cannot be read ({error})") from None
    return effects


def _tells(data: bytes, life: int, nodes: list[str]) -> list[Tell]:
    decoded = codec.decode(data, older.OLDEST)
    if isinstance(decoded, codec.WireError):
        raise Unreadable(decoded.reason)
    message = decoded[1]
    if not isinstance(message, ToAgent):
        raise Unreadable(f"a {type(message).__name__}, which no manager says")
    return [Tell(node, message, life) for node in nodes]


def describe(effects: list[ManagerEffect]) -> list[str]:
    """Lines for people: one for each effect, but only one for the same message to several nodes."""
    lines: list[str] = []
    said: list[tuple[ToAgent, list[str]]] = []
    for effect in effects:
        if isinstance(effect, Tell):
            alike = next((nodes for message, nodes in said if message == effect.message), None)
            if alike is None:
                said.append((effect.message, [effect.node]))
            else:
                alike.append(effect.node)
        elif isinstance(effect, Note):
            lines.append(f"{effect.kind}: {effect.text}")
        else:
            lines.append(f"end of the job with exit code {effect.exit_code}: {effect.reason}")
    return [*lines, *(f"to {join(nodes)}: {_words(message)}" for message, nodes in said)]


_PAUSE = {
    PauseKind.FREE: "nothing is paused",
    PauseKind.ASK: "tell your step and begin no other one",
    PauseKind.STAND: "stand before step {step}",
}
_ASKED = {
    Stage.PARKED: "park",
    Stage.SAVED: "write the last checkpoint",
    Stage.REBUILT: "rebuild",
    Stage.RESTORED: "restore",
    Stage.RUNNING: "go on",
}


def _words(message: ToAgent) -> str:
    """The content of a message to a node, in words. The reason is in the decision that came before."""
    if isinstance(message, Order):
        asked = "start again" if message.fresh else _ASKED.get(message.stage, message.stage.name)
        text = f"epoch {message.epoch}: {asked}"
        text += f" from {message.updates} updates" if message.updates >= 0 else ""
        if message.stage is Stage.PARKED or message.fresh:
            seats = [f"rank {seat.rank} as incarnation {seat.incarnation} on {seat.node}" for seat in message.seats]
            text += f", {join(seats)}" if seats else ""
        return text
    if isinstance(message, Answer):
        if not message.accepted:
            return f"not let in: {message.reason}"
        known = [f"{rank_words(one.rank for one in message.confirmed)} confirmed"] if message.confirmed else []
        return "; ".join([*known, *(f"rank {one.rank} refused: {one.reason}" for one in message.refused)]) or "heard"
    if isinstance(message, RailOrder):
        out = f"without {', '.join(message.out)}" if message.out else "all in use"
        return f"rails: {out} ({message.reason})"
    if isinstance(message, RanksEnded):
        return f"nobody is to wait for {rank_words(message.ranks)} in epoch {message.epoch}"
    if isinstance(message, PauseOrder):
        return _PAUSE[message.kind].format(step=message.step)
    if isinstance(message, Unmended):
        return f"nothing that failed in epoch {message.epoch} is repaired ({message.reason})"
    return f"stop with exit code {message.exit_code} ({message.reason})"


def _without_term(message: ToAgent) -> ToAgent:
    return dataclasses.replace(message, term=0)
