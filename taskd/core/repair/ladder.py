"""The ladder: which strategy repairs a fault, from the cheapest to the most expensive, and the sentence that says why.

`decide` is a pure function of a `Situation`, which holds everything that `decide` reads. Failure modes, and what
follows:

- *A strategy has failed too often in this incident*: it is exhausted and the next rung is taken. EXIT is always left.
- *A script fails at start on every rank*: one EXIT with the cause, no restart storm.
- *A step raises each time it is done*: EXIT with that error. No newcomer is started, since it would raise again.
- *An operator ends the job with a checkpoint*: EXIT once it is written. If it cannot be, the job goes on.
- *Nothing is lost* (the dead ranks had done their work), or only an external launcher can start ranks: OBSERVE.
- *All start over again and again, and come to the same end each time*: EXIT, after as many starts as a rank may have.
- *Ranks were found to hold different things*: no newcomer can take what a lost rank held from another one.
- *All would start again, or the job would end*: survivors first write the last checkpoint, if the script has said how.
  Not if a step raises each time: then what ends the job is the script's own, and may be in its state.
- *The user's policy has a ruling* (policy.ruling): that no rank is started again, or that more than the dead ranks are.

Not here: which ranks count as lost, where there is room (placement), and how a strategy is carried out (attempts).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from taskd.core.policy.rules import Event, Fail, Fault, Scope
from taskd.core.policy.ruling import PLAIN, Ruling
from taskd.core.types import GivenUp, StopKind, Strategy
from taskd.core.words import (
    LEFT_EARLY,
    RAISED_AGAIN,
    STOPPED_CODE,
    cut,
    exit_words,
    follows,
    join,
    rank_words,
    shell_code,
    verb,
)

_MOST_REASON = 200
ALL_AGAIN = ", so all start again: respawn"
SAVES_FIRST = "; before that, the last checkpoint is written: dump"
REPAIRS = frozenset({Strategy.IN_PLACE, Strategy.RESPAWN, Strategy.RECOVER})


@dataclass(frozen=True, slots=True)
class Loss:
    """One dead rank, as the ladder sees it."""

    rank: int
    node: str
    exit_code: int
    reason: str
    restarts: int
    home: bool  # its node's agent lives and can start it again
    watched_only: bool  # its node's agent is (or was) a side process, which starts no ranks
    finished: bool  # its work was done, so nothing is lost
    device: int = -1  # the device at its place there, if that is lost
    moves: bool = False  # that device is lost, or the node to be vacated, and another node has room for the rank
    given_up: GivenUp | None = None  # why, if its process lived
    events: frozenset[Event] = frozenset()

    @property
    def asked(self) -> bool:
        """Whether an operator wanted it ended. That is no fault, so no policy is asked about it."""
        return self.given_up is GivenUp.ASKED

    @property
    def refused(self) -> bool:
        """Whether the rank itself has said that going on would be wrong."""
        return self.given_up is GivenUp.REFUSED

    @property
    def ended(self) -> bool:
        """Whether its process was well and is ended on purpose."""
        return self.asked or self.refused

    @property
    def left(self) -> bool:
        """Whether the rank has left by itself inside a step. The others may soon do the same."""
        return self.reason.startswith(LEFT_EARLY)

    @property
    def raised_again(self) -> bool:
        """Whether its script raises the same error each time it does this step."""
        return self.reason.startswith(RAISED_AGAIN)

    @property
    def fault(self) -> Fault:
        """How a policy sees it."""
        code = shell_code(self.exit_code) if self.exit_code else 0
        return Fault(self.rank, code, self.events, self.reason)

    @property
    def follows(self) -> bool:
        """Whether another rank is the cause of its death."""
        return follows(self.reason) or self.given_up is GivenUp.WITH_ITS_NODE

    @property
    def words(self) -> str:
        """How it died, for the brackets of a sentence."""
        if not self.exit_code:
            return self.reason or "no exit code"
        return exit_words(self.exit_code) + (f": {cut(self.reason, _MOST_REASON)}" if self.reason else "")


@dataclass(frozen=True, slots=True)
class Saving:
    """What there is to know about the last checkpoint."""

    possible: bool = False  # survivors can write it
    done: bool = False  # it is written
    stops: str = ""  # why the job ends then, although nothing has failed; empty: it does not


NO_SAVING = Saving()


@dataclass(frozen=True, slots=True)
class Objection:
    """What speaks against a repair, in words. Empty: nothing does."""

    to_replacing: str = ""  # no rank's state can replace another's
    to_starting_over: str = ""  # it has come to the same end too often


NO_OBJECTION = Objection()


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that the ladder reads."""

    losses: tuple[Loss, ...]
    trouble: str  # what went wrong, if no rank died
    world_size: int
    left: tuple[int, ...]  # ranks that have ended in good order
    allowed: frozenset[Strategy]  # none if recovery is off in this job
    exhausted: frozenset[Strategy]
    max_restarts: int
    trained: bool
    state_lost: bool  # survivors were asked, and none holds a whole state
    repairing: bool  # ranks are parked for a repair, so it must be brought to an end
    all_start: bool  # every rank's node can start workers, or the rank can be placed elsewhere
    objection: Objection = NO_OBJECTION
    saving: Saving = NO_SAVING
    fallen: tuple[Loss, ...] = ()  # ranks that died in this incident, in time order, with those started again
    ruling: Ruling = PLAIN  # what the user's policy says about these losses


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done, and why."""

    strategy: Strategy
    reason: str
    exit_code: int = 0
    kind: StopKind = StopKind.OVER


def causes_first(losses: Iterable[Loss]) -> tuple[Loss, ...]:
    """The same losses, but a rank that died of a failed operation comes after the ranks that may have caused the
    failure. One report names all deaths of a node, without their order."""
    return tuple(sorted(losses, key=lambda loss: loss.follows))


def faults(losses: Iterable[Loss]) -> tuple[Fault, ...]:
    """The faults about which a policy is asked: not those of ranks that died because others had. What all start over
    for is no matter of a policy, either."""
    known = tuple(loss for loss in losses if not loss.ended)
    causes = [loss for loss in known if not loss.follows]
    return tuple(loss.fault for loss in causes or known)


def decide(now: Situation) -> Decision:
    """Return the cheapest rung that can repair this situation. Before training is lost, its state is saved."""
    found = _decide(now)
    loses = found.strategy is Strategy.EXIT or (found.strategy is Strategy.RESPAWN and now.trained)
    sound = not any(loss.raised_again for loss in now.losses)
    if loses and sound and now.saving.possible and Strategy.DUMP in now.allowed - now.exhausted:
        return Decision(Strategy.DUMP, f"{found.reason}{SAVES_FIRST}")
    return found


def _decide(now: Situation) -> Decision:
    if now.saving.stops and (now.saving.done or not (now.losses or now.left or _failed_before(now))):
        return _stop(now)
    what = describe(now.losses) if now.losses else now.trouble
    if now.left and now.fallen and not now.losses:
        what = f"{describe(now.fallen)}, and {now.trouble}"
    if not now.allowed & REPAIRS:
        return Decision(Strategy.OBSERVE, f"{what}; recovery is off in this job: observe")
    if now.losses and not now.repairing and all(loss.finished for loss in now.losses):
        return Decision(
            Strategy.OBSERVE, f"{what} when {_its(now)} work was done, so nothing is lost or to be repaired: observe"
        )
    if now.losses and not now.repairing and all(loss.watched_only for loss in now.losses):
        return Decision(Strategy.OBSERVE, f"{what}, whose launcher is not ours to start it again: observe")
    impossible = now.ruling.ends or _impossible(now)
    if impossible:
        return _give_up(now, f"{what}; {impossible}", now.losses or now.fallen)
    found = _climb(now, what)
    if found.strategy is Strategy.RESPAWN and now.objection.to_starting_over:
        return _give_up(now, f"{what}; {now.objection.to_starting_over}", now.losses or now.fallen)
    return found


def _failed_before(now: Situation) -> bool:
    """Whether not even a repair that replaces nobody lets all go on."""
    return now.state_lost or Strategy.IN_PLACE in now.exhausted


def _stop(now: Situation) -> Decision:
    """An operator ends the job, but not without a checkpoint."""
    if now.saving.done:
        return Decision(Strategy.EXIT, now.saving.stops, STOPPED_CODE, StopKind.ASKED)
    if now.saving.possible and Strategy.DUMP in now.allowed - now.exhausted:
        return Decision(Strategy.DUMP, f"{now.trouble}: dump")
    return Decision(Strategy.IN_PLACE, f"{now.trouble}; it is not written, so all ranks go on: recover-in-place")


def _give_up(now: Situation, why: str, blamed: tuple[Loss, ...]) -> Decision:
    """No repair is made: the job ends, unless the policy lets it outlive these losses. Ranks that are parked for a
    repair cannot go on without one, so their job ends."""
    fail, lost = now.ruling.fail, {loss.rank for loss in now.losses}
    outlived = fail is Fail.NONE or (fail is Fail.RANK_0 and 0 not in lost)
    outlived = outlived or (fail is Fail.ALL and len(lost) + len(now.left) < now.world_size)
    if outlived and lost and not now.repairing:
        text = f"{why}; failPolicy {fail.value} lets the others go on without {_them(now)}: observe"
        return Decision(Strategy.OBSERVE, cut(text))
    return Decision(Strategy.EXIT, cut(f"{why}: exit"), exit_code_of(blamed))


def describe(losses: tuple[Loss, ...]) -> str:
    """Describe the losses: `rank 2 died (SIGKILL) on node a`."""
    assert losses
    dead, ended = (tuple(loss for loss in losses if loss.ended is which) for which in (False, True))
    if dead and ended:
        return f"{describe(dead)}; {describe(ended)}"
    first = losses[0]
    same = {(loss.words, loss.node) for loss in losses}
    ranks = rank_words(loss.rank for loss in losses)
    died = verb(len(losses), "was ended", "were ended") if ended else "died"
    if len(same) == 1:
        return f"{ranks} {died} ({first.words}) on node {first.node}"
    if len({loss.words for loss in losses}) == 1:
        return f"{ranks} {died} ({first.words}) on nodes {join(sorted({loss.node for loss in losses}))}"
    each = [f"rank {loss.rank} ({loss.words}) on node {loss.node}" for loss in losses[:4]]
    if len(losses) > 4:
        each.append(f"{len(losses) - 4} more")
    return f"{join(each)} died"


def _impossible(now: Situation) -> str:
    """Why no repair can help. Empty: one may help."""
    if now.left:
        has = verb(len(now.left), "has", "have")
        return f"{rank_words(now.left)} {has} left with exit code 0 before and can repair nothing"
    own = all(loss.exit_code > 0 for loss in now.losses)
    if now.losses and len(now.losses) == now.world_size and own and not now.trained:
        return "every rank failed in its set-up, so starting again would not help"
    if again := [loss.rank for loss in now.losses if loss.raised_again]:
        return f"what {rank_words(again)} {verb(len(again), 'raises', 'raise')} is no passing error"
    spent = [loss for loss in now.losses if loss.restarts >= now.max_restarts]
    if spent:
        times = spent[0].restarts
        if not times:
            return f"{rank_words(loss.rank for loss in spent)} may not be started again (--max-restarts 0)"
        return (
            f"{rank_words(loss.rank for loss in spent)} {verb(len(spent), 'was', 'were')} started again "
            f"{times} {verb(times, 'time', 'times')}, which is the limit"
        )
    return ""


def exit_code_of(losses: tuple[Loss, ...]) -> int:
    """The job's exit code after these losses: that of the first one (in time) whose work was not done."""
    first = next((loss for loss in losses if not loss.finished), losses[0] if losses else None)
    return shell_code(first.exit_code) if first is not None else 1


