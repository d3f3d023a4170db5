"""The notices that people see about a repair: that all ranks start over and what it costs, or that it cost nothing.

Nobody reads the journal of a job that ends well. So the notice of a start-over says which ranks died and why no cheaper
repair was possible. It also says what is done again, how often that may still happen, and which line of the script
would change it. This module decides nothing. All notices take the number of lost steps from one count,
Membership.steps_done.
"""

from __future__ import annotations

from taskd.core.limits import SECOND
from taskd.core.membership import Membership
from taskd.core.repair.attempt import Attempt
from taskd.core.repair.incident import Incident
from taskd.core.repair.ladder import ALL_AGAIN, Decision, Loss, causes_first, describe
from taskd.core.repair.placement import Rules
from taskd.core.starts_over import StartsOver
from taskd.core.types import Outcome, RankState, Strategy
from taskd.core.words import cut, milliseconds, rank_words, sentence, verb

NO_SESSION = "the script has no step to go back to: its loop does not run over taskd.session().steps()"
"""What a survivor says when it cannot give up its step."""
NO_RESTARTS = "--max-restarts 0 ends the job instead, as torchrun does"
CURE = (
    "A script whose loop is `for step in session.steps(loader):` (README, A job that heals) has only the dead rank "
    "replaced once a step is done, and loses none."
)
_MOST_CAUSE = 480


def beginning(incident: Incident, decision: Decision, members: Membership, rules: Rules) -> str:
    """The text that goes to the nodes with a repair's orders. Called before the ranks get their new seats."""
    if decision.strategy is not Strategy.RESPAWN:
        return cut(decision.reason)
    who = _who(incident, with_refusals=False)  # the decision's reason names those
    why = decision.reason.removesuffix(ALL_AGAIN)
    cause = why if who in why else f"{who}; {why}"
    curable = NO_SESSION in why or not members.trained
    left = _left(incident, members, rules)
    parts = [f"{cut(cause, _MOST_CAUSE)}.", *_kept(incident, members), left, CURE if curable else ""]
    return cut(" ".join(filter(None, parts)))


def again(steps: int) -> str:
    """Which steps are done again, and from where."""
    what = f"{steps} {verb(steps, 'step is', 'steps are')}" if steps else "What was done is"
    return f"{what} done again: from the script's own checkpoint if it takes one up, else from step 0."


def _kept(incident: Incident, members: Membership) -> list[str]:
    """What became of the last checkpoint, and from where the script goes on."""
    what = f"{sentence(incident.checkpoint.text)}."
    if incident.checkpoint.updates >= 0:
        return [what, "A script that takes it up goes on there."]
    failed = incident.checkpoint.text and not incident.over.saved
    return [what if failed else "", again(members.steps_done)]


def saved(incident: Incident) -> str:
    """What the end of the job says of the last checkpoint. Empty: none was asked for."""
    return f"; {incident.checkpoint.text}" if incident.checkpoint.text else ""


def _who(incident: Incident, with_refusals: bool = True) -> str:
    """The deaths of the incident. Empty: no rank died."""
    fallen = causes_first(incident.fallen.values())
    dead = tuple(loss for loss in fallen if with_refusals or not loss.refused)
    return describe(dead) if dead else ""


def _left(incident: Incident, members: Membership, rules: Rules) -> str:
    """How often these ranks may still be restarted."""
    if not incident.fallen:
        return ""
    records = [members.ranks[rank] for rank in incident.fallen]
    used = max(record.restarts + (record.state is RankState.DEAD) for record in records)
    left = max(rules.max_restarts - used, 0)
    text = f"{left} of {rules.max_restarts}" if left else f"none of {rules.max_restarts}, another death ends the job"
    return f"Restarts left for {rank_words(incident.fallen)}: {text}; {NO_RESTARTS}."


def closed(incident: Incident, how: str) -> str:
    """The notice that an incident has ended."""
    assert incident.closed_at is not None
    took = f"after {milliseconds(incident.closed_at - incident.opened_at)} ms: {how}"
    if incident.outcome is Outcome.STARTED_OVER:
        return f"incident {incident.id} ends, all ranks have started over, {incident.over.lost}, {took}"
    return f"incident {incident.id} is {incident.outcome.value} {took}"


def started_over(over: StartsOver) -> str:
    """The part of a good end's notice that says how often the job has started over. Empty: never."""
    if not over.times:
        return ""
    return f" after all had started over {over.times} {verb(over.times, 'time', 'times')}, {over.lost}"


def ended(over: StartsOver) -> str:
    """The job's last line about starts over and lost steps. Empty: the job has never started over."""
    if not over.times:
        return ""
    how_often = f"{over.times} {verb(over.times, 'time', 'times')}"
    return f"this job has started over {how_often}: {_less(over)}"


def _less(over: StartsOver) -> str:
    """The steps lost, with the reservation for what taskd cannot see: the script's own checkpoint."""
    less = ", less what the script took up from its own checkpoint" if over.steps_lost and not over.saved else ""
    return over.lost + less


def waits(attempt: Attempt, at: int) -> str:
    """The notice that a stage takes long, but no rank is given up yet. Empty: it takes no longer than usual."""
    ranks, why = attempt.waiting.patient(at)
    if not ranks:
        return ""
    waited_s = attempt.waiting.patience.waited_ns(at) // SECOND
    has, is_ = verb(len(ranks), "has", "have"), verb(len(ranks), "it is", "they are")
    return cut(f"{rank_words(ranks)} {has} yet to {attempt.asked} after {waited_s} s; {is_} waited for, since {why}")


def done(losses: tuple[Loss, ...]) -> str:
    """The notice of deaths that cost nothing."""
    its = verb(len(losses), "its", "their")
    return f"{describe(losses)} when {its} work was done: that is no failure, and the others go on to their own end"


def mended(incident: Incident, proof: str, now: int) -> str:
    """The notice that training continues, after a repair that cost no step or from the beginning."""
    ms = milliseconds(now - incident.opened_at)
    if incident.over.times:
        cost = f"started over in {ms} ms, {_less(incident.over)}"
        return f"{cost}: {_who(incident) or incident.notes[0]} ({proof})"
    took = f"healed in {ms} ms, 0 steps lost"
    if not incident.fallen:
        return f"{incident.notes[0]}: {took} ({proof})"
    them = verb(len(incident.fallen), "it was", "they were")
    return f"{_who(incident)}; {them} replaced, the others went on: {took} ({proof})"
