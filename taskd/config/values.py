"""Judging values: text or YAML in, a typed value out, or one sentence that says what was wrong and what is allowed.

All functions here are pure. A refusal is a `Refused` whose text the loader completes with the setting's path and
source. The spellings of the original (on/off switches that only know one word, HCCL's "MaxCnt:3, HoldTime:5000") are
understood here too. Nothing here looks at the environment or at files.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from taskd.config.tree import PAUSE_LIMIT_MS_MAX, RETRY_LEVELS, Leaf, leaves

TEXT_MAX = 4096
YES = ("on", "true", "yes", "1", "enable", "enabled")
NO = ("off", "false", "no", "0", "disable", "disabled")
RETRY_KEYS = {"maxcnt": "retry.max_count", "holdtime": "retry.hold_ms", "intervaltime": "retry.interval_ms"}


class Refused(ValueError):
    """A value that does not fit; the text says what was wrong, `allowed` what would have fitted."""

    def __init__(self, wrong: str, allowed: str) -> None:
        super().__init__(wrong)
        self.wrong = wrong
        self.allowed = allowed


def allowed_text(leaf: Leaf) -> str:
    """What a setting takes, in words."""
    meta = leaf.meta
    if meta["choices"]:
        names = ", ".join(meta["choices"])
        return f"a comma list of {names}" if leaf.kind.startswith("tuple") else names
    if leaf.kind == "int":
        return f"a whole number from {meta['low']} to {meta['high']}"
    if leaf.kind == "bool":
        return "on or off"
    return str(meta["allowed"]) or "text"


def check(leaf: Leaf, value: Any) -> Any:
    """The typed value of a setting; raises Refused."""
    return _KINDS[leaf.kind](leaf, value)


def _int(leaf: Leaf, value: Any) -> int:
    allowed = allowed_text(leaf)
    if isinstance(value, str):
        text = value.strip()
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
            raise Refused(f"{_shown(leaf, value)} is not a whole number", allowed)
        value = int(text)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refused(f"{_shown(leaf, value)} is not a whole number", allowed)
    low, high = leaf.meta["low"], leaf.meta["high"]
    if value < low or value > high:
        raise Refused(f"{value} is too {'small' if value < low else 'large'}", allowed)
    return value


def _bool(leaf: Leaf, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower() if isinstance(value, (str, int)) else ""
    if text in YES:
        return True
    if text in NO:
        return False
    raise Refused(f"{_shown(leaf, value)} is neither on nor off", allowed_text(leaf))


def _str(leaf: Leaf, value: Any) -> str:
    allowed = allowed_text(leaf)
    if not isinstance(value, str):
        cure = "; put it in quotes" if isinstance(value, (int, float)) else ""
        raise Refused(f"{_shown(leaf, value)} is not text{cure}", allowed)
    if len(value) > TEXT_MAX or "\0" in value:
        raise Refused(f"the text is longer than {TEXT_MAX} characters or holds a zero byte", allowed)
    choices = leaf.meta["choices"]
    if choices:
        value = value.strip().lower()
        value = {"warn": "warning", "fatal": "critical"}.get(value, value) if "warning" in choices else value
        if value not in choices:
            raise Refused(f"{_shown(leaf, value)} is not one of them", allowed)
    elif leaf.meta["pattern"] and not re.fullmatch(leaf.meta["pattern"], value):
        raise Refused(f"{_shown(leaf, value)} does not fit", allowed)
    return value


def _names(leaf: Leaf, value: Any) -> tuple[str, ...]:
    allowed = allowed_text(leaf)
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        raise Refused(f"{_shown(leaf, value)} is not a list of names", allowed)
    choices = leaf.meta["choices"]
    given = {_name_in(choices, name) for name in value}
    unknown = sorted(given.difference(choices))
    if unknown:
        raise Refused(f"{', '.join(map(repr, unknown))} is not one of them", allowed)
    return tuple(name for name in choices if name in given)


def _name_in(choices: tuple[str, ...], name: str) -> str:
    folded = name.strip().lower().replace("_", "-")
    return next((choice for choice in choices if choice.lower() == folded), name.strip())


def _shown(leaf: Leaf, value: Any) -> str:
    if leaf.meta["secret"]:
        return "the value (hidden)"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


_KINDS: dict[str, Callable[[Leaf, Any], Any]] = {"int": _int, "bool": _bool, "str": _str, "tuple[str, ...]": _names}


# Variables of the original whose words differ from ours: there only one word counts, anything else is the opposite.
def only_off(text: str) -> bool:
    """TASKD_PROCESS_ENABLE: only "off" disables."""
    return text.strip().lower() != "off"


def only_on(text: str) -> bool:
    """PROCESS_RECOVER and ENABLE_RESTART_FAULT_PROCESS: only "on" (or another plain yes) enables."""
    return text.strip().lower() in YES


SPELLINGS: dict[str, Callable[[str], Any]] = {
    "TASKD_PROCESS_ENABLE": only_off,
    "PROCESS_RECOVER": only_on,
    "ENABLE_RESTART_FAULT_PROCESS": only_on,
}


# Variables that set more than one option, or one in another unit.
def retry(value: Any) -> dict[str, Any]:
    """TASKD_RETRY: "off", "on", or any of HCCL's pairs: "MaxCnt:3, HoldTime:5000, IntervalTime:1000, L0:0"."""
    text = value.strip().lower() if isinstance(value, str) else value
    if text is False or text in NO:
        return {"retry.levels": ()}
    if text is True or text in YES:
        return {"retry.levels": RETRY_LEVELS}
    return _pairs(
        str(value), RETRY_KEYS, 'off, on, or pairs like "MaxCnt:3, HoldTime:5000, IntervalTime:1000, L0:0"', True
    )


