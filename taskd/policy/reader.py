"""From a policy file's text to the core's Policy: each key is read once, unknown ones are refused.

The same text always gives the same policy, since the manager's journal keeps the text. Not here: the values (words),
and what contradicts itself (contradictions).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum
from typing import TypeVar

from taskd.core.limits import MAX_POLICY_RULES, SECOND
from taskd.core.policy.rules import Complete, Fail, Policy, Restart, Rule, Scope
from taskd.policy.contradictions import check
from taskd.policy.document import List, Mapping, Node, Source, Text, tree
from taskd.policy.words import COMPLETES, FAILS, RESTARTS, SCOPES, Words, nearest

E = TypeVar("E", bound=Enum)

WINDOW_MIN_S = 60
CONDITIONS = ("exitCodes", "signals", "exceptionalEvent", "logPattern")
RULE_KEYS = (*CONDITIONS, "restartPolicy", "restartScope", "restartLimit")
KEYS = (
    "faultTolerant",
    "completePolicy",
    "failPolicy",
    "minReplicas",
    "maxReplicas",
    "restartPolicy",
    "restartScope",
    "restartLimit",
    "jobRestartLimit",
    "restartWindow",
    "restartTimeLimit",
    "restartTimeout",
    "faultTolerantPolicy",
)
IDLE = ("minReplicas", "maxReplicas")
"""Keys that are read and do nothing: no job changes its size."""


def parse(source: Source) -> Policy:
    """Return the policy in this text. Raises UsageError with the line."""
    root, words = tree(source), Words(source)
    found = _keys(words, root, KEYS, "a policy")
    lines = {key.value: key.line for key, _ in root.items}
    restart = _one(words, "restartPolicy", found, RESTARTS, Restart.ALWAYS)
    policy = Policy(
        name=source.name,
        rules=_rules(words, found["faultTolerantPolicy"], restart) if "faultTolerantPolicy" in found else (),
        restart=restart,
        restart_line=lines.get("restartPolicy", 0),
        scope=_one(words, "restartScope", found, SCOPES, Scope.PROCESS),
        scope_line=lines.get("restartScope", 0),
        complete=_one(words, "completePolicy", found, COMPLETES, Complete.ALL),
        fail=_one(words, "failPolicy", found, FAILS, Fail.ANY),
        limit=_number(words, "restartLimit", found),
        job_limit=_number(words, "jobRestartLimit", found),
        window_ns=_time(words, "restartWindow", found, WINDOW_MIN_S),
        gap_ns=_time(words, "restartTimeLimit", found) or 0,
        timeout_ns=_time(words, "restartTimeout", found, 1),
    )
    check(words, policy, found, lines)
    if "faultTolerant" in found and not words.truth("faultTolerant", found["faultTolerant"]):
        return replace(policy, restart=Restart.NEVER, restart_line=lines["faultTolerant"])
    return policy


def idle(source: Source) -> list[str]:
    """The keys of a file that do nothing, for a warning."""
    return [key.value for key, _ in tree(source).items if key.value in IDLE]


def _one(words: Words, key: str, found: dict[str, Node], known: dict[str, E], default: E) -> E:
    return words.one(key, found[key], known) if key in found else default


def _number(words: Words, key: str, found: dict[str, Node]) -> int | None:
    return words.count(key, found[key]) if key in found else None


def _time(words: Words, key: str, found: dict[str, Node], low: int = 0) -> int | None:
    return words.seconds(key, found[key], low) * SECOND if key in found else None


def _keys(words: Words, mapping: Mapping, known: Iterable[str], what: str) -> dict[str, Node]:
    """The values by key. Raises UsageError at a key that is not known."""
    for key, _ in mapping.items:
        if key.value not in known:
            raise words.refuse(key.line, f"{key.value[:60]!r} is no key of {what}; {nearest(key.value, known)}")
    return {key.value: value for key, value in mapping.items}


def _rules(words: Words, node: Node, restart: Restart) -> tuple[Rule, ...]:
    if not isinstance(node, List) or not node.items:
        raise words.refuse(node.line, "faultTolerantPolicy takes a list of rules, each with a dash before it")
    if len(node.items) > MAX_POLICY_RULES:
        raise words.refuse(node.line, f"there are {len(node.items)} rules, and {MAX_POLICY_RULES} at most are read")
    return tuple(_rule(words, item, restart) for item in node.items)


def _rule(words: Words, node: Node, restart: Restart) -> Rule:
    """One rule. `restart`: the restartPolicy of a rule that has none of its own."""
    if not isinstance(node, Mapping) or not node.items:
        raise words.refuse(node.line, "a rule is a list of keys with values, such as exitCodes: 77")
    found = _keys(words, node, RULE_KEYS, "a rule")
    conditions = [key for key in found if key in CONDITIONS]
    if not conditions:
        names = f"{', '.join(CONDITIONS[:-1])} or {CONDITIONS[-1]}"
        raise words.refuse(node.line, f"this rule names no fault: add {names}, or write its keys at the top")
    codes = words.codes("exitCodes", found["exitCodes"]) if "exitCodes" in found else []
    codes += words.signals("signals", found["signals"]) if "signals" in found else []
    named = "exceptionalEvent" in found
    return Rule(
        line=node.line,
        events=words.events("exceptionalEvent", found["exceptionalEvent"]) if named else frozenset(),
        codes=tuple(codes),
        pattern=words.pattern("logPattern", found["logPattern"]) if "logPattern" in found else "",
        text=", ".join(f"{key}: {_written(found[key])}" for key in conditions)[:120],
        restart=_one(words, "restartPolicy", found, RESTARTS, restart),
        scope=words.one("restartScope", found["restartScope"], SCOPES) if "restartScope" in found else None,
        limit=_number(words, "restartLimit", found),
    )


def _written(node: Node) -> str:
    if isinstance(node, Text):
        return node.value.strip()
    return ",".join(_written(item) for item in node.items if isinstance(item, Text)) if isinstance(node, List) else ""
