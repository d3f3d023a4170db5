"""The pause of a job: an operator wants all ranks to stand before one step, and to go on later.

The manager asks all ranks which step they have begun, and each promises to begin no other one. Then the manager names
the step that none has begun (or the operator's own), and every rank stands before it. The operator hears when all
stand. Failure modes, and what follows:

- *Nobody resumes the job* (the operator is lost): the lease ends, and all ranks go on.
- *The manager is lost*: each rank goes on by itself when the lease ends. A new manager finds the pause in its journal.
- *The journal is lost*: a node holds an order that this manager never gave. Then nothing is paused any more.
- *A rank has passed the step* (its promise has ended, it missed a renewal, its script counts in its own way): all are
  asked again, for a later step. After some rounds the pause is given up.
- *A rank dies*: the repair comes first. Then all are asked again, and the newcomer stands like the others.
- *A rank cannot stand, or has ended its training*: the pause is given up, with that rank's reason.

Invariants: no order names a step that a rank has begun, as far as ranks have said; one pause at a time; numbers of
orders only grow, over the whole job. Every change is a wish or a verdict in the journal, so a replay needs no answer of
a rank. Not here: what ranks do (guard), what nodes relay (relay), what people are shown (facts).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from taskd.core import limits
from taskd.core.events import PauseVerdict, PauseWish
from taskd.core.job import Job
from taskd.core.pause.messages import PauseAnswer, PauseAnswers, PauseOrder
from taskd.core.records import NodeState
from taskd.core.table import Table
from taskd.core.times import Moment, long_ago
from taskd.core.types import PauseFinding, PauseKind, RankState
from taskd.core.words import cut, rank_words, verb


class PauseState(Enum):
    """How far a pause is."""

    ASKS = "agreeing on a step"
    COMES = "coming to a stand"
    STANDS = "paused"
    WAITS = "waiting for a repair"
    ENDED = "over"


class PauseCause(Enum):
    """What changes the state of a pause."""

    AGREED = auto()  # every rank has told which step it has begun
    STOOD = auto()  # every rank stands before the agreed step
    AGAIN = auto()  # a rank has passed that step, or a repair is over
    REPAIR = auto()  # a repair has begun
    END = auto()


_S, _C = PauseState, PauseCause
_OPEN = (_S.ASKS, _S.COMES, _S.STANDS, _S.WAITS)
PAUSE = Table(
    "pause",
    "One pause of the job, from an operator's wish to its end.",
    _S.ASKS,
    [
        (_S.ASKS, _C.AGREED, _S.COMES),
        (_S.COMES, _C.STOOD, _S.STANDS),
        (_OPEN, _C.AGAIN, _S.ASKS),
        ((_S.ASKS, _S.COMES, _S.STANDS), _C.REPAIR, _S.WAITS),
        (_OPEN, _C.END, _S.ENDED),
    ],
)
_OUTCOME = {
    PauseFinding.LAPSED: "lapsed",
    PauseFinding.REFUSED: "refused",
    PauseFinding.UNDONE: "undone",
    PauseFinding.FORGOTTEN: "undone",
}


@dataclass(slots=True, eq=False)
class Pause:
    """One pause."""

    request: str  # the operator's own name for the wish; a repeated wish has the same one
    by: str
    wanted: int  # the step that the operator has named; -1: none
    lease_ns: int
    until: int | None  # when the lease ends, by the manager's clock; None: it begins when a rank stands
    state: PauseState = PauseState.ASKS
    step: int = -1  # the agreed step
    rounds: int = 1
    outcome: str = ""
    words: str = ""

    @property
    def place(self) -> str:
        """`before step 7`, or what the operator has asked for."""
        step = self.step if self.step >= 0 else self.wanted
        return f"before step {step}" if step >= 0 else "at the next step that no rank has begun"


class Pauses:
    """The pause of one job, if there is one, and its orders."""

    def __init__(self, job: Job) -> None:
        self.pause: Pause | None = None
        self.last: Pause | None = None  # the pause that ended last, for the operator who asks again
        self.number = 0  # of the newest order
        self.resumed = ""  # the request that has ended a pause last
        self._job = job
        self._order = (PauseKind.FREE, -1)
        self._answers: dict[int, PauseAnswer] = {}
        self._holds: dict[str, int] = {}  # by node: the number of the order that it holds
        self._told_at: dict[str, int] = {}  # by node: when it was sent the order that it does not hold

    # ---- operators ----------------------------------------------------------------------------------------------

    def wish(self, wish: PauseWish, repairing: str) -> PauseWish | str | None:
        """Return the wish if it can be followed, or else the reason. None: it was followed already. `repairing`: which
        repair is under way."""
        job, pause, members = self._job, self.pause, self._job.members
        if not wish.lease_ns:
            return None if pause is None else wish
        if job.over is not None:
            return f"the job is over: {job.over.reason}"
        if pause is not None:
            if wish.request == pause.request:
                return None
            if wish.step >= 0 and wish.step not in (pause.wanted, pause.step):
                return f"the job is being paused {pause.place} already, by {pause.by}: resume it first"
            return wish
        if not members.world_size or not members.counts[RankState.ALIVE]:
            return "nothing is running: no rank has come yet, or all have ended"
        if repairing:
            return f"a repair is under way ({repairing}): try again when it is over"
        absent = [record.rank for record in members.ranks if record.state is not RankState.ALIVE]
        if absent:
            return f"{rank_words(absent)} {verb(len(absent), 'is', 'are')} not there, or not heard: nothing to agree on"
        return wish

    def take(self, wish: PauseWish, when: Moment) -> None:
        """Follow a wish that `wish` has accepted."""
        pause = self.pause
        if not wish.lease_ns:
            if pause is not None:
                self.resumed = wish.request
                self._end(pause, "resumed", f"{wish.by} has resumed the job", when.now)
            return
        until = when.now + wish.lease_ns
        if pause is None:
            begins = until if wish.step < 0 else None
            self.pause = Pause(wish.request, cut(wish.by, limits.MAX_NAME), wish.step, wish.lease_ns, begins)
            self._job.members.paused = True
            self._note(f"{wish.by} wants the job to pause {self.pause.place}, for {_seconds(wish.lease_ns)} at most")
            self._give(PauseKind.ASK, -1, when.now)
            return
        pause.request, pause.lease_ns = wish.request, wish.lease_ns
        pause.until = None if pause.until is None else until
        self._note(f"{wish.by} renews the pause {pause.place}, for {_seconds(wish.lease_ns)} at most")
        self._give(*self._order, when.now)

    # ---- nodes --------------------------------------------------------------------------------------------------

    def file(self, node: str, told: PauseAnswers) -> None:
        """Take the answers of a node's ranks."""
        number = max([told.number, *(one.number for one in told.answers)])
        if number - self.number > limits.MAX_LEAP:
            self._job.members.counters.count("leap of a pause order")
            return
        self._holds[node] = number
        ranks = self._job.members.ranks
        for one in told.answers:
            if one.rank < len(ranks) and ranks[one.rank].where == node:
                self._answers[one.rank] = one

    def forget(self, node: str) -> None:
        """A node is gone."""
        self._holds.pop(node, None)
        self._told_at.pop(node, None)

    def introduced(self, node: str) -> None:
        """A node's agent has introduced itself. It may hold no order, while its ranks still follow one."""
        self._holds.pop(node, None)

    def restarted(self) -> None:
        """The manager was away: it does not know what ranks and nodes have answered meanwhile."""
        self._holds.clear()
        self._told_at.clear()
        self._answers.clear()

    def answer(self, rank: int) -> PauseAnswer | None:
        """Return what a rank has said about the order in force."""
        one, record = self._answers.get(rank), self._job.members.ranks[rank]
        current = one is not None and (one.number, one.incarnation) == (self.number, record.incarnation)
        return one if current else None

    # ---- findings -----------------------------------------------------------------------------------------------

    def find(self, now: int, repairing: bool) -> PauseVerdict | None:
        """Return what is to be done now. Pass it to `apply` and call again, until it returns None."""
        if (not self.number and not self._holds) or (self._job.over is not None and self.pause is None):
            return None
        ahead = [node for node, number in self._holds.items() if number > self.number]
        if ahead:
            newest = max(self._holds[node] for node in ahead)
            text = f"node {ahead[0]} holds pause order {newest} of the past, which this manager does not know"
            return PauseVerdict(PauseFinding.FORGOTTEN, newest, (), cut(text))
        if self.pause is not None and (verdict := self._of_pause(self.pause, now, repairing)) is not None:
            return verdict
        nodes = tuple(sorted(node for node in self._wanting() if self._is_due(node, now)))
        return PauseVerdict(PauseFinding.UNTOLD, -1, nodes, "") if nodes else None

    def _wanting(self) -> list[str]:
        """The nodes that do not hold the order in force. When nothing is paused, only nodes that were told count."""
        nodes = self._job.members.nodes
        up = [name for name, node in nodes.items() if node.state in (NodeState.UP, NodeState.SILENT)]
        lacking = [name for name in up if self._holds.get(name) != self.number]
        heard = self._told_at.keys() | self._holds.keys()
        return lacking if self.pause is not None else [name for name in lacking if name in heard]

    def _is_due(self, node: str, now: int) -> bool:
        up = self._job.members.nodes[node].state is NodeState.UP
        return up and long_ago(self._told_at.get(node), now, limits.ORDER_REPEAT_NS)

    def _of_pause(self, pause: Pause, now: int, repairing: bool) -> PauseVerdict | None:
        if self._job.over is not None:
            return PauseVerdict(PauseFinding.UNDONE, -1, (), "the job is over")
        if pause.until is not None and now >= pause.until:
            return PauseVerdict(PauseFinding.LAPSED, -1, (), "nobody has renewed it in time")
        if repairing:
            waits = pause.state is not PauseState.WAITS
            return PauseVerdict(PauseFinding.WAITS, -1, (), "a repair comes first") if waits else None
        if pause.state is PauseState.WAITS:
            return PauseVerdict(PauseFinding.AGAIN, -1, (), "the repair has come to its end")
        ranks = self._job.members.ranks
        if any(record.state is RankState.LEFT for record in ranks):
            left = [record.rank for record in ranks if record.state is RankState.LEFT]
            has = verb(len(left), "has", "have")
            return PauseVerdict(PauseFinding.UNDONE, -1, (), f"{rank_words(left)} {has} ended in good order")
        answers = [one for record in ranks if (one := self.answer(record.rank)) is not None]
        unable = next((one for one in answers if one.trouble), None)
        if unable is not None:
            return PauseVerdict(PauseFinding.REFUSED, -1, (), cut(f"rank {unable.rank} cannot: {unable.trouble}"))
        passed = [one for one in answers if one.begun >= one.limit]
        if passed:
            return self._passed(pause, passed, len(answers) < len(ranks))
        if any(one.stands for one in answers) and pause.until is None and pause.state is not PauseState.ASKS:
            return PauseVerdict(PauseFinding.COUNTS, -1, (), "a rank stands")
        if len(answers) < len(ranks):
            return None
        if pause.state is PauseState.ASKS:
            return self._agrees(pause, answers)
        if pause.state is PauseState.COMES and all(one.stands for one in answers):
            return PauseVerdict(PauseFinding.STANDS, pause.step, (), f"all {len(ranks)} ranks stand")
        return None

    def _passed(self, pause: Pause, passed: list[PauseAnswer], some_missing: bool) -> PauseVerdict:
        """Some ranks have begun a step that they were not to begin. `some_missing`: others have not answered at all."""
        far = max(passed, key=lambda one: one.begun)
        step = far.begun + far.stands
        text = f"rank {far.rank} {'comes to' if far.stands else 'has begun'} step {step} already"
        if pause.wanted >= 0 and far.begun >= pause.wanted:
            return PauseVerdict(PauseFinding.REFUSED, -1, (), text)
        if some_missing and pause.state is PauseState.ASKS:
            silent = [record.rank for record in self._job.members.ranks if self.answer(record.rank) is None]
            text = f"{rank_words(silent)} did not tell {verb(len(silent), 'its', 'their')} step in time"
        if pause.rounds >= limits.PAUSE_ROUNDS:
            text = f"no step found in {pause.rounds} rounds: {text}"
            return PauseVerdict(PauseFinding.UNDONE, -1, (), text)
        return PauseVerdict(PauseFinding.AGAIN, -1, (), text)

    def _agrees(self, pause: Pause, answers: list[PauseAnswer]) -> PauseVerdict:
        far = max(answers, key=lambda one: one.begun)
        if 0 <= pause.wanted <= far.begun:
            return PauseVerdict(PauseFinding.REFUSED, -1, (), f"rank {far.rank} has begun step {far.begun} already")
        step = pause.wanted if pause.wanted >= 0 else far.begun + 1
        return PauseVerdict(PauseFinding.AGREED, step, (), f"no rank has begun step {step}")

    def apply(self, verdict: PauseVerdict, when: Moment) -> None:
        """Do what was found."""
        pause, finding = self.pause, verdict.finding
        if finding is PauseFinding.UNTOLD:
            for node in verdict.nodes:
                self._tell(node, when.now)
        elif finding is PauseFinding.FORGOTTEN:
            self.number = max(self.number, verdict.step)
            if pause is not None:
                self._end(pause, _OUTCOME[finding], verdict.reason, when.now)
            else:
                self._note(f"{verdict.reason}: nothing is paused")
                self._give(PauseKind.FREE, -1, when.now)
        elif pause is None:
            return
        elif finding in _OUTCOME:
            self._end(pause, _OUTCOME[finding], verdict.reason, when.now)
        elif finding is PauseFinding.COUNTS:
            pause.until = when.now + pause.lease_ns
            self._give(*self._order, when.now)
        elif finding is PauseFinding.WAITS:
            pause.state = PAUSE.after(pause.state, PauseCause.REPAIR)
            self._note(f"the pause {pause.place} waits: {verdict.reason}")
        elif finding is PauseFinding.AGAIN:
            pause.rounds += pause.state is not PauseState.WAITS
            pause.state, pause.step = PAUSE.after(pause.state, PauseCause.AGAIN), -1
            self._note(f"all ranks are asked again where they may stand: {verdict.reason}")
            self._give(PauseKind.ASK, -1, when.now)
        elif finding is PauseFinding.AGREED:
            pause.state, pause.step = PAUSE.after(pause.state, PauseCause.AGREED), verdict.step
            self._give(PauseKind.STAND, verdict.step, when.now)
        else:
            pause.state = PAUSE.after(pause.state, PauseCause.STOOD)
            self._note(f"the job is paused {pause.place}: {verdict.reason}")
        self._job.members.stands(when.now, self.pause is not None and self.pause.state is PauseState.STANDS)

    # ---- orders -------------------------------------------------------------------------------------------------

    def _end(self, pause: Pause, outcome: str, words: str, now: int) -> None:
        pause.state = PAUSE.after(pause.state, PauseCause.END)
        pause.outcome, pause.words = outcome, words
        self.pause, self.last, self._job.members.paused = None, pause, False
        self._job.members.stands(now, False)
        self._note(f"the pause {pause.place} is over: {words}")
        self._give(PauseKind.FREE, -1, now)

    def _give(self, kind: PauseKind, step: int, now: int) -> None:
        """Send all nodes a new order."""
        self.number += 1
        self._order = (kind, step)
        if self._job.over is not None:
            return
        for name, node in sorted(self._job.members.nodes.items()):
            if node.state in (NodeState.UP, NodeState.SILENT):
                self._tell(name, now)

    def _tell(self, node: str, now: int) -> None:
        if self._job.over is not None:
            return
        self._told_at[node] = now
        pause, (kind, step) = self.pause, self._order
        counts = pause is None or pause.until is not None or kind is PauseKind.ASK
        left_ns = 0 if pause is None else pause.lease_ns
        if pause is not None and pause.until is not None:
            left_ns = max(pause.until - now, 0)
        reason = "" if pause is None else f"{pause.by} pauses the job"
        order = PauseOrder(self._job.term, self.number, kind, step, left_ns // limits.MS, counts, cut(reason))
        self._job.tell(node, order)

    def _note(self, text: str) -> None:
        self._job.note("pause", text, incident=0)


def _seconds(duration_ns: int) -> str:
    return f"{duration_ns / limits.SECOND:g} s"
