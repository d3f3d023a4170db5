"""The manager's loop: one thread that waits for messages or for the core's next deadline, and does what the core says.

Each turn: take what has arrived, hand it to the core, look at the clock, write the journal, and only then send. A
decision that an agent has heard of is therefore always in the journal. Nothing that a peer sends can stop the loop.
Bytes that are no message and messages of another job are counted, and logged once per peer.

It decides nothing (taskd.core does), remembers nothing (memory.py does), and it does NOT start, watch or end
processes.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from taskd import descriptors, log
from taskd.config import Config
from taskd.core import limits
from taskd.core.effects import EndJob, ManagerEffect, Note, Tell
from taskd.core.events import ConnectionLost, ErrandWish, PauseWish, Said, Sender, Tick
from taskd.core.messages import Answer, FromAgent, Goodbye, Order, Question, Reply, StoreAsk
from taskd.core.types import ErrandKind, StopKind
from taskd.core.words import cut
from taskd.errors import UsageError
from taskd.manager import answers
from taskd.manager.door import Arrived, Door, Lost, Refusals
from taskd.manager.memory import Memory
from taskd.manager.outbox import Outbox
from taskd.manager.residence import Residence, holder_of
from taskd.manager.roster import Roster
from taskd.manager.store import Due
from taskd.manager.store_desk import StoreDesk
from taskd.wire import keys, leftovers, run_dir
from taskd.wire.codec import Envelope, WireError, decode
from taskd.wire.pulse import Heart
from taskd.wire.strangers import STRANGERS_MAX

_log = log.get(__name__)

IDLE_MS = 1_000
"""The longest wait when the core has no deadline."""
END_NS = 30 * limits.SECOND
"""How long the manager waits for its agents to leave when the job is over. Then it ends anyway."""
ASKED_NS = 1 * limits.SECOND
"""How long the manager stays at least when an operator has stopped the job: that operator asks how it went."""
OPERATORS_MAX = 256
"""How many connections of operators a manager is prepared for, in addition to those of the agents."""
FILES = 128
"""How many files the manager has open in addition to its connections."""
ALOUD = frozenset(
    {"done", "healed", "over", "end", "waits", "rests", "proof", "idle", "hang", "device", "pause", "operator"}
)
"""Kinds of notes that every job's terminal shows. A start over of all ranks is not here: each launcher prints it."""


