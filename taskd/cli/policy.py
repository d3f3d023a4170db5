"""`taskd policy`: checks a policy file, and says what would happen after a fault under it, and why.

`check FILE` reads the file as the manager would, and prints its rules, or the line that is wrong. `explain` puts one
fault to the policy and to the ladder themselves, so it says what the manager would decide in a job that trains. It
does NOT ask a running job, and changes nothing.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from typing import Any

from taskd import config
from taskd.cli import table
from taskd.config import Config
from taskd.core import limits
from taskd.core.limits import SECOND
from taskd.core.policy.rules import DEFAULT, Complete, Event, Fail, Policy, Scope
from taskd.core.policy.ruling import Answer, History, answer
from taskd.core.repair.ladder import REPAIRS, Decision, Loss, Situation, decide
from taskd.core.types import Strategy
from taskd.core.words import exit_words, join, verb
from taskd.errors import UsageError
from taskd.policy import idle, load, parse
from taskd.policy.words import EVENTS, SIGNALS, nearest

RANK = 1
RANKS = 4
"""The fault happens to this rank of a job of so many, two on each node."""


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `taskd policy`."""
    parser = subparsers.add_parser("policy")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", dest="verb", required=True)
    line = "read a policy file and say what is wrong in which line, or what its rules are"
    checked = verbs.add_parser("check", help=line, description=line)
    checked.add_argument("file", metavar="FILE")
    checked.add_argument("--json", action="store_true", help="print one JSON object")
    checked.set_defaults(run=_check)
    line = "say what would happen after a fault: which rule, in which line, and the ladder that follows"
    told = verbs.add_parser("explain", help=line, description=line)
    told.add_argument(
        "file", metavar="FILE", nargs="?", help="by default the one of TASKD_POLICY, or what holds without"
    )
    fault = told.add_mutually_exclusive_group(required=True)
    fault.add_argument("--exit-code", metavar="N", help="a process ends with this code; 137 and -9 are both SIGKILL")
    fault.add_argument("--signal", metavar="NAME", help="a signal ends a process: SIGSEGV")
    fault.add_argument("--event", metavar="NAME", help=f"what happens instead: {', '.join(EVENTS)}")
    told.add_argument("--log", metavar="TEXT", default="", help="the last words of the process, for logPattern")
    told.add_argument("--json", action="store_true", help="print one JSON object")
    told.set_defaults(run=_explain)


# ---- check ----------------------------------------------------------------------------------------------------------


def _check(arguments: argparse.Namespace) -> int:
    source = load(arguments.file)
    policy, without = parse(source), idle(source)
    if arguments.json:
        print(json.dumps(_described(policy, without), indent=2))
        return 0
    count = len(policy.rules)
    print(f"{table.clean(policy.name)}: {count} {verb(count, 'rule', 'rules')}, no contradiction")
    rows: list[tuple[object, ...]] = [
        (rule.line, table.clean(rule.text), rule.restart.value, (rule.scope or policy.scope).value, _limit(rule.limit))
        for rule in policy.rules
    ]
    rows.append(
        (policy.restart_line or "-", "everything else", policy.restart.value, policy.scope.value, _limit(policy.limit))
    )
    table.show(("LINE", "FAULT", "RESTART", "SCOPE", "LIMIT"), rows)
    for sentence in [
        *_ends(policy),
        *_limits(policy),
        *(f"{key} does nothing: no job changes its size" for key in without),
    ]:
        print(sentence)
    return 0


def _limit(limit: int | None) -> str:
    return "-" if limit is None else str(limit)


def _ends(policy: Policy) -> list[str]:
    good = {Complete.ALL: "all ranks have left", Complete.RANK_0: "rank 0 has left", Complete.ANY: "any rank has left"}
    bad = {
        Fail.ANY: "any rank fails for good",
        Fail.RANK_0: "rank 0 fails for good, or nobody is left",
        Fail.ALL: "all ranks have failed for good",
        Fail.NONE: "nobody is left",
    }
    return [
        f"the job ends well when {good[policy.complete]} in good order (completePolicy {policy.complete.value})",
        f"it fails when {bad[policy.fail]} (failPolicy {policy.fail.value})",
    ]


def _limits(policy: Policy) -> list[str]:
    found = []
    within = f" within {policy.window_ns // SECOND} s" if policy.window_ns is not None else ""
    if policy.limit is not None:
        found.append(f"one rank starts again {policy.limit} times at most{within}")
    if policy.job_limit is not None:
        found.append(f"the job has {policy.job_limit} repairs that start ranks at most{within}")
    if policy.gap_ns:
        found.append(f"between two starts of one rank {policy.gap_ns // SECOND} s pass at least")
    if policy.timeout_ns is not None:
        found.append(f"a repair that has not succeeded after {policy.timeout_ns // SECOND} s ends the job")
    return found


def _described(policy: Policy, without: list[str]) -> dict[str, Any]:
    return {
        "file": policy.name,
        "rules": [
            {
                "line": rule.line,
                "fault": rule.text,
                "restartPolicy": rule.restart.value,
                "restartScope": (rule.scope or policy.scope).value,
                "restartLimit": rule.limit,
            }
            for rule in policy.rules
        ],
        "restartPolicy": policy.restart.value,
        "restartScope": policy.scope.value,
        "completePolicy": policy.complete.value,
        "failPolicy": policy.fail.value,
        "limits": _limits(policy),
        "without_effect": without,
    }


# ---- explain --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Case:
    """One fault, in words and as the ladder sees it."""

    words: str
    loss: Loss