def _climb(now: Situation, what: str) -> Decision:
    """Try the rungs, from the cheapest to the most expensive."""
    open_rungs = now.allowed - now.exhausted
    everybody = len(now.losses) == now.world_size
    respawn = Strategy.RESPAWN in open_rungs and now.all_start
    if now.ruling.scope is Scope.ALL and now.losses:
        if Strategy.RESPAWN in open_rungs:  # even if some have no node yet: they wait for one
            return Decision(Strategy.RESPAWN, f"{what}; {now.ruling.why}{ALL_AGAIN}")
        return _give_up(now, f"{what}; {now.ruling.why}, and that has failed", now.losses)
    plain = what
    if now.ruling.why:
        what += f" ({now.ruling.why})"
    if now.objection.to_replacing and now.losses and now.trained:
        if Strategy.RESPAWN in open_rungs:  # likewise
            return Decision(Strategy.RESPAWN, f"{what}; {now.objection.to_replacing}{ALL_AGAIN}")
        return _give_up(now, f"{what}; {now.objection.to_replacing}", now.losses)
    if respawn and not now.trained:
        return Decision(Strategy.RESPAWN, f"{what} before any step was seen to be done{ALL_AGAIN}")
    if respawn and now.state_lost:
        return Decision(Strategy.RESPAWN, f"{what}{ALL_AGAIN}")
    if respawn and everybody:
        return Decision(Strategy.RESPAWN, f"{what} and nobody holds the state{ALL_AGAIN}")
    if not now.losses and not now.state_lost and Strategy.IN_PLACE in open_rungs:
        return Decision(Strategy.IN_PLACE, f"{what}: recover-in-place")
    if not everybody and not now.state_lost:
        home = all(loss.home for loss in now.losses)
        if Strategy.RECOVER in open_rungs and any(loss.moves for loss in now.losses):
            return Decision(Strategy.RECOVER, f"{what}; {_why_they_move(now)}: recover")
        if Strategy.IN_PLACE in open_rungs and home:
            on = f", though {_lost_devices(now)}" if any(loss.device >= 0 for loss in now.losses) else ""
            text = f"{what}, whose agent can start {_them(now)} again{on}: recover-in-place"
            return Decision(Strategy.IN_PLACE, text)
        if respawn and home and Strategy.IN_PLACE in now.exhausted:
            return Decision(Strategy.RESPAWN, f"{what} and repair in place has failed{ALL_AGAIN}")
        if Strategy.RECOVER in open_rungs:
            return Decision(Strategy.RECOVER, f"{what}, {_why_not_home(now, home)}: recover")
    if respawn:
        return Decision(Strategy.RESPAWN, f"{what} and every cheaper repair has failed{ALL_AGAIN}")
    failed = sorted(strategy.value for strategy in now.exhausted - {Strategy.DUMP})
    why = f"{join(failed)} {verb(len(failed), 'has', 'have')} failed" if failed else "no allowed strategy can repair it"
    if now.losses and now.trouble and now.trouble != plain:
        why = f"{now.trouble}, {why}"
    return _give_up(now, f"{what}; {why}", now.losses)


def _why_not_home(now: Situation, home: bool) -> str:
    if not home:
        return f"which cannot start {_them(now)} again"
    return "where it has failed" if Strategy.IN_PLACE in now.exhausted else "in place is not an allowed strategy"


def _why_they_move(now: Situation) -> str:
    if any(loss.moves and loss.device >= 0 for loss in now.losses):
        return f"{_lost_devices(now)}, and another node has room"
    return "that node is to be vacated, and another one has room"


def _lost_devices(now: Situation) -> str:
    """Which devices are lost, and why their ranks stay if they do."""
    lost = [loss for loss in now.losses if loss.device >= 0]
    names = join(sorted({f"device {loss.device} of node {loss.node}" for loss in lost})[:4])
    if any(loss.moves for loss in lost):
        return f"{names} {verb(len(lost), 'is', 'are')} lost"
    return f"{names} {verb(len(lost), 'is', 'are')} lost and no other node has room"


def _its(now: Situation) -> str:
    return verb(len(now.losses), "its", "their")


def _them(now: Situation) -> str:
    return verb(len(now.losses), "it", "them")
