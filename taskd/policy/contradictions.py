"""What contradicts itself in a policy, and what could never end: refused, with the line and the way out.

A policy is written once and met months later, in a fault. So all that can be known to be wrong is said at the start.
Not here: single words and numbers (words).
"""

from __future__ import annotations

from taskd.core.limits import SECOND
from taskd.core.policy.rules import Event, Fail, Policy, Restart, Rule
from taskd.policy.document import Node, Text
from taskd.policy.words import Words

_RESTARTS_BY_CODE = (Restart.EXIT_CODE, Restart.ON_NODE_FAIL_OR_EXIT_CODE)
_RESTARTS_BY_NODE = (Restart.ON_NODE_FAIL, Restart.ON_NODE_FAIL_OR_EXIT_CODE)


def check(words: Words, policy: Policy, found: dict[str, Node], lines: dict[str, int]) -> None:
    """Raise UsageError if the policy contradicts itself or could never end."""
    _tolerance(words, policy, found, lines)
    _sizes(words, found, lines)
    _ends(words, policy, found, lines)
    for rule in policy.rules:
        _rule(words, policy, rule)
    _reached(words, policy)
    listed = any(rule.codes and rule.restart is not Restart.NEVER for rule in policy.rules)
    if policy.restart is Restart.EXIT_CODE and not listed:
        text = (
            "restartPolicy ExitCode starts only what a rule lists, and no rule lists exit codes: add one or write Never"
        )
        raise words.refuse(lines["restartPolicy"], text)


def _tolerance(words: Words, policy: Policy, found: dict[str, Node], lines: dict[str, int]) -> None:
    if "faultTolerant" not in found or words.truth("faultTolerant", found["faultTolerant"]):
        return
    others = [key for key in found if key.startswith(("restart", "jobRestart", "faultTolerantPolicy"))]
    if others:
        text = f"faultTolerant is false, so nothing starts again, but {others[0]} says how: leave one of them out"
        raise words.refuse(lines["faultTolerant"], text)


def _sizes(words: Words, found: dict[str, Node], lines: dict[str, int]) -> None:
    sizes = [words.number(key, found[key], 1, 1 << 20) for key in ("minReplicas", "maxReplicas") if key in found]
    if len(sizes) == 2 and sizes[0] > sizes[1]:
        raise words.refuse(lines["minReplicas"], f"minReplicas {sizes[0]} is more than maxReplicas {sizes[1]}")


def _ends(words: Words, policy: Policy, found: dict[str, Node], lines: dict[str, int]) -> None:
    """Whether every job under this policy ends one day."""
    complete = found.get("completePolicy")
    if policy.fail is Fail.NONE and isinstance(complete, Text) and complete.value.strip() == "None":
        text = "completePolicy None and failPolicy None together never end a job: write completePolicy: All"
        raise words.refuse(lines["completePolicy"], text)
    if policy.limit == 0 and policy.restart is not Restart.NEVER:
        raise words.refuse(lines["restartLimit"], "restartLimit 0 starts nothing again: write restartPolicy: Never")
    if policy.job_limit == 0:
        raise words.refuse(
            lines["jobRestartLimit"], "jobRestartLimit 0 starts nothing again: write restartPolicy: Never"
        )
    if policy.window_ns is None:
        return
    if policy.limit is None and policy.job_limit is None:
        text = "restartWindow needs a limit that holds within it: add restartLimit or jobRestartLimit"
        raise words.refuse(lines["restartWindow"], text)
    limits = (("restartLimit", policy.limit, policy.gap_ns), ("jobRestartLimit", policy.job_limit, 0))
    for key, limit, gap_ns in limits:
        if limit is not None and limit * max(gap_ns, SECOND) >= policy.window_ns:
            window_s, gap_s = policy.window_ns // SECOND, max(gap_ns // SECOND, 1)
            text = (
                f"{key} {limit} is never reached within the {window_s} s of restartWindow at one start in {gap_s} s, "
                "so a job that fails for ever would never end: write a longer restartWindow"
            )
            raise words.refuse(lines[key], text)


def _rule(words: Words, policy: Policy, rule: Rule) -> None:
    node_only = rule.events == {Event.NODE_LOST}
    if rule.codes and rule.events and not rule.events & {Event.PROCESS_EXIT, Event.EXCEPTION, Event.OUT_OF_MEMORY}:
        raise words.refuse(rule.line, f"no fault can be both: {rule.text}; make two rules of it")
    if rule.restart is Restart.NEVER and (rule.scope is not None or rule.limit is not None):
        other = "restartScope" if rule.scope is not None else "restartLimit"
        raise words.refuse(rule.line, f"this rule ({rule.text}) starts nothing again, so its {other} means nothing")
    if rule.limit == 0:
        raise words.refuse(
            rule.line, f"restartLimit 0 of this rule ({rule.text}) starts nothing: write restartPolicy: Never"
        )
    if rule.restart in (Restart.ALWAYS, Restart.ON_FAILURE, Restart.NEVER):
        return
    by_code = rule.restart in _RESTARTS_BY_CODE and bool(rule.codes)
    by_node = rule.restart in _RESTARTS_BY_NODE and Event.NODE_LOST in rule.events
    if not by_code and not by_node:
        what = "a lost node has no exit code" if node_only else "no fault that it names is one"
        text = f"restartPolicy {rule.restart.value} never starts what this rule names ({rule.text}), since {what}"
        raise words.refuse(rule.line, f"{text}: write Always or Never")


def _reached(words: Words, policy: Policy) -> None:
    for index, rule in enumerate(policy.rules):
        for earlier in policy.rules[:index]:
            if _covers(earlier, rule):
                text = f"this rule ({rule.text}) is never reached: the one in line {earlier.line} takes all its faults"
                raise words.refuse(rule.line, f"{text} ({earlier.text})")


def _covers(earlier: Rule, later: Rule) -> bool:
    """Whether the earlier rule matches whatever the later one matches, as far as can be told from one pair."""
    codes = not earlier.codes or (bool(later.codes) and _numbers(later) <= _numbers(earlier))
    events = not earlier.events or (bool(later.events) and later.events <= earlier.events)
    return codes and events and earlier.pattern in ("", later.pattern)


def _numbers(rule: Rule) -> set[int]:
    return {code for low, high in rule.codes for code in range(low, high + 1)}