def retry_levels(text: str) -> dict[str, Any]:
    """HCCL_OP_RETRY_ENABLE: "L0:0, L1:1, L2:1"; a level that is not named is off, as it is there."""
    found = _pairs(text, {}, 'pairs like "L0:0, L1:1, L2:1"', True)
    given = {part.split(":")[0].strip().upper() for part in text.split(",")}
    return {"retry.levels": tuple(level for level in found["retry.levels"] if level in given)}


def retry_params(text: str) -> dict[str, Any]:
    """HCCL_OP_RETRY_PARAMS: "MaxCnt:3, HoldTime:5000, IntervalTime:1000"; what is not named keeps its default."""
    return _pairs(text, RETRY_KEYS, 'pairs like "MaxCnt:3, HoldTime:5000, IntervalTime:1000"', False)


def pause_limit(text: str) -> dict[str, Any]:
    """HCCL_CONNECT_TIMEOUT in seconds: 2.5 times it bounds a pause, 7200 s at most."""
    if not re.fullmatch(r"[0-9]{1,9}", text.strip()) or int(text) < 1:
        raise Refused(f"{text!r} is not a whole number of seconds", "a whole number of seconds from 1 on")
    return {"pause.limit_ms": min(int(text) * 2500, PAUSE_LIMIT_MS_MAX)}


def _pairs(text: str, keys: dict[str, str], allowed: str, with_levels: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    levels = set(RETRY_LEVELS)
    level_given = False
    for part in text.split(","):
        name, colon, number = (piece.strip() for piece in part.partition(":"))
        if with_levels and colon and name.upper() in RETRY_LEVELS:
            if number not in ("0", "1"):
                raise Refused(f"{name}:{number!r} is neither 0 nor 1", allowed)
            level_given = True
            if number == "0":
                levels.discard(name.upper())
        elif colon and name.lower() in keys:
            path = keys[name.lower()]
            try:
                found[path] = check(leaves()[path], number)
            except Refused as refused:
                raise Refused(f"{name}: {refused.wrong}", f"{name} {refused.allowed}") from None
        else:
            raise Refused(f"{part.strip()!r} is not understood", allowed)
    if level_given:
        found["retry.levels"] = tuple(level for level in RETRY_LEVELS if level in levels)
    return found


COMPOSITES: dict[str, Callable[[str], dict[str, Any]]] = {
    "TASKD_RETRY": retry,
    "HCCL_OP_RETRY_ENABLE": retry_levels,
    "HCCL_OP_RETRY_PARAMS": retry_params,
    "HCCL_CONNECT_TIMEOUT": pause_limit,
}
