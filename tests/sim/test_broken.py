"""Tests of the checkers: each test breaks one promise of the core on purpose, and the right rule must complain.

A careless change could break the real machines in the same way. A rule that lets its breach pass checks nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from taskd.core import limits, waits
from taskd.core.agent import Agent
from taskd.core.effects import EndJob, Park, Relay, Tell
from taskd.core.events import ConnectionLost, Done, HangVerdict, Heard, Said
from taskd.core.hangs import Hangs
from taskd.core.manager import Manager
from taskd.core.messages import Evidence, Order, Report, Stop
from taskd.core.nodes import Nodes
from taskd.core.proof import proofs
from taskd.core.proof.proofs import Proofs
from taskd.core.rails.lending import Lending
from taskd.core.rails.records import Rail
from taskd.core.rails.relay import RailRelay
from taskd.core.records import Restart
from taskd.core.repair import attempt, attempts, decider, holdings, ladder, patience, waiting
from taskd.core.repair.attempt import Attempt
from taskd.core.repair.attempts import Attempts
from taskd.core.repair.faults import Faults
from taskd.core.repair.holdings import Holdings
from taskd.core.repair.repairs import Repairs
from taskd.core.repair.stages import AttemptState
from taskd.core.seating import Seating
from taskd.core.times import Moment
from taskd.core.types import HangFinding, Stage, Strategy
from taskd.core.worker import Worker
from taskd.sim.scenario import Options, draw
from taskd.sim.setting import Machines
from taskd.sim.story import Result, simulate
from tests.patience import BUILD_S

pytestmark = pytest.mark.limit(BUILD_S)  # some breaches need many stories before they show

MOST_SEEDS = 200
Patch = pytest.MonkeyPatch


def first_complaint(kinds: tuple[str, ...], machines: Machines, rules: set[str], ranks: int = 8) -> Result:
    """Play stories with launchers until one breaks one of these rules."""
    others: set[str] = set()
    for seed in range(MOST_SEEDS):
        options = Options(ranks, 0.5, seed, kinds)
        if draw(options)[0].launches:
            result = simulate(options, machines)
            if not result.ok and result.rule in rules:
                return result
            others.add(result.rule or "nothing")
    pytest.fail(f"none of {sorted(rules)} complained in {MOST_SEEDS} stories; these did: {sorted(others)}")


class HastyWorker(Worker):
    """Reports that it has parked, and goes on training."""

    def step(self, now_ns: int, event: Any) -> list[Any]:
        effects = super().step(now_ns, event)
        if any(isinstance(effect, Park) for effect in effects) and self.state.name == "PARKING":
            return super().step(now_ns, Done(self.epoch, Stage.PARKED, 0, True, ""))
        return effects


class ForgetfulWorker(Worker):
    """Follows an order of any epoch."""

    def step(self, now_ns: int, event: Any) -> list[Any]:
        if isinstance(event, Order) and event.epoch < self.epoch:
            self.epoch, self.term = event.epoch - 1, 0
        return super().step(now_ns, event)


class CredulousAgent(Agent):
    """Passes every order on, however old it is."""

    def step(self, now_ns: int, event: Any) -> list[Any]:
        effects = super().step(now_ns, event)
        if isinstance(event, Heard) and isinstance(event.message, Order):
            effects.append(Relay(tuple(range(64)), event.message))
        return effects


class ChattyManager(Manager):
    """Repeats the order at every report."""

    def step(self, now_ns: int, event: Any) -> list[Any]:
        effects = super().step(now_ns, event)
        order = self._job.order
        if isinstance(event, Said) and isinstance(event.message, Report) and order is not None:
            effects.append(Tell(event.sender.node, order))
        return effects


class FragileManager(Manager):
    """Raises on an event from outside."""

    def step(self, now_ns: int, event: Any) -> list[Any]:
        if isinstance(event, ConnectionLost):
            raise KeyError(event.node)
        return super().step(now_ns, event)


class WordyManager(Manager):
    """Ends the job with a code and a text that do not fit into a message."""

    def step(self, now_ns: int, event: Any) -> list[Any]:
        effects = super().step(now_ns, event)
        if any(isinstance(effect, EndJob) for effect in effects) or self.incidents(now_ns):
            effects += [Tell("n0", Stop(1, 4_000, "x" * 5_000))] * 8
        return effects


class RestlessManager(Manager):
    """Always has a deadline that is due."""

    def next_deadline(self) -> int | None:
        return 0


@pytest.mark.parametrize(
    ("kinds", "machines", "rules"),
    [
        (("kill",), Machines(worker=HastyWorker), {"parked-first"}),
        (("replay", "kill"), Machines(worker=ForgetfulWorker, agent=CredulousAgent), {"epochs-grow"}),
        (("replay", "kill"), Machines(agent=CredulousAgent), {"epochs-grow"}),
        (("kill",), Machines(manager=ChattyManager), {"quiet"}),
        (("agent",), Machines(manager=FragileManager), {"core"}),
        (("kill",), Machines(manager=WordyManager), {"bounds"}),
        ((), Machines(manager=RestlessManager), {"core"}),
    ],
    ids=["hasty worker", "forgetful worker", "credulous agent", "chatty", "fragile", "wordy", "restless"],
)
def test_broken_machine_is_caught(kinds: tuple[str, ...], machines: Machines, rules: set[str]) -> None:
    result = first_complaint(kinds, machines, rules)
    assert result.options.command() in result.complaint()


# ---- one inner promise of the manager at a time


def epoch_not_raised(patch: Patch) -> None:
    begin = Attempts.begin

    def again(self: Attempts, *arguments: Any) -> None:
        if self.attempt is not None:
            self.job.epoch -= 1
        begin(self, *arguments)

    patch.setattr(attempts.Attempts, "begin", again)


def epoch_neither_raised_nor_fenced(patch: Patch) -> None:
    """A newcomer is ordered into the epoch in which its predecessor died, and its agent starts it there."""
    epoch_not_raised(patch)
    ordered = Seating.ordered

    def forgetful(self: Seating, order: Order, now: int) -> None:
        self._post.order = None
        ordered(self, order, now)

    patch.setattr(Seating, "ordered", forgetful)


def nobody_waits_for_parking(patch: Patch) -> None:
    follow = Attempt.follow

    def first_is_enough(self: Attempt, report: Any, now: int) -> str:
        refusal = follow(self, report, now)
        if self.state is AttemptState.QUIESCE and len(self.waiting.ranks) < len(self.ranks):
            self.waiting.ranks.clear()
        return refusal

    patch.setattr(attempt.Attempt, "follow", first_is_enough)


def oldest_state_wins(patch: Patch) -> None:
    def agree(self: Holdings, takes: bool) -> None:
        held = {rank: updates for rank, updates in self._held.items() if rank in self._survivors and updates >= 0}
        self.updates = min(held.values(), default=-1)
        sources = [rank for rank, updates in held.items() if updates == self.updates]
        self.complete = set(sources)
        lacking = [rank for rank in self._ranks if rank not in self.complete]
        self.fetches = tuple(holdings.Fetch(rank, sources[0]) for rank in lacking) if sources else ()

    patch.setattr(Holdings, "agree", agree)


def newcomers_fetch_nothing(patch: Patch) -> None:
    agree = Holdings.agree

    def without_fetches(self: Holdings, takes: bool) -> None:
        agree(self, takes)
        self.fetches = ()

    patch.setattr(Holdings, "agree", without_fetches)


def all_ranks_have_one_part(patch: Patch) -> None:
    """A newcomer takes the state of any rank, whatever its part is."""
    parked = Holdings.parked

    def forgets(self: Holdings, report: Any) -> bool:
        first = parked(self, report)
        self._parts.clear()
        return first

    patch.setattr(Holdings, "parked", forgets)


def nobody_is_said_to_stand_still(patch: Patch) -> None:
    patch.setattr(Hangs, "_judge", lambda self, since: None)


def those_who_wait_are_to_blame(patch: Patch) -> None:
    find = waits.find

    def the_other_way_round(places: Any, size: int) -> waits.Waits:
        found = find(places, size)
        return replace(found, awaited=tuple(rank for rank in places if rank not in found.awaited))

    patch.setattr(waits, "find", the_other_way_round)


def whoever_is_named_is_given_up(patch: Patch) -> None:
    def at_once(self: Hangs, at: int, max_restarts: int) -> HangVerdict | None:
        hang = self.hang
        if hang is None or hang.given_up:
            return None
        return HangVerdict(HangFinding.GIVEN_UP, at - hang.since, hang.ranks, "it was named")

    patch.setattr(Hangs, "give_up", at_once)


def deaths_are_ignored(patch: Patch) -> None:
    patch.setattr(Faults, "died", lambda self, *arguments: None)


def deadlines_never_come(patch: Patch) -> None:
    def until(self: patience.Patience, rank: int, allowed_ns: int, steps: bool) -> int:
        return self._began_at + 10_000 * limits.SECOND

    patch.setattr(patience.Patience, "until", until)


def the_last_holder_is_given_up(patch: Patch) -> None:
    patch.setattr(waiting.Waiting, "_may_hold_the_last", lambda self, rank: False)
    patch.setattr(patience.Patience, "saw", lambda self, report, now: None)


def sleep_is_taken_for_silence(patch: Patch) -> None:
    patch.setattr(limits, "SLEPT_NS", 10_000 * limits.SECOND)
    patch.setattr(limits, "SILENCE_ALONE_NS", 300 * limits.MS)


def whoever_waits_is_a_witness(patch: Patch) -> None:
    heard = Nodes._evidence

    def evidence(self: Nodes, node: Any, evidence: Evidence, when: Moment) -> None:
        heard(self, node, evidence, when)
        self._detector.collective_error(None, "a rank waits", node.name, when.at)

    patch.setattr(Nodes, "_evidence", evidence)


def every_fault_ends_the_job(patch: Patch) -> None:
    patch.setattr(decider, "decide", lambda now: ladder.Decision(Strategy.EXIT, "it is easier so: exit", 1))


def first_report_ends_the_job(patch: Patch) -> None:
    patch.setattr(Repairs, "back", lambda self, ranks, when: self.ending.finish(0, "that will do", when.now))


def nobody_compares(patch: Patch) -> None:
    patch.setattr(Proofs, "find", lambda self, repairing=False: None)


def everything_counts_as_alike(patch: Patch) -> None:
    """A rank is blamed for contents that differ from the start, such as its own rank number."""
    patch.setattr(proofs, "_words", lambda one: [(unit, bytes([one.rank])) for unit in range(3)])
    patch.setattr(proofs, "_apart", lambda told: {1: {one.rank: one.rank for one in told}})
    patch.setattr(proofs, "_taken_apart", lambda values, takers, harmless: True)


def nobody_rests(patch: Patch) -> None:
    patch.setattr(Restart, "died", lambda self, now, steps: None)


def rails_return_at_once(patch: Patch) -> None:
    patch.setattr(Rail, "worsen", lambda self, at, unproved: setattr(self, "back_off_ns", 1))


def rails_never_return(patch: Patch) -> None:
    patch.setattr(Lending, "come_back", lambda self, at, repairing: None)


def rail_orders_stay_with_the_agent(patch: Patch) -> None:
    patch.setattr(RailRelay, "due", lambda self, now: [])


@pytest.mark.parametrize(
    ("breach", "kinds", "rules"),
    [
        (epoch_not_raised, ("rebuild",), {"one-incarnation", "live"}),
        (epoch_neither_raised_nor_fenced, ("rebuild",), {"one-incarnation"}),
        (nobody_waits_for_parking, ("kill",), {"parked-first"}),
        (oldest_state_wins, ("kill", "kills"), {"nothing-lost", "own-part"}),
        (newcomers_fetch_nothing, ("kill",), {"nothing-lost"}),
        (all_ranks_have_one_part, ("kill",), {"own-part"}),
        (nobody_is_said_to_stand_still, ("still",), {"hang-named"}),
        (those_who_wait_are_to_blame, ("still",), {"hang-true"}),
        (whoever_is_named_is_given_up, ("still",), {"hang-true"}),
        (deaths_are_ignored, ("kill",), {"live"}),
        (deadlines_never_come, ("setup",), {"budget"}),
        (the_last_holder_is_given_up, ("slow",), {"nothing-lost"}),
        (sleep_is_taken_for_silence, ("sleep",), {"live", "healthy-stays", "nothing-lost", "updates-once"}),
        (whoever_waits_is_a_witness, ("starve",), {"starved-stays"}),
        (every_fault_ends_the_job, ("kill",), {"live"}),
        (first_report_ends_the_job, ("kill",), {"live"}),
        (nobody_compares, ("flip",), {"proof-found"}),
        (everything_counts_as_alike, ("kill",), {"proof-true"}),
        (nobody_rests, ("setup",), {"starts-rest"}),
        (rails_return_at_once, ("rail",), {"rails-steady"}),
        (rails_never_return, ("rail",), {"rails-return"}),
        (rail_orders_stay_with_the_agent, ("rail",), {"rails-obeyed"}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_broken_promise_is_caught(
    breach: Callable[[Patch], None], kinds: tuple[str, ...], rules: set[str], monkeypatch: Patch
) -> None:
    breach(monkeypatch)
    first_complaint(kinds, Machines(), rules, ranks=4 if "rail" in kinds else 2 if "slow" in kinds else 8)
