"""The agent's brain: the records of one node's ranks, what the manager is told of them, and what its orders mean here.

Reports are levels: a beat carries what changed, every so often everything, and again and again what the manager has not
confirmed. What can go wrong, and what follows:

- *The manager is gone*: records go on, nothing is sent; on return it is told everything. Workers never notice.
- *This agent is new*, its forerunner died: workers say hello again and bring their incarnation and epoch along.
- *Two processes claim one rank*: whoever is there stays, the other is turned away by its process id.
- *Orders lost, doubled, late*: fenced by term, epoch and stage; one that is in force is relayed until it is followed.
- *The connection was broken for a while*: ranks may have been given up; none follows an order before it is confirmed.
- *A seat goes to another incarnation*: the old process is ended first, the new one starts when it has gone.
- *This agent was stopped for a while*: it says for how long, and looks at what happened meanwhile.
- *The manager is gone and ranks need it* (a worker is dead, none is left, or some are parked for a repair): a launcher
  gives up after a while, with the cause. Ranks that train need no manager. Those in a repair do: nobody else can let
  them go. So such a repair has a lease, and when that is over the node's ranks end, as under another launcher.

Invariants: term and epoch only grow; an incarnation starts at most once; a rank has at most one live process here. Not
here: processes, sockets, pages, and whether a rank is worth replacing.
"""

from __future__ import annotations

from collections import deque

from taskd.core import events, limits
from taskd.core.counters import Counters
from taskd.core.crew import Crew
from taskd.core.effects import AgentEffect, End, Leave, Refuse, Relay, Send, Spawn, Warn
from taskd.core.local import LocalRank
from taskd.core.messages import (
    AgentHello,
    Answer,
    Evidence,
    Goodbye,
    Order,
    Proof,
    RailOrder,
    RailReport,
    RailsFollowed,
    RankReport,
    Refused,
    Report,
    Seat,
    StageReached,
    Stop,
    ToAgent,
    Unmended,
    WorkerHello,
    WorkerWelcome,
)
from taskd.core.proof.relay import ProofRelay
from taskd.core.rails.relay import RailRelay
from taskd.core.types import EvidenceKind, RankState, Stage
from taskd.core.words import cut, exit_words, milliseconds, shell_code

LEASE_SECONDS = limits.ABANDONED_NS // limits.SECOND