def _explain(arguments: argparse.Namespace) -> int:
    settings = config.load()
    path = arguments.file or settings.recover.policy
    policy = parse(load(path)) if path else DEFAULT
    case = _case(arguments)
    found = answer(policy, case.loss.fault)
    rungs = ladder(policy, case.loss, settings)
    if arguments.json:
        print(json.dumps(_explained(case, found, rungs), indent=2))
        return 0
    print(table.clean(f"{case.words}: {_why(policy, found)}"))
    if Event.EXCEPTION in case.loss.events and not case.loss.exit_code and _in_place(found):
        print("  first: the step is done again on all ranks, and no process ends; if it fails again, the process ends")
    for number, decision in enumerate(rungs, 1):
        print(table.clean(f"  {number}. {decision.strategy.value:<18}{_means(decision, found, settings)}"))
    if rungs[0].strategy in REPAIRS:
        print(f"Each rung is tried {limits.MAX_ATTEMPTS} times at most, then the next one is taken.")
        most = settings.recover.max_restarts if policy.limit is None else policy.limit
        if policy.limit is None:
            print(f"One rank starts again {most} times at most (recover.max_restarts).")
        for sentence in _limits(policy):
            print(f"{sentence[0].upper()}{sentence[1:]}.")
    return 0


def _case(arguments: argparse.Namespace) -> _Case:
    plain = Loss(RANK, "a", 0, arguments.log, 0, home=True, watched_only=False, finished=False)
    if arguments.event is not None:
        if arguments.event not in EVENTS:
            raise UsageError(f"{arguments.event!r} is no event; {nearest(arguments.event, EVENTS)}")
        event = EVENTS[arguments.event]
        loss = replace(plain, events=frozenset({event}), home=event is not Event.NODE_LOST)
        return _Case(f"event {arguments.event}", replace(loss, reason=arguments.log or arguments.event))
    code = -_signal(arguments.signal) if arguments.signal is not None else _code(arguments.exit_code)
    events = {Event.PROCESS_EXIT} | ({Event.EXCEPTION} if arguments.log and code > 0 else set())
    shown = f"exit code {128 - code} ({exit_words(code)})" if code < 0 else exit_words(code)
    return _Case(shown, replace(plain, exit_code=code, events=frozenset(events)))


def _code(word: str) -> int:
    """An exit code as the system says it: negative for a signal."""
    code = int(word) if word.lstrip("-").isdigit() and len(word) < 6 else 0
    code = 128 - code if code > 128 and exit_words(128 - code).startswith("SIG") else code
    if not -65 < code < 256 or not code:
        raise UsageError(f"{word!r} is no exit code of a failure: name one from 1 to 255, or -9 for signal 9")
    return code


def _signal(word: str) -> int:
    number = SIGNALS.get(word.upper(), SIGNALS.get(f"SIG{word.upper()}", 0)) or (int(word) if word.isdigit() else 0)
    if not 0 < number < 65:
        raise UsageError(f"{word!r} is no signal; {nearest(word, SIGNALS)}")
    return number


def ladder(policy: Policy, loss: Loss, settings: Config) -> list[Decision]:
    """The decisions that follow each other if each of them fails: those of the core's own ladder."""
    strategies = {Strategy(name) for name in settings.recover.allowed}
    if strategies & REPAIRS:
        strategies.add(Strategy.RESPAWN)
    recover = settings.sources.get("recover.process_recover") is None or settings.recover.process_recover
    now = Situation(
        losses=(loss,),
        trouble="",
        world_size=RANKS,
        left=(),
        allowed=frozenset(strategies) if recover else frozenset(),
        exhausted=frozenset(),
        max_restarts=settings.recover.max_restarts if policy.limit is None else policy.limit,
        trained=True,
        state_lost=False,
        repairing=False,
        all_start=True,
        ruling=History(policy).ruling([loss.fault], 0, 0),
    )
    found = [decide(now)]
    while found[-1].strategy in REPAIRS | {Strategy.RESPAWN}:
        now = replace(now, exhausted=now.exhausted | {found[-1].strategy}, repairing=True)
        found.append(decide(now))
    return found


def _in_place(found: Answer) -> bool:
    return found.rule is None or (found.restarts and found.scope is Scope.PROCESS)


def _why(policy: Policy, found: Answer) -> str:
    if found.rule is not None and found.restarts:
        return f"{found.restart_words} and restartScope {found.scope.value}"
    said = [words for words in (found.restart_words, found.scope_words if found.restarts else "") if words]
    if said:
        return join(said)
    return f"no rule of {policy.name} matches" if policy.name else "there is no policy, so the cheapest repair is taken"


def _means(decision: Decision, found: Answer, settings: Config) -> str:
    who = "all ranks of its node start" if found.scope is Scope.NODE else "the rank starts"
    if decision.strategy is Strategy.IN_PLACE:
        return f"{who} again there; the others keep their process and their state"
    if decision.strategy is Strategy.RECOVER:
        wait_s = settings.recover.spare_wait_ms // 1000
        return f"{who} on another node with room, if one is there within {wait_s} s; the others keep their state"
    if decision.strategy is Strategy.RESPAWN:
        return "all ranks start over, from the script's own checkpoint if it takes one up"
    if decision.strategy is Strategy.EXIT:
        return f"the job ends with exit code {decision.exit_code}"
    return decision.reason


def _explained(case: _Case, found: Answer, rungs: list[Decision]) -> dict[str, Any]:
    return {
        "fault": case.words,
        "line": found.rule.line if found.rule is not None else None,
        "rule": found.rule.text if found.rule is not None else None,
        "restarts": found.restarts,
        "restartScope": found.scope.value,
        "why": [words for words in (found.restart_words, found.scope_words) if words],
        "ladder": [{"strategy": one.strategy.value, "reason": one.reason, "exit_code": one.exit_code} for one in rungs],
    }