class ManagerLoop:
    """One manager. `run` blocks until the job is over or `stop` is called."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.job = config.job.id
        self.refusals = Refusals()
        self._roster = Roster()
        self._outbox = Outbox(self.job, secrets.randbits(62))
        self._started_ns = time.monotonic_ns()
        self._stopping = threading.Event()
        self._why = ""
        self._over: EndJob | None = None
        self._over_at = 0  # when it was over
        self._has_errand = False  # whether an operator may still ask what has become of his
        self._door: Door | None = None
        self._memory = Memory(config)
        self._heart = Heart()
        self._store = StoreDesk(config.job.directory if config.manager.journal else None)
        self._epoch = 0

    def _allow(self, needed: int) -> None:
        """Raise the limit of open files if necessary: each connection needs a descriptor.

        It is raised as far as possible: a crowd of strangers may come more quickly than it is closed."""
        nodes = self.config.job.node_nums
        if (most := descriptors.allow(max(needed, descriptors.MOST))) < needed:
            words = "only %d files may be open (ulimit -n), %d nodes may need %d: raise the hard limit"
            _log.warning(words, most, nodes, needed)

    def run(self) -> int:
        """Run as the job's manager and return its exit code. Raises UsageError when it cannot begin."""
        config = self.config
        residence = Residence(run_dir.ensure(config.job.directory), self.job)
        residence.take()
        leftovers.clear_away(Path(config.job.run_dir), self.job)
        try:
            key = keys.load_or_create(config)
            peers = 2 * config.job.node_nums  # an agent and its store have a connection each
            self._allow(peers + OPERATORS_MAX + STRANGERS_MAX + FILES)
            door = Door(config.manager.bind, config.manager.port, key, peers, self.refusals)
            try:
                self._open(door)
                self._door = door
                self._do(self._memory.begin())
                self._epoch = self._memory.core.epoch
                self._store.begin(fresh=not self._memory.taken_up, epoch=self._epoch)
                residence.announce(config.manager.bind, config.manager.port)
                _log.info(
                    "ready: manager of job %s on %s, %d ranks on %d nodes, key from %s",
                    self.job,
                    door.endpoint,
                    config.job.node_nums * config.job.proc_per_node,
                    config.job.node_nums,
                    key.source,
                )
                with self._signals():
                    while not self._stopping.is_set():
                        self._turn(door)
            finally:
                self._door = None
                door.close()
                self._memory.close("")
                self._store.close()
        finally:
            residence.leave()
        _log.info("the manager of job %s ends: %s", self.job, self._why)
        return 0 if self._over is None else self._over.exit_code

    def stop(self, why: str = "it was told to") -> None:
        """End `run` from another thread or a signal handler."""
        self._why = self._why or why
        self._stopping.set()
        door = self._door
        if door is not None:
            door.wake()

    def _open(self, door: Door) -> None:
        try:
            door.open()
        except UsageError as error:
            if getattr(error.__cause__, "errno", None) != errno.EADDRINUSE:
                raise UsageError(f"{error}: set TASKD_MANAGER_BIND and TASKD_MANAGER_PORT") from None
            holder = holder_of(self.config.manager.port, self.config.job.run_dir)
            raise UsageError(
                f"port {self.config.manager.port} is taken{f' by {holder}' if holder else ''}: end that, or give this "
                "job another port by TASKD_MANAGER_PORT"
            ) from None

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT end the loop in good order. Only the main thread can set signal handlers."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def end(number: int, _frame: FrameType | None) -> None:
            self.stop(f"{signal.Signals(number).name} was received")

        before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # ---- one turn ---------------------------------------------------------------------------------------------

    def _turn(self, door: Door) -> None:
        self._heart.beat()
        if door.wait(self._timeout_ms()):
            for item in door.receive():
                if isinstance(item, Arrived):
                    self._take(item)
                else:
                    self._gone(item)
        deadline_ns = self._memory.core.next_deadline()
        if deadline_ns is not None and deadline_ns <= self._memory.now_ns():
            self._do(self._memory.step(Tick()))
        self._serve_store(self._store.look(self._memory.now_ns(), self._epoch))
        self._memory.commit()
        self._store.commit()
        for routing, data in self._outbox.take():
            door.send(routing, data)
        if self._over is not None:
            asked = self._over.kind is StopKind.ASKED or self._has_errand
            stays_ns = ASKED_NS if asked else 0
            waited_ns = self._memory.now_ns() - self._over_at
            if waited_ns >= (END_NS if len(self._roster) else stays_ns):
                self._stopping.set()

    def _timeout_ms(self) -> int:
        due = [at for at in (self._memory.core.next_deadline(), self._store.next_deadline()) if at is not None]
        if not due:
            return IDLE_MS
        wait_ns = min(due) - self._memory.now_ns()
        return max(0, min(IDLE_MS, -(-wait_ns // limits.MS)))  # rounded up: a turn before the deadline does nothing

    def _take(self, arrived: Arrived) -> None:
        found = decode(arrived.data)
        if isinstance(found, WireError):
            sentence = f"a message from {arrived.address} was dropped: {found.reason}"
            self.refusals.count(found.kind, arrived.address, sentence)
            return
        envelope, message = found
        if isinstance(message, Question):
            self._outbox.post(arrived.routing, self._answer(envelope, message), "")
        elif isinstance(message, StoreAsk) and envelope.job == self.job:
            now_ns = self._memory.now_ns()
            self._serve_store(self._store.ask(now_ns, envelope.life, message, arrived.routing))
        elif not isinstance(message, FromAgent) or not _is_name(envelope):
            sentence = f"{type(message).__name__} from {arrived.address} was dropped: no agent says that to a manager"
            self.refusals.count("unexpected", arrived.address, sentence)
        elif envelope.job != self.job:
            self._refuse_job(arrived, envelope)
        else:
            self._roster.spoke(envelope.node, envelope.life, arrived.routing, arrived.connection)
            sender = Sender(envelope.node, envelope.life, envelope.sequence)
            self._do(self._memory.step(Said(sender, message)), envelope)
            if isinstance(message, Goodbye):  # its connection will end, which does not count as a loss any more
                self._roster.lost(arrived.connection)

    def _refuse_job(self, arrived: Arrived, envelope: Envelope) -> None:
        reason = cut(
            f"this is the manager of job {self.job}, the agent of node {envelope.node} asks for {envelope.job}"
        )
        self.refusals.count("wrong job", arrived.address, f"{arrived.address} was refused: {reason}")
        self._outbox.post(arrived.routing, Answer(0, False, reason, False, 0, (), ()), envelope.node)

    def _gone(self, lost: Lost) -> None:
        for node in self._roster.lost(lost.connection):
            _log.info("the connection of node %s has ended", node)
            self._do(self._memory.step(ConnectionLost(node)))

    def _do(self, effects: list[ManagerEffect], asker: Envelope | None = None) -> None:
        """Carry out the core's effects. The memory keeps the notes; here they are only logged."""
        for effect in effects:
            level = effect.message if isinstance(effect, Tell) else effect
            if isinstance(level, (Order, Note)):
                self._epoch = max(self._epoch, level.epoch)
            if isinstance(effect, Tell):
                life = effect.life
                if life:
                    self._roster.refused(effect.node, life)
                elif asker is not None and asker.node == effect.node:
                    life = asker.life
                place = self._roster.place(effect.node, life)
                if place is not None:
                    self._outbox.post(place.routing, effect.message, effect.node)
            elif isinstance(effect, EndJob):
                self._why = f"the job is over ({effect.reason})"
                self._over, self._over_at = effect, self._memory.now_ns()
            else:
                _log.log(
                    logging.WARNING if effect.kind in ALOUD else logging.INFO,
                    "%s",
                    _plain(effect.text),
                    extra=log.facts(kind=effect.kind, incident=effect.incident, epoch=effect.epoch),
                )

    def _serve_store(self, due: list[Due]) -> None:
        for one in due:
            self._outbox.post(one.place, one.answer, "")

    # ---- operators --------------------------------------------------------------------------------------------

    def _answer(self, envelope: Envelope, question: Question) -> Reply:
        if envelope.job not in ("", self.job):
            return Reply(False, f"this is the manager of job {self.job}, not of {envelope.job}")
        core, now_ns = self._memory.core, self._memory.now_ns()
        topics: dict[str, Callable[[], Reply]] = {
            "status": lambda: answers.status(lambda first: core.facts(now_ns, first), question.argument, self._facts()),
            "events": lambda: answers.events(self._memory.notes, question.argument, self._memory.last_note),
            "incidents": lambda: answers.incidents(core.incidents(now_ns), question.argument, self._memory.wall_ns),
            "rails": lambda: answers.rails(core.rails(now_ns)),
            "rail out": lambda: self._wish(question.argument, True),
            "rail back": lambda: self._wish(question.argument, False),
            "errand": lambda: answers.errand(core.pause(now_ns, question.argument)),
            "pauses": lambda: answers.pauses(core.pause(now_ns, question.argument)),
            "pause": lambda: self._pause(question.argument, resumes=False),
            "resume": lambda: self._pause(question.argument, resumes=True),
            "restart-rank": lambda: self._errand(question.argument, ErrandKind.RESTART),
            "drain-node": lambda: self._errand(question.argument, ErrandKind.VACATE),
            "stop": lambda: self._errand(question.argument, ErrandKind.STOP),
            "save-and-stop": lambda: self._errand(question.argument, ErrandKind.SAVE),
        }
        topic = topics.get(question.topic)
        if topic is None:
            return Reply(False, f"{question.topic!r} is no topic; this manager answers: {', '.join(topics)}")
        try:
            return topic()
        except Exception as error:  # a question must not end the manager, whatever goes wrong in the answer
            _log.exception("the question %r could not be answered: a mistake of taskd's", question.topic)
            return Reply(False, cut(f"the manager could not answer: {type(error).__name__}: {error}"))

    def _wish(self, argument: str, out: bool) -> Reply:
        """Begin an operator's order about a rail, or refuse it with a reason. `rails` tells how it goes on."""
        wanted = answers.rail_wish(argument)
        if wanted is None:
            return Reply(False, "name the rail")
        wish = self._memory.core.rail_wish(*wanted, out)
        if isinstance(wish, str):
            return Reply(False, cut(wish))
        self._do(self._memory.step(wish))
        return answers.rails(self._memory.core.rails(self._memory.now_ns()))

    def _pause(self, argument: str, resumes: bool) -> Reply:
        """Pause the job or let it go on, or refuse with a reason. `pauses` tells how it goes on."""
        limit_ms = self.config.pause.limit_ms
        return self._follow(answers.pause_wish(argument, resumes, limit_ms, self._longest_ms()), "")

    def _errand(self, argument: str, kind: ErrandKind) -> Reply:
        """Begin an errand, or refuse it with a reason. `pauses` tells how it goes on."""
        self._has_errand = True
        return self._follow(answers.errand_wish(argument, kind, self._longest_ms()), argument.partition("\n")[0])

    def _follow(self, wish: PauseWish | ErrandWish | str, request: str) -> Reply:
        core = self._memory.core
        found = wish if isinstance(wish, str) else core.wish(self._memory.now_ns(), wish)
        if isinstance(found, str):
            return Reply(False, cut(found))
        if found is not None:
            self._do(self._memory.step(found))
        return answers.pauses(core.pause(self._memory.now_ns(), request))

    def _longest_ms(self) -> int:
        """How long a pause may last."""
        is_set = not self.config.sources.get("pause.limit_ms", "default").startswith("default")
        return self.config.pause.limit_ms if is_set else limits.PAUSE_MAX_NS // limits.MS

    def _facts(self) -> dict[str, Any]:
        journal = self._memory.journal
        return {
            "pid": os.getpid(),
            "host": os.uname().nodename,
            "port": self.config.manager.port,
            "uptime_ms": (time.monotonic_ns() - self._started_ns) // limits.MS,
            "connections": len(self._roster),
            "refused": dict(self.refusals.by_reason),
            "store": self._store.facts(),
            "journal": self._memory.trouble or (journal.path if journal is not None else ""),
        }


def _is_name(envelope: Envelope) -> bool:
    """Whether the node and the job that an agent's envelope names are safe to print in a log."""
    return bool(envelope.node) and envelope.node.isprintable() and envelope.job.isprintable()


def _plain(text: str) -> str:
    """Return the text without line breaks and control characters: other processes wrote parts of it."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