class Agent:
    """One node's agent. `spawns`: it is the launcher; else a side process that only watches."""

    def __init__(
        self,
        job: str,
        node: str,
        host: str,
        pid: int,
        life: int,
        spawns: bool,
        slots: int,
        interval_ns: int,
        linger_ns: int = limits.LINGER_NS,
    ) -> None:
        self.job = job
        self.node = node
        self.host = host
        self.pid = pid
        self.life = life
        self.spawns = spawns
        self.slots = slots
        self.interval_ns = interval_ns
        self.linger_ns = linger_ns
        self.term = self.epoch = 0
        self.connected = False
        self.order: Order | None = None
        self.stopping: Stop | None = None
        self.counters = Counters()
        self.crew = Crew(job, self.counters, spawns)
        self.rails = RailRelay(self.crew, self.counters)
        self.proofs = ProofRelay(self.crew, self.counters)
        self._effects: list[AgentEffect] = []
        self._evidence: deque[Evidence] = deque(maxlen=limits.MAX_KEPT_EVIDENCE)
        self._warned: set[str] = set()
        self._left = False
        self._tick_at = self._beat_at = self._full_at = 0
        self._idle_since: int | None = None  # no process lives here since then
        self._alone_since: int | None = None  # no connection since then; None: nobody has looked yet
        self._stop_at = 0  # when `stopping` was heard

    # ---- the shell's side -------------------------------------------------------------------------------------

    def step(self, now_ns: int, event: events.AgentEvent) -> list[AgentEffect]:
        """Take one event; gives what is to be done, in order."""
        if self._left:
            return []
        if isinstance(event, events.Readings):
            self.crew.read(event)
            self.rails.news.read(event.rails, now_ns)
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
        elif isinstance(event, events.StartFailed):
            self._ended(self.crew.start_failed(event, self.epoch), now_ns)
        elif isinstance(event, events.Connected):
            self.connected = True
            self._introduce(now_ns)
        elif isinstance(event, events.Disconnected):
            self.connected = False
            self._alone_since = now_ns
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> int | None:
        """When `step(Tick())` is due; None: this agent has left."""
        return None if self._left else self._tick_at

    # ---- rhythm -----------------------------------------------------------------------------------------------

    def _tick(self, now: int) -> None:
        late_ns = now - self._tick_at if self._tick_at else 0
        if late_ns >= limits.AWAY_NS:
            who = "launcher" if self.spawns else "agent"
            self._warn(
                f"this {who} (process {self.pid}) did not run for {milliseconds(late_ns)} ms: it was stopped, or got "
                "no processor; what happened meanwhile is seen now"
            )
        self._tick_at = now + min(self.interval_ns, limits.ORDER_REPEAT_NS)
        if self.order is not None:
            self._relay(now)
            self._name_compilers(self.order, now)
        self._effects += self.rails.due(now)
        if now >= self._beat_at:
            self._beat_at = now + self.interval_ns
            self._beat(now, full=now >= self._full_at)
        self._look_round(now)

    def _beat(self, now: int, full: bool) -> None:
        """What changed, what is not confirmed; or everything."""
        if not self.connected:
            return
        if full:
            self._full_at = now + limits.FULL_REPORT_NS
        reports = []
        for record in self.crew.ranks.values():
            if full or record.news or not (record.acknowledged or record.refused):
                record.news = False
                reports.append(record.report())
        self._report(full, tuple(reports), self.rails.news.due(now))
        if (proofs := self.proofs.due()) is not None:
            self._effects.append(Send(proofs))

    def _report(self, full: bool, ranks: tuple[RankReport, ...], rails: tuple[RailReport, ...] = ()) -> None:
        self._effects.append(Send(Report(full, self.term, ranks, self.epoch, rails, self.rails.number)))

    def _tell(self, record: LocalRank) -> None:
        """Something about one rank that the manager should know before the next beat."""
        if self.connected:
            record.news = False
            self._report(False, (record.report(),))

    def _introduce(self, now: int) -> None:
        """Say everything that the manager may not know."""
        if not self.connected:
            return
        for record in self.crew.ranks.values():
            record.acknowledged = False  # it may have been given up meanwhile: ask again before it follows any order
        interval_ms = min(max(self.interval_ns // limits.MS, 1), 60_000)
        who = (self.job, self.node, self.host, self.pid)
        self._effects.append(Send(AgentHello(*who, self.crew.world_size, self.spawns, self.slots, interval_ms)))
        self.rails.news.again()
        self._beat(now, full=True)
        while self._evidence:
            self._effects.append(Send(self._evidence.popleft()))

    def _name_compilers(self, order: Order, now: int) -> None:
        """A repair that waits for a rank which compiles looks as if it hung."""
        for record in self.crew.compilers(now) if order.stage is not Stage.RUNNING else ():
            text = f"rank {record.rank} is compiling, not hanging: the repair waits for it"
            self._effects.append(Warn(text))
            if self.connected:
                who = (record.rank, record.incarnation, -1)
                self._effects.append(Send(Evidence(EvidenceKind.COMPILING, *who, 0, text)))

    def _look_round(self, now: int) -> None:
        """Is there still something to do here?"""
        live = self.crew.live()
        self._idle_since = None if live else now if self._idle_since is None else self._idle_since
        if self.stopping is not None:
            self._stop_on(self.stopping, live, now)
        elif not self.spawns:
            if self._idle_since is not None and now - self._idle_since >= self.linger_ns:
                self._leave(0, "all workers of this node have ended")
        elif not self.connected:
            self._manage_alone(now)

    def _manage_alone(self, now: int) -> None:
        """A launcher without a manager: nobody is going to decide anything."""
        self._alone_since = now if self._alone_since is None else self._alone_since
        alone_ns = now - self._alone_since
        abandoned = alone_ns >= limits.ABANDONED_NS
        in_repair = self._in_repair()
        if alone_ns >= limits.AWAY_NS and in_repair:
            self._warn(
                "the manager is gone in the middle of a repair: this node's ranks wait for it, "
                f"for {LEASE_SECONDS} s at most"
            )
        ranks = self.crew.ranks
        dead = [record for record in ranks.values() if record.state is RankState.DEAD]
        if dead and abandoned:
            died = f"rank {dead[0].rank} died ({exit_words(dead[0].exit_code)})"
            reason = f"{died}, and for {LEASE_SECONDS} s there was no manager to replace it"
            self._stop(Stop(self.term, shell_code(dead[0].exit_code), reason), now)
        elif not ranks and self.term and abandoned:
            self._leave(1, "the manager is gone, and nobody will need this spare")
        elif ranks and not dead and self._idle_since is not None and now - self._idle_since >= self.linger_ns:
            self._leave(0, "all workers of this node have ended in good order")
        elif in_repair and abandoned:
            reason = f"for {LEASE_SECONDS} s there was no manager to end the repair that was under way"
            self._stop(Stop(self.term, 1, reason), now)

    def _in_repair(self) -> bool:
        """Ranks of this node wait for what only a manager can bring."""
        return self.order is not None and self.order.stage is not Stage.RUNNING and bool(self.crew.live())

    # ---- the manager's word -----------------------------------------------------------------------------------

    def _heard(self, message: ToAgent, now: int) -> None:
        if message.term < self.term:
            self.counters.count("message of an older term")
            return
        if isinstance(message, Answer):
            self._answered(message, now)
            return
        if isinstance(message, Stop):
            self.term = message.term
            self._stop(message, now)
        elif isinstance(message, RailOrder):
            self.term = message.term
            self.rails.ordered(message)
            self._effects += self.rails.due(now)
        elif isinstance(message, Unmended):
            self._effects.append(Relay(tuple(record.rank for record in self.crew.live()), message))
        else:
            self._ordered(message, now)

    def _answered(self, answer: Answer, now: int) -> None:
        if not answer.accepted:
            self._warn(f"the manager does not take this agent: {answer.reason}")
            return
        renewed = answer.term > self.term > 0
        self.term = answer.term
        self.epoch = max(self.epoch, answer.epoch)
        for confirmed in answer.confirmed:
            record = self.crew.ranks.get(confirmed.rank)
            if record is not None and record.incarnation == confirmed.incarnation and not record.acknowledged:
                record.acknowledged, record.refused = True, False
                if record.live:
                    self._welcome(record)
                    self._relay(now)
        for refused in answer.refused:
            self._refused(refused)
        if answer.want_hello:
            self._introduce(now)
        elif renewed and self.connected:
            self._beat(now, full=True)

    def _refused(self, refused: Refused) -> None:
        record = self.crew.ranks.get(refused.rank)
        if record is None or record.incarnation != refused.incarnation or not record.live or record.ending:
            return  # one that is being ended has its successor already, and its refusal tells nobody anything
        if record.renumber(refused.next_incarnation):
            self._welcome(record)
            self._tell(record)
            return
        self._warn(f"rank {record.rank} in process {record.pid} is refused: {refused.reason}")
        if self.spawns:
            self._end(record, refused.reason)
        elif not record.refused:
            record.refused = True
            welcome = WorkerWelcome(False, False, record.incarnation, self.epoch, refused.reason)
            self._effects.append(Relay((record.rank,), welcome))

    def _ordered(self, order: Order, now: int) -> None:
        held = self.order
        if order.epoch < self.epoch:
            self.counters.count("order of an older epoch")
            return
        if held is not None and order.precedes(held):
            self.counters.count("order of an older stage")
            return
        self.order, self.term, self.epoch = order, order.term, order.epoch
        if self.stopping is not None:
            return
        self._effects += self.crew.starts_over(order, held)
        newcomer = order.stage is not Stage.RUNNING
        for seat in order.seats:
            if newcomer or order.fresh:  # a RUNNING order starts nobody, unless all start again
                self._take_seat(seat, newcomer)
        self._relay(now)

    def _take_seat(self, seat: Seat, newcomer: bool) -> None:
        """Start whom this node is to start; end whose seat is another's."""
        rival = self.crew.rival(seat, self.node)
        if rival is not None:
            self._end(*rival)
        elif self.crew.vacant(seat, self.node):
            self._spawn(seat.rank, seat.incarnation, newcomer)

    def _spawn(self, rank: int, incarnation: int, newcomer: bool) -> None:
        if not self.spawns:
            self._warn(f"rank {rank} is to be started here, but this agent only watches")
            return
        stage = Stage.SETUP if newcomer else Stage.RUNNING
        self.crew.ranks[rank] = LocalRank(rank, incarnation, self.epoch, stage)
        self._idle_since = None
        self._effects.append(Spawn(rank, incarnation, self.epoch, newcomer))

    def _end(self, record: LocalRank, reason: str) -> None:
        if self.spawns and not record.ending:
            record.ending = True
            self._effects.append(End(record.rank, record.incarnation, cut(reason)))

    def _relay(self, now: int) -> None:
        """Tell the order to every worker that has yet to follow it, again if it was told long enough ago."""
        order = self.order
        if order is None or self.stopping is not None:
            return
        due = self.crew.to_be_told(order, now)
        if due:
            self._effects.append(Relay(due, order))

    # ---- the end ----------------------------------------------------------------------------------------------

    def _stop(self, stop: Stop, now: int) -> None:
        if self.stopping is not None:
            return
        self.stopping, self._stop_at = stop, now
        live = self.crew.live()
        if live:
            self._effects.append(Relay(tuple(record.rank for record in live), stop))
        self._stop_on(stop, live, now)

    def _stop_on(self, stop: Stop, live: list[LocalRank], now: int) -> None:
        late = now - self._stop_at >= limits.STOP_GRACE_NS
        if not live or (late and not self.spawns):
            self._leave(stop.exit_code, stop.reason)
        elif late:
            for record in live:
                self._end(record, stop.reason)

    def _leave(self, exit_code: int, reason: str) -> None:
        if self.connected:
            self._effects.append(Send(Goodbye(cut(reason))))
        self._effects.append(Leave(exit_code, reason))
        self._left = True

    # ---- workers ----------------------------------------------------------------------------------------------

    def _worker_said(self, message: object, now: int) -> None:
        if isinstance(message, WorkerHello):
            self._hello(message, now)
        elif isinstance(message, StageReached):
            record = self.crew.reached(message)
            if record is not None:
                self._tell(record)
                self._relay(now)
        elif isinstance(message, Proof):
            self.proofs.told(message)
        elif isinstance(message, RailsFollowed):
            record = self.rails.answered(message)
            if record is not None:
                self._tell(record)
        elif isinstance(message, Evidence):
            self.crew.told(message)
            if self.connected:
                self._effects.append(Send(message))
            else:
                self._evidence.append(message)
        # WorkerLeaving needs no answer: its exit code tells whether the end was in good order.

    def _hello(self, hello: WorkerHello, now: int) -> None:
        refusal = self.crew.why_not(hello)
        if not refusal and self.stopping is not None:
            refusal = f"the job is ending: {self.stopping.reason}"
        if refusal:
            self.counters.count("worker refused")
            self._warn(f"process {hello.pid} is turned away: {refusal}")
            welcome = WorkerWelcome(False, False, hello.incarnation, self.epoch, cut(refusal))
            self._effects.append(Refuse(hello.pid, welcome))
            return
        first = not self.crew.world_size
        record = self.crew.admit(hello)
        self.epoch = max(self.epoch, hello.epoch)
        self._idle_since = None
        self._welcome(record)
        if first:
            self._introduce(now)  # now this agent knows the size of the world
        else:
            self._tell(record)
        self._relay(now)

    def _welcome(self, record: LocalRank) -> None:
        welcome = WorkerWelcome(True, record.acknowledged, record.incarnation, self.epoch, "")
        self._effects.append(Relay((record.rank,), welcome))

    def _started(self, event: events.Started) -> None:
        record = self.crew.started(event, self.epoch)
        if record is None:
            return
        self._idle_since = None
        self._tell(record)
        if record.ending:  # its end was wanted before it had begun
            self._effects.append(End(record.rank, record.incarnation, "its seat has gone to another incarnation"))

    def _ended(self, record: LocalRank | None, now: int) -> None:
        """A process is gone, or never came: say so, and start who waits for its seat."""
        if record is None:
            return
        record.acknowledged = False
        following = record.next_incarnation
        if following and self.stopping is None:
            order = self.order
            assert order is not None
            self._spawn(record.rank, following, newcomer=order.stage is not Stage.RUNNING)
            return
        self._tell(record)
        if self.stopping is not None:
            self._stop_on(self.stopping, self.crew.live(), now)

    def _warn(self, text: str) -> None:
        """One sentence for this node's log, once."""
        if text not in self._warned and len(self._warned) < limits.MAX_UNHEARD_SENDERS:
            self._warned.add(text)
            self._effects.append(Warn(cut(text)))
