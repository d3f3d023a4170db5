"""The agent's logic: what one node reports, which workers it starts and ends, and how it follows the manager's word.

What can go wrong, and what follows:

- *The manager is gone*: the records go on, nothing is sent. When it returns, it is told everything. Workers never
  notice.
- *This agent is new*, its predecessor died: workers say hello again and bring their incarnation and epoch with them.
- *Two processes claim one rank*: the first one stays, the other is refused by its process id.
- *The manager has given ranks up*: no rank follows an order before it is confirmed. A refused rank is ended, or goes on
  under another number.
- *This agent was stopped for a while*: it reports for how long, and checks what has happened meanwhile.

Its parts: what they share (post), the records of ranks (crew), reports (reporter), orders (seating), the end of its
work (departure), and the relays of rails, pauses, proofs, stillness and devices. Invariants: term and epoch only grow;
an incarnation starts at most once; a rank has at most one live process here. Not here: processes, sockets, pages, and
whether a rank is worth replacing.
"""

from __future__ import annotations

from taskd.core import events, limits
from taskd.core.crew import Crew
from taskd.core.departure import Departure
from taskd.core.device_relay import DeviceRelay
from taskd.core.effects import AgentEffect, End, Refuse, Relay, Warn
from taskd.core.local import LocalRank
from taskd.core.messages import (
    Answer,
    Covered,
    Evidence,
    PauseAnswer,
    PauseOrder,
    Proof,
    RailOrder,
    RailsFollowed,
    RanksEnded,
    Refused,
    StageReached,
    Stop,
    ToAgent,
    Unmended,
    WorkerHello,
    WorkerLeaving,
    WorkerWelcome,
)
from taskd.core.pause.relay import PauseRelay
from taskd.core.post import Identity, Post
from taskd.core.proof.relay import ProofRelay
from taskd.core.rails.relay import RailRelay
from taskd.core.reporter import Reporter
from taskd.core.seating import Seating
from taskd.core.still_relay import StillRelay
from taskd.core.types import EvidenceKind, Stage
from taskd.core.words import cut, milliseconds


