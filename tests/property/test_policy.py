"""Whatever a policy file holds, it is read or refused in one sentence with a line; what is read always ends a job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.core.limits import SECOND
from taskd.core.policy.rules import Event, Fault, Policy
from taskd.core.policy.ruling import History
from taskd.core.repair.ladder import REPAIRS, decide
from taskd.core.types import Strategy
from taskd.errors import UsageError
from taskd.policy import Source, parse
from taskd.policy.reader import KEYS, RULE_KEYS
from taskd.policy.words import COMPLETES, EVENTS, FAILS, RESTARTS, SCOPES
from tests.core.test_ladder import KILLED, PLAIN

WORDS = [*RESTARTS, *SCOPES, *COMPLETES, *FAILS, *EVENTS, *KEYS, *RULE_KEYS]
VALUES = st.one_of(
    st.sampled_from(WORDS),
    st.integers(-20, 300).map(str),
    st.sampled_from(
        ["129,101", "1-100", "SIGKILL,SIGSEGV", "true", "null", "[]", "{}", "[1, 2]", "'*'", '"\\u0007"', "~"]
    ),
)
INDENTS = st.sampled_from(["", "  ", "- ", "  - ", "    ", "\t", "# ", "? ", "&a ", "*a ", "!!x "])
LINES = st.builds("{}{}: {}".format, INDENTS, st.sampled_from(WORDS), VALUES)
TEXTS = st.one_of(
    st.lists(LINES, max_size=12).map("\n".join),
    st.text(max_size=200),
    st.text(st.sampled_from("[]{}:,-?&*!|>'\"%@` \n\tab1#"), max_size=120),
)


def rules() -> st.SearchStrategy[str]:
    """Return files of the right form: known keys with values of their kinds."""

    def lines(pairs: Iterable[tuple[str, str]], dash: bool) -> list[str]:
        unique = dict(pairs)
        return [
            f"{('- ' if not at else '  ') if dash else ''}{key}: {value}"
            for at, (key, value) in enumerate(unique.items())
        ]

    kinds = {
        "restartPolicy": st.sampled_from([*RESTARTS]),
        "restartScope": st.sampled_from([*SCOPES]),
        "completePolicy": st.sampled_from([*COMPLETES]),
        "failPolicy": st.sampled_from([*FAILS]),
        "restartLimit": st.integers(0, 20).map(str),
        "jobRestartLimit": st.integers(0, 20).map(str),
        "restartWindow": st.integers(60, 600).map(str),
        "restartTimeLimit": st.integers(0, 100).map(str),
        "restartTimeout": st.integers(1, 100).map(str),
        "exitCodes": st.lists(st.integers(-64, 255).map(str), min_size=1, max_size=3).map(",".join),
        "signals": st.sampled_from(["SIGKILL", "SIGSEGV,SIGBUS"]),
        "exceptionalEvent": st.lists(st.sampled_from([*EVENTS]), min_size=1, max_size=2).map(",".join),
        "logPattern": st.sampled_from(["CUDA", "a*b|c"]),
    }

    def some(keys: Iterable[str]) -> st.SearchStrategy[list[tuple[str, str]]]:
        return st.lists(st.one_of([st.tuples(st.just(key), kinds[key]) for key in keys if key in kinds]), max_size=4)

    top = some(KEYS).map(lambda pairs: lines(pairs, False))
    many = st.lists(some(RULE_KEYS).map(lambda pairs: lines(pairs, True)), max_size=4)
    return st.builds(
        lambda head, tail: "\n".join(
            [*head, *(["faultTolerantPolicy:"] if tail else []), *(line for rule in tail for line in rule)]
        ),
        top,
        many,
    )


def read(text: str) -> Policy | None:
    """Return the policy, or None if it is refused properly."""
    try:
        return parse(Source("p.yaml", text))
    except UsageError as error:
        said = str(error)
        assert said.startswith("p.yaml line ") and "\n" not in said and len(said) < 1_000, said
        return None


@settings(max_examples=150, deadline=None)
@given(TEXTS)
def test_nothing_breaks_the_reader(text: str) -> None:
    read(text)


@settings(max_examples=150, deadline=None)
@given(rules(), st.integers(0, 255), st.frozensets(st.sampled_from(Event)))
def test_every_policy_ends_a_job_that_fails_for_ever(text: str, code: int, events: frozenset[Event]) -> None:
    """The same fault again and again, as quickly as the policy lets it come: some decision ends the job."""
    policy = read(text)
    if policy is None:
        return
    history, now = History(policy), 0
    fault = Fault(2, code, events)
    for restarts in range(200):
        recent = history.recent(2, now)
        limit = 3 if policy.limit is None else policy.limit
        lost = replace(KILLED, restarts=restarts if recent is None else recent)
        ruling = history.ruling([fault], 0, now)
        found = decide(replace(PLAIN, losses=(lost,), max_restarts=limit, ruling=ruling))
        if found.strategy not in REPAIRS | {Strategy.RESPAWN}:
            return
        now += history.hold_ns([2], now) + SECOND
        history.started([fault], [2], now)
    raise AssertionError(f"this policy never ends:\n{text}")
