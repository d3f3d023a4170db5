"""Errands: an operator wants a rank replaced, the ranks of a node moved to another one, or the job stopped, all of it
between two steps.

An errand lets all ranks stand before one step, as a pause does. Then the ranks that it is about are ended, and the
repair replaces them like ranks that have died. When all have the same state again, they go on. If the job is paused
already, that pause is used and stays. To stop a job is to end it while all stand; before that, the last checkpoint may
be written, by a repair that replaces nobody. Failure modes, and what follows:

- *It would cost more than a repair* (all ranks would start over, the job would end, no node has room): it is refused,
  with what would happen. This is asked again when all ranks stand.
- *A rank does not come to a stand* (it hangs): the rank to be replaced is ended in its step. Nothing else is done so.
- *The pause ends* (an operator resumes the job, a rank leaves): the errand has failed, and nothing was done.
- *A rank dies before its turn*: its repair comes first. A rank that was to be replaced is replaced by that. Otherwise
  the errand has failed: what the ladder would do within an incident was not asked.
- *The last checkpoint cannot be written*, or a rank dies meanwhile: the job is not stopped, and all ranks go on.
- *The node with room is lost meanwhile*: the ranks go back to their own node.
- *The manager is started again*: errands are wishes and verdicts in the journal, so it goes on where it was.
- *Two operators at once, or one that asks twice*: one errand at a time, and a request is followed once.

Invariants: no rank is ended for an errand whose forecast is no repair; a rank that an operator wants replaced uses up
no restart and no limit of a policy. Not here: the step on which ranks agree (pause), how ranks are replaced (repair),
what people are shown (facts).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from taskd.core import limits
from taskd.core.errands.forecast import why_not
from taskd.core.events import ErrandVerdict, ErrandWish, PauseWish
from taskd.core.job import Job
from taskd.core.pause.pauses import Pauses, PauseState
from taskd.core.proof.proofs import Proofs
from taskd.core.records import NodeState
from taskd.core.repair.incident import Incident
from taskd.core.repair.repairs import Repairs
from taskd.core.table import Table
from taskd.core.times import Moment
from taskd.core.types import ErrandFinding, ErrandKind, Outcome, RankState, StopKind, Strategy
from taskd.core.words import STOPPED_CODE, cut, rank_words, verb

OWN = "errand "
"""The beginning of the request of a pause that an errand has begun. The request of the errand follows."""


class ErrandState(Enum):
    """How far an errand is."""

    COMES = "waiting for all ranks to stand"
    REPLACES = "replacing ranks"
    SAVES = "writing the last checkpoint"
    LEAVES = "waiting for a launcher to end"
    ENDED = "over"


class ErrandCause(Enum):
    """What changes the state of an errand."""

    ACT = auto()  # its ranks are ended
    SAVE = auto()  # the last checkpoint is asked for
    MOVED = auto()  # no rank is left on the node
    END = auto()


_S, _C = ErrandState, ErrandCause
ERRAND = Table(
    "errand",
    "One errand of an operator, from the wish to its end.",
    _S.COMES,
    [
        (_S.COMES, _C.ACT, _S.REPLACES),
        (_S.COMES, _C.SAVE, _S.SAVES),
        (_S.REPLACES, _C.MOVED, _S.LEAVES),
        ((_S.COMES, _S.REPLACES, _S.SAVES, _S.LEAVES), _C.END, _S.ENDED),
    ],
)


@dataclass(slots=True, eq=False)
class Errand:
    """One errand."""

    wish: ErrandWish
    before: dict[int, tuple[int, str]]  # by rank: its incarnation and node when the errand began
    epoch: int = 0  # when the errand began
    state: ErrandState = ErrandState.COMES
    incident: int = 0  # of the repair that replaces its ranks; 0: not begun
    until: int | None = None  # when it is no longer waited for that a launcher ends
    done: bool = False
    words: str = ""  # how it has ended
    after: dict[int, tuple[int, str]] = field(default_factory=dict)  # as `before`, when it ended

    def is_for(self, wish: ErrandWish) -> bool:
        """Whether this wish is the same."""
        own = self.wish
        return (own.kind, own.node) == (wish.kind, wish.node) and (not wish.ranks or own.ranks == wish.ranks)

    @property
    def who(self) -> str:
        """Who pauses the job, if this errand does."""
        return f"the errand of {self.wish.by}"

    @property
    def what(self) -> str:
        """`restart rank 2`."""
        if self.wish.kind is ErrandKind.STOP:
            return "stop the job"
        if self.wish.kind is ErrandKind.SAVE:
            return "write the last checkpoint and stop the job"
        if self.wish.kind is ErrandKind.VACATE:
            return f"drain node {self.wish.node}"
        return f"restart {rank_words(self.wish.ranks)}"


class Errands:
    """The errand of one job, if there is one, and those that have ended."""

    def __init__(self, job: Job, pauses: Pauses, repairs: Repairs, proofs: Proofs) -> None:
        self.errand: Errand | None = None
        self.history: deque[Errand] = deque(maxlen=limits.MAX_KEPT_ERRANDS)
        self._job = job
        self._members = job.members
        self._pauses = pauses
        self._repairs = repairs
        self._proofs = proofs

    # ---- operators ----------------------------------------------------------------------------------------------

    def known(self, request: str) -> Errand | None:
        """Return the errand of this request."""
        errands = [*self.history, *([self.errand] if self.errand is not None else [])]
        return next((errand for errand in reversed(errands) if errand.wish.request == request), None)

    def wish(self, wish: ErrandWish, repairing: str, now: int) -> ErrandWish | str | None:
        """Return the wish if it can be followed, or else the reason. None: it was followed already. `repairing`: which
        repair is under way."""
        job, members, pause = self._job, self._members, self._pauses.pause
        if (known := self.known(wish.request)) is not None:
            return None if known.is_for(wish) else f"this request was used already, to {known.what}: use another one"
        if job.over is not None:
            return f"the job is over: {job.over.reason}"
        if self.errand is not None:
            return f"{self.errand.wish.by} has asked to {self.errand.what}: try again when that is over"
        if not members.world_size or not members.counts[RankState.ALIVE]:
            return "nothing is running: no rank has come yet, or all have ended"
        stands = pause is not None and pause.state is PauseState.STANDS
        if repairing or (self._repairs.case.attempts.attempt is not None and not (stands and wish.kind.stops)):
            return (
                f"a repair is under way ({repairing or 'its first step is still to come'}): try again when it is over"
            )
        absent = [record.rank for record in members.ranks if record.state is not RankState.ALIVE]
        if absent:
            return f"{rank_words(absent)} {verb(len(absent), 'is', 'are')} not there, or not heard: nothing to agree on"
        if pause is not None and pause.state is not PauseState.STANDS:
            return f"the job is being paused {pause.place} for {pause.by}: try again when it stands, or resume it"
        node = members.nodes.get(wish.node)
        if wish.kind is ErrandKind.VACATE and node is not None:
            wish = replace(wish, ranks=tuple(sorted(node.ranks)))
        return why_not(members, self._repairs, wish, self._proofs.parts, now) or wish

    def take(self, wish: ErrandWish, when: Moment) -> None:
        """Follow a wish that `wish` has accepted."""
        wish = replace(wish, by=cut(wish.by, limits.MAX_NAME))
        self.errand = Errand(wish, self._seats(wish.ranks), self._job.epoch)
        self._note(f"{wish.by} wants to {self.errand.what}")
        if self._pauses.pause is None:
            self._pauses.take(PauseWish(OWN + wish.request, self.errand.who, -1, wish.lease_ns), when)

    # ---- findings -----------------------------------------------------------------------------------------------

    def find(self, now: int) -> ErrandVerdict | None:
        """Return what is to be done now. Pass it to `apply` and call again, until it returns None."""
        errand, over = self.errand, self._job.over
        if errand is None:
            return None
        if over is not None and errand.state is ErrandState.SAVES and over.kind is StopKind.ASKED:
            return _verdict(ErrandFinding.DONE, over.reason)
        if over is not None:
            return _verdict(ErrandFinding.FAILED, f"the job is over: {over.reason}")
        if errand.state is ErrandState.SAVES:
            return None if self._repairs.case.busy else self._of_saving(errand)
        if errand.state is ErrandState.COMES:
            return None if self._repairs.case.busy else self._of_coming(errand, now)
        if errand.state is ErrandState.REPLACES:
            return self._of_replacing(errand)
        node = self._members.nodes.get(errand.wish.node)
        if node is None or node.state in (NodeState.LEFT, NodeState.LOST):
            return _verdict(
                ErrandFinding.DONE, f"{self._where(errand)}; the launcher of node {errand.wish.node} has ended"
            )
        if errand.until is not None and now >= errand.until:
            text = f"the launcher of node {errand.wish.node} has not ended yet"
            return _verdict(ErrandFinding.DONE, f"{self._where(errand)}; {text}")
        return None

    def _of_coming(self, errand: Errand, now: int) -> ErrandVerdict | None:
        wish, pause = errand.wish, self._pauses.pause
        restarts = wish.kind is ErrandKind.RESTART
        replaced = [rank for rank, seat in errand.before.items() if self._members.ranks[rank].incarnation != seat[0]]
        if replaced and restarts:
            return _verdict(ErrandFinding.DONE, f"{rank_words(replaced)} died meanwhile, and was replaced for that")
        if replaced:
            return _verdict(ErrandFinding.FAILED, f"{rank_words(replaced)} died meanwhile: ask again")
        if self._job.epoch != errand.epoch and not wish.kind.stops:
            return _verdict(ErrandFinding.FAILED, "a repair came first: ask again")
        if pause is not None and pause.state is not PauseState.STANDS:
            return None
        last = self._pauses.last
        deaf = pause is None and last is not None and last.outcome == "lapsed"
        if pause is None and not (deaf and restarts):
            why = last.words if last is not None else "the pause is unknown"
            return _verdict(ErrandFinding.FAILED, f"the ranks do not stand before a step: {why}")
        if text := why_not(self._members, self._repairs, wish, self._proofs.parts, now):
            return _verdict(ErrandFinding.FAILED, text)
        text = f"all ranks stood {pause.place}" if pause is not None else "not all ranks came to a stand in time"
        return _verdict(ErrandFinding.ACT, text)

    def _of_saving(self, errand: Errand) -> ErrandVerdict:
        """The job was not ended, so the last checkpoint is not written."""
        case = self._repairs.case
        known = [*case.history, *([case.incident] if case.incident is not None else [])]
        incident = next((one for one in known if one.id == errand.incident), None)
        why = "" if incident is None else incident.checkpoint.text
        over = ", and all ranks have started over" if incident is not None and incident.over.times else ""
        return _verdict(ErrandFinding.FAILED, f"{why or 'a rank died meanwhile'}{over}: the job is not stopped")

    def _of_replacing(self, errand: Errand) -> ErrandVerdict | None:
        case, node = self._repairs.case, errand.wish.node
        if case.attempts.placing and not case.attempts.held and node in self._members.vacated:
            return _verdict(ErrandFinding.BACK, f"no other node has room any more, so node {node} is used again")
        own, incident = self._own_pause(errand), case.incident
        if case.busy:
            return None
        if own:
            return _verdict(ErrandFinding.FREE, "the ranks are replaced")
        if incident is not None and incident.id == errand.incident and self._pauses.pause is None:
            return None  # it ends with the first step
        known = [*case.history, *([incident] if incident is not None else [])]
        return self._of_end(errand, next((one for one in known if one.id == errand.incident), None))

    def _of_end(self, errand: Errand, incident: Incident | None) -> ErrandVerdict:
        """The repair has ended, or all ranks are back in it and stand for another operator."""
        ranks, node = self._members.ranks, self._members.nodes.get(errand.wish.node)
        if incident is None or incident.outcome not in (Outcome.HEALED, Outcome.OPEN):
            how = "it had died already" if incident is None else f"the repair ended otherwise: {incident.outcome.value}"
            return _verdict(ErrandFinding.FAILED, how)
        if missing := [rank for rank in errand.wish.ranks if ranks[rank].state is not RankState.ALIVE]:
            return _verdict(ErrandFinding.FAILED, f"{rank_words(missing)} {verb(len(missing), 'is', 'are')} not back")
        if errand.wish.kind is ErrandKind.RESTART:
            return _verdict(ErrandFinding.DONE, self._where(errand))
        if node is not None and node.ranks:
            text = f"{rank_words(node.ranks)} {verb(len(node.ranks), 'is', 'are')} on node {node.name} still, or again"
            return _verdict(ErrandFinding.FAILED, f"{text}: no other node had room")
        return _verdict(ErrandFinding.MOVED, self._where(errand))

    def apply(self, verdict: ErrandVerdict, when: Moment) -> None:
        """Do what was found."""
        errand, finding = self.errand, verdict.finding
        if errand is None:
            return
        if finding is ErrandFinding.ACT:
            self._act(errand, verdict.reason, when)
        elif finding is ErrandFinding.FREE:
            self._free(errand, when)
        elif finding is ErrandFinding.BACK:
            self._members.vacated.discard(errand.wish.node)
            self._note(verdict.reason)
            self._repairs.roomier(when)
        elif finding is ErrandFinding.MOVED:
            errand.state = ERRAND.after(errand.state, ErrandCause.MOVED)
            errand.until = when.now + limits.ERRAND_LEAVE_NS
            self._note(f"{verdict.reason}: the launcher of node {errand.wish.node} is told to end")
        else:
            self._end(errand, finding is ErrandFinding.DONE, verdict.reason, when)

    def _act(self, errand: Errand, reason: str, when: Moment) -> None:
        wish, case = errand.wish, self._repairs.case
        saves = wish.kind is ErrandKind.SAVE
        errand.state = ERRAND.after(errand.state, ErrandCause.SAVE if saves else ErrandCause.ACT)
        if wish.kind.stops:
            who = f"the job is stopped for {wish.by}" if wish.node else f"an operator has stopped the job: {wish.by}"
            text = f"{who}, when {reason}"
            if saves:
                trouble = f"{wish.by} wants the last checkpoint, and then the end of the job"
                self._repairs.faults.stops(trouble, text, when)
                errand.incident = 0 if case.incident is None else case.incident.id
                return
            self._repairs.ending.finish(STOPPED_CODE, text, when.now, StopKind.ASKED)
            self._end(errand, True, reason, when)
            return
        self._note(f"{rank_words(wish.ranks)} {verb(len(wish.ranks), 'is', 'are')} ended for {wish.by}: {reason}")
        if wish.kind is ErrandKind.VACATE:
            self._members.vacated.add(wish.node)
        self._repairs.faults.asked(wish.ranks, wish.by, when)
        errand.incident = 0 if case.incident is None else case.incident.id

    def _end(self, errand: Errand, done: bool, words: str, when: Moment) -> None:
        self._free(errand, when)
        incident, node = self._repairs.case.incident, self._members.nodes.get(errand.wish.node)
        if incident is not None and incident.id == errand.incident and errand.wish.kind is ErrandKind.SAVE:
            incident.checkpoint.stops = incident.checkpoint.text = ""
            incident.exhausted.discard(Strategy.DUMP)  # a death may need it yet
        if not done or (node is not None and node.state in (NodeState.LEFT, NodeState.LOST)):
            self._members.vacated.discard(errand.wish.node)
        errand.state = ERRAND.after(errand.state, ErrandCause.END)
        errand.done, errand.words, errand.after = done, words, self._seats(errand.wish.ranks)
        self.errand = None
        self.history.append(errand)
        how = "is done" if done else "has failed"
        self._note(f"what {errand.wish.by} asked for ({errand.what}) {how}: {words}")

    def _free(self, errand: Errand, when: Moment) -> None:
        """Let all ranks go on, if they stand for this errand only."""
        if self._own_pause(errand) and self._job.over is None:
            self._pauses.take(PauseWish(OWN + errand.wish.request, errand.who), when)

    def _own_pause(self, errand: Errand) -> bool:
        pause = self._pauses.pause
        return pause is not None and pause.request == OWN + errand.wish.request

    # ---- words --------------------------------------------------------------------------------------------------

    def _seats(self, ranks: Iterable[int]) -> dict[int, tuple[int, str]]:
        known = self._members.ranks
        return {rank: (known[rank].incarnation, known[rank].where) for rank in ranks}

    def _where(self, errand: Errand) -> str:
        """`rank 2 runs as incarnation 2 on node b`, `ranks 2-3 run on node c`."""
        ranks = errand.wish.ranks
        places = sorted({self._members.ranks[rank].where for rank in ranks})
        on = f"on {verb(len(places), 'node', 'nodes')} {', '.join(places)}"
        if len(ranks) == 1:
            return f"rank {ranks[0]} runs as incarnation {self._members.ranks[ranks[0]].incarnation} {on}"
        return f"{rank_words(ranks)} run {on}"

    def _note(self, text: str) -> None:
        self._job.note("operator", text, incident=0)


def _verdict(finding: ErrandFinding, text: str) -> ErrandVerdict:
    return ErrandVerdict(finding, cut(text))
