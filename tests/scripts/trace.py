"""Turns effects into readable lines. Equal lines of several ranks or nodes at one instant become one."""

from __future__ import annotations

from taskd.core.effects import LetGo, Park, Quit, Rebuild, Restore, Resume, Save, Tell
from taskd.core.messages import Order, PauseOrder, RailOrder, RanksEnded, Stop, Unmended
from taskd.core.words import rank_words


def order_words(order: Order) -> str:
    """Return an order's line: `order: epoch 2 PARKED, seats 2#2@a`."""
    words = f"order: epoch {order.epoch} {order.stage.name}"
    if order.term > 1:
        words += f" (term {order.term})"
    if order.updates >= 0:
        words += f", updates {order.updates}"
    if order.seats:
        words += ", seats " + " ".join(f"{seat.rank}#{seat.incarnation}@{seat.node}" for seat in order.seats)
    if order.savers:
        words += ", " + " and ".join(f"{rank} saves" for rank in order.savers)
    if order.fetches:
        words += ", fetch " + " ".join(f"{fetch.source}>{fetch.rank}" for fetch in order.fetches)
    return words


def tell(effect: Tell) -> str:
    """Return the line for what the manager tells a node."""
    message = effect.message
    if isinstance(message, Order):
        return f"-> {effect.node} | {order_words(message)}"
    if isinstance(message, Stop):
        return f"-> {effect.node} | stop, exit code {message.exit_code}"
    if isinstance(message, Unmended):
        return f"-> {effect.node} | what failed in epoch {message.epoch} is not repaired"
    if isinstance(message, RanksEnded):
        return f"-> {effect.node} | {rank_words(message.ranks)} ended in epoch {message.epoch}"
    if isinstance(message, RailOrder):
        out = f"without {' '.join(message.out)}" if message.out else "all in use"
        return f"-> {effect.node} | rail order {message.number}: {out}"
    if isinstance(message, PauseOrder):
        what = f"{message.kind.name}{f' before step {message.step}' if message.step >= 0 else ''}"
        left = f", {message.left_ms} ms {'left' if message.counts else 'from then on'}" if message.kind else ""
        return f"-> {effect.node} | pause order {message.number}: {what}{left}"
    return f"-> {effect.node} | refused: {message.reason}"


def worker_effect(effect: object) -> str:
    """Return the line for what a worker has to do."""
    if isinstance(effect, Park):
        return f"parks, epoch {effect.epoch}"
    if isinstance(effect, Save):
        return f"hears who saves, epoch {effect.order.epoch}"
    if isinstance(effect, Rebuild):
        return f"rebuilds, epoch {effect.order.epoch}"
    if isinstance(effect, Restore):
        return f"restores updates {effect.order.updates}"
    if isinstance(effect, LetGo):
        return "raises what has failed"
    if isinstance(effect, Resume):
        return f"resumes after updates {effect.updates}"
    assert isinstance(effect, Quit)
    return f"quits with exit code {effect.exit_code}: {effect.reason}"


def text(lines: list[tuple[int, str, str]]) -> str:
    """Return the trace. Ranks that do the same in one millisecond share a line. So do nodes that get one message."""
    merged: list[tuple[int, list[str], str, str]] = []  # millisecond, names, role, what
    told: dict[str, str] = {}
    again = 0
    for at, who, what in lines:
        if what.startswith("-> "):
            node = what[3:].partition(" | ")[0]
            if told.get(node) == what:
                again += 1
                continue
            told[node] = what
        role, name = who, ""
        if who.startswith("rank "):
            role, name = "rank", who[5:]
        elif what.startswith("-> "):
            name, _, what = what[3:].partition(" | ")
            role = "tell"
        millisecond = at // 1_000_000
        same = next((row for row in merged if (row[0], row[2], row[3]) == (millisecond, role, what) and name), None)
        if same is not None:
            same[1].append(name)
        else:
            merged.append((millisecond, [name] if name else [], role, what))
    out = []
    for millisecond, names, role, what in merged:
        if role == "rank":
            who = rank_words(int(name) for name in names)
        elif role == "tell":
            who = "manager -> " + " ".join(names)
        else:
            who = role if role in ("manager", "facts", "operator") else f"node {role}"
        out.append(f"{millisecond / 1000:9.3f}  {who}: {what}")
    if again:
        out.append(f"           (the manager said its last word again {again} times)")
    return "\n".join(out) + "\n" if out else "(nothing)\n"