class Agent:
    """One node's agent."""

    def __init__(self, who: Identity) -> None:
        self.post = Post(who)
        self.crew = Crew(who.job, self.post.counters, who.spawns)
        self._rails = RailRelay(self.crew, self.post.counters)
        self._proofs = ProofRelay(self.crew, self.post.counters)
        self._still = StillRelay(self.crew)
        self._devices = DeviceRelay(self.post, self.crew)
        self._pauses = PauseRelay(self.crew, self.post.counters)
        self._reporter = Reporter(
            self.post, self.crew, self._rails, self._proofs, self._still, self._devices, self._pauses
        )
        self._seating = Seating(self.post, self.crew)
        self._departure = Departure(self.post, self.crew, self._seating)
        self._tick_at = 0

    # ---- the shell's side -------------------------------------------------------------------------------------

    def step(self, now_ns: int, event: events.AgentEvent) -> list[AgentEffect]:
        """Take one event. Return what is to be done, in order."""
        if self._departure.left:
            return []
        if isinstance(event, events.Readings):
            self.crew.read(event)
            self._still.read(event.readings)
            self._rails.news.read(event.rails, now_ns)
        elif isinstance(event, events.Tick):
            self._tick(now_ns)
        elif isinstance(event, events.Heard):
            self._heard(event.message, now_ns)
        elif isinstance(event, events.WorkerSaid):
            self._worker_said(event.message, now_ns)
        elif isinstance(event, events.Gone):
            self._ended(self.crew.gone(event), now_ns)
        elif isinstance(event, events.Started):
            self._started(event)
        elif isinstance(event, events.DeviceSeen):
            self._devices.see(event, now_ns)
        elif isinstance(event, events.StartFailed):
            self._ended(self.crew.start_failed(event, self.post.epoch), now_ns)
        elif isinstance(event, events.Connected):
            self.post.connected = True
            self._reporter.introduce(now_ns)
        elif isinstance(event, events.Disconnected):
            self.post.connected = False
            self._departure.disconnected(now_ns)
        return self.post.take_effects()

    def next_deadline(self) -> int | None:
        """When `step(Tick())` is due; None: this agent has left."""
        return None if self._departure.left else self._tick_at

    # ---- rhythm -----------------------------------------------------------------------------------------------

    def _tick(self, now: int) -> None:
        who = self.post.who
        late_ns = now - self._tick_at if self._tick_at else 0
        if late_ns >= limits.AWAY_NS:
            what = "launcher" if who.spawns else "agent"
            self.post.warn(
                f"this {what} (process {who.pid}) did not run for {milliseconds(late_ns)} ms: it was stopped, or got "
                "no processor; what happened meanwhile is seen now"
            )
        self._tick_at = now + min(who.interval_ns, limits.ORDER_REPEAT_NS)
        self._seating.relay(now)
        if self.post.in_repair:
            self._name_compilers(now)
        self.post.do(*self._rails.due(now), *self._pauses.due(now))
        self._reporter.tick(now)
        self._departure.tick(now)

    def _name_compilers(self, now: int) -> None:
        """Report ranks that compile: a repair that waits for one looks as if it hung."""
        for record in self.crew.compilers(now):
            text = f"rank {record.rank} is compiling, not hanging: the repair waits for it"
            self.post.do(Warn(text))
            who = (record.rank, record.incarnation, -1)
            self.post.send(Evidence(EvidenceKind.COMPILING, *who, 0, text))

    # ---- the manager's word -----------------------------------------------------------------------------------

    def _heard(self, message: ToAgent, now: int) -> None:
        if message.term < self.post.term:
            self.post.counters.count("message of an older term")
            return
        if isinstance(message, Answer):
            self._answered(message, now)
            return
        if isinstance(message, Stop):
            self.post.term = message.term
            self._departure.stop(message, now)
        elif isinstance(message, RailOrder):
            self.post.term = message.term
            self._rails.ordered(message)
            self.post.do(*self._rails.due(now))
        elif isinstance(message, PauseOrder):
            self.post.term = message.term
            self._pauses.ordered(message, now)
            self.post.do(*self._pauses.due(now))
            self._reporter.tell_pause()
        elif isinstance(message, Unmended | RanksEnded):
            self.post.do(Relay(tuple(record.rank for record in self.crew.live()), message))
        else:
            self._seating.ordered(message, now)

    def _answered(self, answer: Answer, now: int) -> None:
        if not answer.accepted:
            self.post.warn(f"the manager does not take this agent: {answer.reason}")
            return
        renewed = answer.term > self.post.term > 0
        self.post.term = answer.term
        self.post.epoch = max(self.post.epoch, answer.epoch)
        for confirmed in answer.confirmed:
            record = self.crew.ranks.get(confirmed.rank)
            if record is not None and record.incarnation == confirmed.incarnation and not record.acknowledged:
                record.acknowledged, record.refused = True, False
                if record.live:
                    self._welcome(record)
                    self._seating.relay(now)
        for refused in answer.refused:
            self._refused(refused)
        if answer.want_hello:
            self._reporter.introduce(now)
        elif renewed and self.post.connected:
            self._reporter.beat(now, full=True)

    def _refused(self, refused: Refused) -> None:
        record = self.crew.ranks.get(refused.rank)
        if record is None or record.incarnation != refused.incarnation or not record.live or record.ending:
            return  # a rank that is being ended has its successor already, so its refusal says nothing new
        if record.renumber(refused.next_incarnation):
            self._welcome(record)
            self._reporter.tell(record)
            return
        self.post.warn(f"rank {record.rank} in process {record.pid} is refused: {refused.reason}")
        if self.post.who.spawns:
            self._seating.end(record, refused.reason)
        elif not record.refused:
            record.refused = True
            welcome = WorkerWelcome(False, False, record.incarnation, self.post.epoch, refused.reason)
            self.post.do(Relay((record.rank,), welcome))

    # ---- workers ----------------------------------------------------------------------------------------------

    def _worker_said(self, message: object, now: int) -> None:
        if isinstance(message, WorkerHello):
            self._hello(message, now)
        elif isinstance(message, StageReached):
            record = self.crew.reached(message)
            if record is not None:
                self._reporter.tell(record)
                self._seating.relay(now)
        elif isinstance(message, Proof):
            self._proofs.told(message)
        elif isinstance(message, RailsFollowed):
            record = self._rails.answered(message)
            if record is not None:
                self._reporter.tell(record)
        elif isinstance(message, PauseAnswer):
            self._pauses.answered(message)
            self._reporter.tell_pause()
        elif isinstance(message, Covered):
            record = self.crew.covered(message)
            if record is not None:
                self._reporter.tell(record)
        elif isinstance(message, Evidence):
            self.crew.told(message)
            self._reporter.witness(message)
        elif isinstance(message, WorkerLeaving):
            self.crew.told(message)

    def _hello(self, hello: WorkerHello, now: int) -> None:
        refusal = self.crew.why_not(hello)
        if not refusal and self.post.stopping is not None:
            refusal = f"the job is ending: {self.post.stopping.reason}"
        if refusal:
            self.post.counters.count("worker refused")
            self.post.warn(f"process {hello.pid} is turned away: {refusal}")
            welcome = WorkerWelcome(False, False, hello.incarnation, self.post.epoch, cut(refusal))
            self.post.do(Refuse(hello.pid, welcome))
            return
        first = not self.crew.world_size
        record = self.crew.admit(hello)
        self._devices.places(hello.rank, hello.device)
        self.post.epoch = max(self.post.epoch, hello.epoch)
        self._welcome(record)
        if first:
            self._reporter.introduce(now)  # now this agent knows the size of the world
        else:
            self._reporter.tell(record)
        self._seating.relay(now)

    def _welcome(self, record: LocalRank) -> None:
        welcome = WorkerWelcome(True, record.acknowledged, record.incarnation, self.post.epoch, "")
        self.post.do(Relay((record.rank,), welcome))

    def _started(self, event: events.Started) -> None:
        record = self.crew.started(event, self.post.epoch)
        if record is None:
            return
        self._reporter.tell(record)
        if record.ending:  # its end was wanted before it had begun
            self.post.do(End(record.rank, record.incarnation, "its seat has gone to another incarnation"))

    def _ended(self, record: LocalRank | None, now: int) -> None:
        """A process is gone, or never came: report that, and start the incarnation that waits for its seat."""
        if record is None:
            return
        record.acknowledged = False
        self._devices.explain(record, now)
        following = record.next_incarnation
        if following and self.post.stopping is None:
            order = self.post.order
            assert order is not None
            self._seating.start(record.rank, following, newcomer=order.stage is not Stage.RUNNING)
            return
        self._reporter.tell(record)
        self._departure.ended(now)
