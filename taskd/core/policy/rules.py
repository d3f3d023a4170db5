"""The policy: what the user wants done about which fault. Pure data; the words are those that users write.

A policy is a list of rules, and what holds where no rule matches. The first rule that matches a fault wins. The default
policy has no rules and repairs every fault in the cheapest way. Not here: how a file becomes a policy (taskd.policy),
what is decided about a fault (ruling), and which strategy carries it out (repair.ladder).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Event(Enum):
    """What a fault is, besides its exit code. One fault can be several of them."""

    NODE_LOST = "nodeNotReady"  # the node's agent is silent, or has ended
    PROCESS_EXIT = "processExit"  # a process ended: by a signal, or with an exit code other than 0
    EXCEPTION = "exception"  # an error has left the script, or a step of it
    OUT_OF_MEMORY = "outOfMemory"  # the system killed a process for its memory
    HANG = "hang"  # a signal had stopped the process, all others waited, and it was given up
    LEFT_EARLY = "leftEarly"  # a process ended with exit code 0 in the middle of a step
    NOT_STARTED = "notStarted"  # a process could not be started
    NOT_FOLLOWED = "notFollowed"  # a rank did not do its part in a repair in time, or failed in its set-up


class Restart(Enum):
    """When the ranks of a fault are started again."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"
    EXIT_CODE = "ExitCode"
    ON_NODE_FAIL = "OnNodeFail"
    ON_NODE_FAIL_OR_EXIT_CODE = "OnNodeFailWithExitCode"


class Scope(Enum):
    """How much of the job starts again, from the least to the most."""

    PROCESS = "Process"
    NODE = "Pod"
    ALL = "All"

    @property
    def width(self) -> int:
        """The place in this order."""
        return list(Scope).index(self)


class Complete(Enum):
    """Whose good end is the good end of the job."""

    ALL = "All"
    RANK_0 = "Rank0"
    ANY = "Any"


class Fail(Enum):
    """Whose end for good, without another start, ends the job."""

    ANY = "Any"
    ALL = "All"
    RANK_0 = "Rank0"
    NONE = "None"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one rank, as the policy sees it."""

    rank: int
    exit_code: int = 0  # as a shell says it: 128 + n for signal n; 0: there is none
    events: frozenset[Event] = frozenset()
    words: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """What is done about the faults that meet all conditions of this rule. A condition that is empty is none."""

    line: int
    text: str  # its conditions, as the user wrote them
    codes: tuple[tuple[int, int], ...] = ()  # the first and the last exit code of each range
    events: frozenset[Event] = frozenset()
    pattern: str = ""  # parts with * between them; alternatives with | between them
    restart: Restart = Restart.ALWAYS
    scope: Scope | None = None  # None: that of the policy
    limit: int | None = None  # how often it starts one rank again

    def matches(self, fault: Fault) -> bool:
        """Whether the fault meets all conditions."""
        return (
            (not self.codes or any(low <= fault.exit_code <= high for low, high in self.codes))
            and (not self.events or not self.events.isdisjoint(fault.events))
            and (not self.pattern or any(_found(part, fault.words) for part in self.pattern.split("|")))
        )


def _found(pattern: str, words: str) -> bool:
    """Whether the parts of a pattern, with * between them, stand in this order in the words. Linear, unlike a regular
    expression: no text can keep the manager busy."""
    at = 0
    for part in filter(None, pattern.split("*")):
        at = words.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


@dataclass(frozen=True, slots=True)
class Policy:
    """All that a user wants. A line of 0 means that the key does not stand in the file."""

    name: str = ""  # of its file, for sentences; empty: the default policy
    rules: tuple[Rule, ...] = ()
    restart: Restart = Restart.ALWAYS
    restart_line: int = 0
    scope: Scope = Scope.PROCESS
    scope_line: int = 0
    complete: Complete = Complete.ALL
    fail: Fail = Fail.ANY
    limit: int | None = None  # starts of one rank; None: max_restarts of the job
    job_limit: int | None = None  # repairs that start ranks, in the whole job
    window_ns: int | None = None  # only starts within this time count; None: all, less one for each hour lived after
    gap_ns: int = 0  # the shortest time between two starts of one rank
    timeout_ns: int | None = None  # the longest time of one repair, with all of its attempts

    @property
    def counts(self) -> bool:
        """Whether it needs to know when ranks were started."""
        own = any(rule.limit is not None for rule in self.rules)
        return own or self.job_limit is not None or self.window_ns is not None or self.gap_ns > 0

    def place(self, line: int) -> str:
        """`policy.yaml line 4`."""
        return f"{self.name} line {line}" if line else self.name


DEFAULT = Policy()
