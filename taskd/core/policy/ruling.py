"""The ruling: what a policy says about the faults of one decision, with the line of its file that says so.

`answer` asks the policy about one fault, `History.ruling` about all of a decision, with the limits that depend on what
was started before. Failure modes, and what follows:

- *Several ranks fail, and only some may be started again*: no rank is, since a repair needs all of them.
- *A rank dies only because another one has*: the policy is asked about the other one (repair.placement).
- *A rule's limit is used up*: no later rule takes its place. The limit is the rule's answer.

Invariant: the default policy lets everything be repaired, and remembers nothing. Not here: the limit of restarts per
rank (repair.ladder), and how a repair is carried out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from taskd.core.limits import MAX_POLICY_COUNT, SECOND
from taskd.core.policy.rules import DEFAULT, Event, Fail, Fault, Policy, Restart, Rule, Scope
from taskd.core.words import verb


@dataclass(frozen=True, slots=True)
class Answer:
    """What a policy says about one fault."""

    restarts: bool
    scope: Scope
    rule: Rule | None
    restart_words: str  # `policy.yaml line 4 (exitCodes: 77) says restartPolicy Never`; empty: by default
    scope_words: str  # the same about the scope


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a policy says about all faults of a decision."""

    ends: str = ""  # why no rank is started again; empty: the ladder may look for a repair
    scope: Scope = Scope.PROCESS
    why: str = ""  # which line said so; empty: the default
    fail: Fail = Fail.ANY


PLAIN = Ruling()
_NODE_POLICIES = (Restart.ON_NODE_FAIL, Restart.ON_NODE_FAIL_OR_EXIT_CODE)
_CODE_POLICIES = (Restart.EXIT_CODE, Restart.ON_NODE_FAIL_OR_EXIT_CODE)


def answer(policy: Policy, fault: Fault) -> Answer:
    """Ask the policy about one fault: the first rule that matches, or else what holds for all."""
    rule = next((rule for rule in policy.rules if rule.matches(fault)), None)
    if rule is None:
        restarts = _restarts(policy.restart, fault, listed=False)
        return Answer(
            restarts,
            policy.scope,
            None,
            f"{policy.place(policy.restart_line)} says restartPolicy {policy.restart.value}{_but(policy, fault)}"
            if policy.restart_line
            else "",
            f"{policy.place(policy.scope_line)} says restartScope {policy.scope.value}" if policy.scope_line else "",
        )
    restarts = _restarts(rule.restart, fault, listed=bool(rule.codes))
    where = f"{policy.place(rule.line)} ({rule.text})"
    scope = rule.scope or policy.scope
    return Answer(
        restarts,
        scope,
        rule,
        f"{where} says restartPolicy {rule.restart.value}",
        f"{where} says restartScope {scope.value}",
    )


def _restarts(restart: Restart, fault: Fault, listed: bool) -> bool:
    """Whether a fault is followed by a start. `listed`: a rule names its exit code."""
    if restart is Restart.NEVER:
        return False
    if restart in (Restart.ALWAYS, Restart.ON_FAILURE):
        return True
    by_node = restart in _NODE_POLICIES and Event.NODE_LOST in fault.events
    return by_node or (restart in _CODE_POLICIES and listed)


def _but(policy: Policy, fault: Fault) -> str:
    """Why no start follows where no rule matches."""
    if policy.restart in _CODE_POLICIES and fault.exit_code:
        return f", and no rule names exit code {fault.exit_code}"
    if policy.restart in (*_CODE_POLICIES, *_NODE_POLICIES):
        return ", and no rule names this fault"
    return ""


class History:
    """When ranks were started again and by which rule, as far as the policy needs it."""

    def __init__(self, policy: Policy = DEFAULT) -> None:
        self.policy = policy
        self._starts: dict[int, deque[tuple[int, int]]] = {}  # by rank: when, and by the rule in which line
        self._repairs: deque[int] = deque(maxlen=MAX_POLICY_COUNT)  # when a repair has started ranks

    def recent(self, rank: int, now: int) -> int | None:
        """How many starts of a rank count now. None: the policy has no window."""
        if self.policy.window_ns is None:
            return None
        return sum(self._counts(at, now) for at, _ in self._starts.get(rank, ()))

    def _counts(self, at: int, now: int) -> bool:
        window_ns = self.policy.window_ns
        return window_ns is None or at > now - window_ns

    def ruling(self, faults: Iterable[Fault], open_ns: int, now: int) -> Ruling:
        """What the policy says about these faults. `open_ns`: for how long they have been under repair; 0: it has not
        begun."""
        asked = tuple(faults)
        ends, scope, why = self._ends(open_ns), Scope.PROCESS, ""
        for fault in asked:
            found = answer(self.policy, fault)
            ends = ends or ("" if found.restarts else found.restart_words) or self._spent(found, fault, now)
            if not why or found.scope.width > scope.width:
                scope, why = found.scope, found.scope_words
        if asked:
            ends = ends or self._job_spent(now)
        return Ruling(ends, scope, why, self.policy.fail)

    def _ends(self, open_ns: int) -> str:
        timeout_ns = self.policy.timeout_ns
        if timeout_ns is None or open_ns <= timeout_ns:
            return ""
        return f"the repair has taken more than the {timeout_ns // SECOND} s of {self.policy.name}'s restartTimeout"

    def _spent(self, found: Answer, fault: Fault, now: int) -> str:
        rule = found.rule
        if rule is None or rule.limit is None:
            return ""
        times = sum(line == rule.line and self._counts(at, now) for at, line in self._starts.get(fault.rank, ()))
        if times < rule.limit:
            return ""
        where = f"{self.policy.place(rule.line)} ({rule.text})"
        return f"{where} has started rank {fault.rank} {times} {verb(times, 'time', 'times')}, its restartLimit"

    def _job_spent(self, now: int) -> str:
        limit = self.policy.job_limit
        if limit is None:
            return ""
        times = sum(self._counts(at, now) for at in self._repairs)
        if times < limit:
            return ""
        repairs = verb(times, "repair has", "repairs have")
        return f"{times} {repairs} started ranks, which is the jobRestartLimit of {self.policy.name}"

    def hold_ns(self, ranks: Iterable[int], now: int) -> int:
        """How long the next start of these ranks has to wait, because the last one is not long ago."""
        if not self.policy.gap_ns:
            return 0
        last = [starts[-1][0] for rank in ranks if (starts := self._starts.get(rank))]
        return max([0, *(at + self.policy.gap_ns - now for at in last)])

    def started(self, faults: Iterable[Fault], ranks: Iterable[int], now: int) -> None:
        """A repair has started these ranks, after these faults."""
        if not self.policy.counts:
            return
        lines = {fault.rank: found.line for fault in faults if (found := answer(self.policy, fault).rule) is not None}
        started = list(ranks)
        for rank in started:
            starts = self._starts.setdefault(rank, deque(maxlen=MAX_POLICY_COUNT))
            starts.append((now, lines.get(rank, 0)))
        if started:
            self._repairs.append(now)

    def take_back(self, rank: int) -> None:
        """The last start of this rank never began, so it does not count."""
        if starts := self._starts.get(rank):
            starts.pop()
