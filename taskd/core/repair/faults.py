"""The faults of a job: each fault opens the incident, or adds to it, and asks for a decision.

Failure modes, and what follows:

- *A fault in any stage of a repair*: the incident grows, the ladder is asked again.
- *Ranks die before anything was trained*: others may be dying of the same cause, so the decision waits a moment.
- *An error leaves a step, and its process lives*: a repair that replaces no rank, unless that cannot help.
- *A rank says in a step that going on would be wrong*: all ranks start over. No repair of this rank would help.
- *An operator wants a checkpoint and the end of the job*: nothing has failed, but ranks have to park for it.
- *An external launcher starts ranks again*: the replaced ranks count as missing until they are back, and no longer.

This module makes no decision (decider), and it does NOT find out that a rank is dead (detector, membership).
"""

from __future__ import annotations

from collections.abc import Iterable

from taskd.core import limits
from taskd.core.job import Job
from taskd.core.policy.rules import Event, Fault, Scope
from taskd.core.policy.ruling import answer
from taskd.core.repair import notices, placement
from taskd.core.repair.case import Case
from taskd.core.repair.decider import Decider
from taskd.core.repair.decision import DecisionCause
from taskd.core.repair.incident import IncidentState
from taskd.core.repair.ladder import Loss, describe, faults
from taskd.core.repair.placement import Rules
from taskd.core.times import Moment
from taskd.core.types import GivenUp, RankState, Strategy
from taskd.core.words import WOULD_BE_WRONG, asked_words, rank_words, verb


class Faults:
    """Takes the faults of every kind, opens or extends the incident, and asks the decider."""

    def __init__(self, job: Job, rules: Rules, case: Case, decider: Decider) -> None:
        self._job = job
        self._members = job.members
        self._rules = rules
        self._case = case
        self._decider = decider

    def died(self, ranks: list[int], kind: str, age_ns: int, when: Moment) -> None:
        """These ranks are dead. `age_ns`: how long ago the fault may have happened, if that is known."""
        if self._job.over is not None:
            return
        steps = self._members.steps_done
        for rank in ranks:
            record = self._members.ranks[rank]
            if record.asked:
                continue  # its last start did not come to nothing
            if record.died(when.now, steps):
                self._case.restarts.take_back(rank)
            recent = self._case.restarts.recent(rank, when.now)
            record.restarts = record.restarts if recent is None else recent
        losses = {rank: placement.loss_of(self._members, self._members.ranks[rank]) for rank in ranks}
        incident = self._case.open(kind, ranks, describe(tuple(losses.values())), age_ns, when.now)
        incident.missing.update(ranks)
        incident.state_lost |= any(loss.refused for loss in losses.values())
        for rank, loss in losses.items():
            incident.fallen.setdefault(rank, loss)  # keep the first death, not those of its newcomers
        done = tuple(loss for loss in losses.values() if loss.finished)
        if done and self._rules.recover:
            self._job.note("done", notices.done(done))
        settles = incident.state is IncidentState.SETTLING and len(done) < len(losses)
        if self._ends_at_once(losses.values(), when.now):
            settles = False
        if settles and placement.others_may_follow(self._members, self._rules):
            if incident.settles_at is None:
                incident.settles_at = when.at + limits.SETTLE_NS
            return
        if incident.state is IncidentState.OBSERVING and not self._rules.recover:
            return  # more deaths cannot change the decision
        wait_ns = limits.LEAVE_NS if all(loss.left for loss in losses.values()) else 0
        self._decider.decide_soon(DecisionCause.WANTED, when, wait_ns)

    def _ends_at_once(self, losses: Iterable[Loss], now: int) -> bool:
        """Whether the policy ends the job for these losses, so that nothing is gained by waiting for more."""
        return bool(self._case.restarts.ruling(faults(losses), 0, now).ends)

    def hangs(self, ranks: list[int], words: str, age_ns: int, when: Moment) -> None:
        """These ranks hang and all others wait for them, so they are given up."""
        self._give_up(ranks, GivenUp.HUNG, words, "hang", age_ns, when)

    def asked(self, ranks: Iterable[int], by: str, when: Moment) -> None:
        """An operator wants other processes for these ranks."""
        self._give_up(ranks, GivenUp.ASKED, asked_words(by), "operator", 0, when)

    def stops(self, trouble: str, text: str, when: Moment) -> None:
        """An operator wants the last checkpoint written, and then the end of the job with this text."""
        self._case.open("operator", [], trouble, 0, when.now).checkpoint.stops = text
        self._decider.decide_soon(DecisionCause.TROUBLE, when)

    def _give_up(self, ranks: Iterable[int], why: GivenUp, words: str, kind: str, age_ns: int, when: Moment) -> None:
        dead = [rank for rank in ranks if self._members.give_up(self._members.ranks[rank], why, words)]
        if dead:
            self.died(dead, kind, age_ns, when)

    def replaced(self, ranks: list[int], when: Moment) -> None:
        """Another launcher has started these ranks again, before the death of the old ones was reported."""
        text = f"{rank_words(ranks)} {verb(len(ranks), 'was', 'were')} started again, not by this manager"
        if self._rules.recover or self._job.over is not None:
            self._job.note("replaced", text)
            return
        incident = self._case.open("process", ranks, text, 0, when.now)
        incident.missing.update(ranks)
        if incident.state is IncidentState.SETTLING:
            self._decider.decide(when)
            incident.missing.update(ranks)

    def troubled(self, kind: str, trouble: str, ranks: Iterable[int], when: Moment) -> None:
        """The job needs a repair although no rank died."""
        if self._job.over is not None:
            return
        self._case.open(kind, ranks, trouble, 0, when.now)
        if kind in ("refusal", "epoch"):  # file the cause of a refusal, or other news, first
            self._case.decision.want(DecisionCause.TROUBLE, when.at + (limits.REFUSAL_NS if kind == "refusal" else 0))
        else:
            self._decider.decide_soon(DecisionCause.TROUBLE, when)

    def raised(self, rank: int, error: str, when: Moment) -> bool:
        """An error has left the step of this rank. Its process lives and can do the step again, or says that going on
        would be wrong. Return False if this alone starts no repair: then the script has to handle the error, as under
        any launcher."""
        members, rules = self._members, self._rules
        if error.startswith(WOULD_BE_WRONG) and rules.recover:
            self._give_up([rank], GivenUp.REFUSED, error, "refusal", 0, when)
            incident = self._case.incident
            return incident is None or incident.state is not IncidentState.OBSERVING
        gone = members.counts[RankState.DEAD] + members.counts[RankState.LEFT]
        asked = Fault(rank, events=frozenset({Event.EXCEPTION}), words=error)
        found = answer(rules.policy, asked)
        if found.rule is not None and not (found.restarts and found.scope is Scope.PROCESS):
            return False  # the error ends its process, and what follows is decided then
        if gone or not (rules.recover and members.trained and Strategy.IN_PLACE in rules.strategies):
            return False
        self.troubled("exception", f"rank {rank} raised {error}", [rank], when)
        return True

    def doubted(self, kind: str, trouble: str, ranks: Iterable[int], when: Moment) -> None:
        """The state of ranks is not what an undisturbed run would hold, so training does not continue from it."""
        if self._job.over is not None:
            return
        self._case.open(kind, ranks, trouble, 0, when.now).state_lost = True
        self._decider.decide_soon(DecisionCause.TROUBLE, when)
