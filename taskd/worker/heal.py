"""A training process' part in a repair: orders in, the training thread through the stages, answers out.

Orders arrive on the link's thread. It does what must not wait for the training thread (the guards drain, so that the
step can be left), and queues the rest; the training thread, once it has left its step, works the queue off: park,
rebuild the groups, bring the state to the agreed update, resume. core.worker decides, this module does.

Failure modes: a newer epoch in any stage (the guards drain again, whatever the training thread is doing ends with
StepAbandoned, and the queue goes on with the newer one); making the new groups blocks on a rank that has died (it
happens on a thread of its own, which is left behind); a script without a session (it can give up no step: the answer
is `not ok`, and the manager climbs the ladder). Invariant: at most one stage is under way, on the training thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import select
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Protocol

from taskd import log
from taskd.comm import aside
from taskd.comm.adapter import Fault
from taskd.core import limits
from taskd.core.effects import LetGo, Park, Quit, Reach, Rebuild, Restore, Resume, WorkerEffect
from taskd.core.events import Done, WorkerEvent
from taskd.core.messages import Evidence, Order, Proof, StageReached, Stop
from taskd.core.repair.notices import NO_SESSION
from taskd.core.types import EvidenceKind, Stage
from taskd.core.words import cut
from taskd.core.worker import Worker, WorkerState
from taskd.errors import Misfit, StepAbandoned, TaskdError, UsageError
from taskd.state.digests import Digests
from taskd.state.local import loop_of
from taskd.state.record import Occasion, Record
from taskd.worker import lateness
from taskd.worker.hold import Hold

PROBE_MS = 1000.0
"""How often groups on devices are asked how they are: they tell nobody by themselves."""
PEER_HAS_LEFT = "it has left: "
"""What rails say of a peer whose interpreter has ended (csrc/rail/session/session.cpp)."""
LEFT_SECONDS = 2 * limits.SETTLE_NS / limits.SECOND
"""If it had failed, all would have been started over by then: before any step, that is decided after SETTLE_NS."""
QUIESCE = timedelta(seconds=10)
"""How long a copy that is under way in the guard may take to end."""
EMPTY_RECORD = b"TSKDREC1" + struct.pack("<II", 2, 2)
"""A record of a set-up in which nothing was communicated (csrc/c10d/record.hpp)."""
_logger = log.get(__name__)


class Loop(Protocol):
    """What a repair needs of the session."""

    @property
    def ends(self) -> list[int]: ...
    @property
    def replica(self) -> Any: ...
    @property
    def origin(self) -> int: ...
    @property
    def passed(self) -> int: ...
    def settle(self, passed: int) -> None: ...
    def refusal(self, updates: int) -> str: ...
    def held(self) -> int: ...
    def flaw(self) -> str: ...
    def let_go(self) -> None: ...
    def return_to(self, updates: int) -> None: ...
    def take_over(self, updates: int, data: bytes) -> None: ...
    def carried(self) -> tuple[int, bytes, dict[str, Any]]: ...
    def carry(self, places: int, kind: bytes, gradients: dict[str, Any]) -> None: ...


class Repair:
    """What a session sees of repairs. This one is for a process that nobody repairs: every answer is the quiet one."""

    newcomer = False
    loop_before = 0
    """Of a newcomer: in which of its loops the life before was; 0: in none, as far as that is known."""
    heals = False
    """Whether there may ever be a repair."""
    records = False
    speaks = False
    """Whether what all ranks have to say is said by this one."""

    def ordered(self) -> bool:
        """Whether the step under way is given up."""
        return False

    def record(self, occasion: Occasion, step: int, pieces: list[bytes]) -> None:
        """Write this rank's local state where its death cannot reach it."""

    def record_ledger(self, number: int, pieces: list[bytes]) -> None:
        """Write the next version of this rank's ledger to the same place."""

    def ledger(self) -> tuple[int, bytes] | None:
        """Of a newcomer: the ledger of its life before."""
        return None

    def refuse(self, sentence: str) -> None:
        """This rank cannot go on and joins no repair any more: it leaves. Never returns."""
        raise Misfit(sentence)

    def training_begins(self) -> None:
        """The set-up is over: its results need not be recorded any longer."""

    def operations(self) -> int:
        """How many collectives this process has begun."""
        return 0

    def committed(self, updates: int) -> None:
        """A step is done."""

    def tell_proof(self, digests: Digests, updates: int, every: int, first: int, end: int) -> None:
        """Say what these units are, of the state after so many updates. `every`: until all have had their turn."""

    @contextlib.contextmanager
    def rehearsing(self) -> Iterator[None]:
        """While this lasts, operations complete on this rank alone."""
        yield

    def apart(self) -> AbstractContextManager[None]:
        """The same, when this rank has joined the others already. Raises StepAbandoned if a repair begins meanwhile."""
        return self.rehearsing()

    def run(self, loop: Loop) -> None:
        """Go through a repair that was ordered; returns when training goes on."""

    def everyone(self, mine: bytes) -> tuple[list[bytes], int]:
        """What each rank says where all of them are, and which one this is. Raises StepAbandoned."""
        return [mine], 0

    def all_arrived(self, heal: Callable[[], None]) -> bool:
        """Wait until every rank has ended its loop; False when a repair came instead, and the loop must look again."""
        return True


class LaunchedRepair(Repair):
    """The real one, in a process that taskd's launcher started."""

    heals = True

    def __init__(
        self,
        core: Worker,
        control: Any,
        say: Callable[[Any], bool],
        rebuild: Callable[[int], None],
        record: Record,
        inherited: Record | None,
        unrepaired_seconds: float = 15.0,
    ) -> None:
        """`rebuild(epoch)` makes the groups of an epoch; `inherited`: the record of the life before, for a newcomer.
        What has failed is raised in the script unless a repair begins within `unrepaired_seconds`: a rank that died, a
        node that fell silent are ordered to be repaired sooner."""
        self.newcomer = core.state is WorkerState.SETUP
        self.records = True
        self.speaks = core.rank == 0
        self._core = core
        self._control = control
        self._normal = type(control.mode).NORMAL
        self._say = say
        self._rebuild = rebuild
        self._record = record
        self._inherited = inherited
        self.loop_before = max(map(loop_of, inherited.contents()), default=0) if inherited is not None else 0
        self._unrepaired_seconds = unrepaired_seconds
        self.hold = Hold(self._ask)
        self._lock = threading.Lock()
        self._todo: queue.SimpleQueue[WorkerEffect] = queue.SimpleQueue()
        self.has_session = False
        """The script has asked for one."""
        self._healed = False

    # ---- the link's thread ------------------------------------------------------------------------------------

    def hear(self, message: Order | Stop) -> None:
        """Take the manager's word."""
        self._feed(message)

    def _feed(self, event: WorkerEvent) -> None:
        with self._lock:
            for effect in self._core.step(time.monotonic_ns(), event):
                self._carry_out(effect)
        aside.look()

    def _carry_out(self, effect: WorkerEffect) -> None:
        if isinstance(effect, Reach):
            self._say(effect.message)
        elif isinstance(effect, Quit):
            _leave_at_once(effect)
        elif isinstance(effect, LetGo):
            if self.hold.end() >= 0:
                self._raise_what_failed(effect.epoch)
        elif isinstance(effect, Park) and not self.has_session and not self.newcomer:
            for answer in self._core.step(time.monotonic_ns(), Done(effect.epoch, Stage.PARKED, -1, False, NO_SESSION)):
                self._carry_out(answer)
        else:
            if isinstance(effect, Park) and self._core.state is not WorkerState.SETUP:
                self._control.drain(effect.epoch)
                _end_on_devices(effect.epoch)
            self._todo.put(effect)

    def watch_failures(self) -> None:
        """Tell the manager what the guards saw fail; what nobody repairs is raised in the script after all, for then
        it is the script's own mistake, or its end. What is late has not failed: it is told, and goes on. The body of a
        daemon thread."""
        from taskd.comm import guard

        poller = select.poll()
        poller.register(self._control.event_fd, select.POLLIN)
        ailing_in = -1
        while True:
            left_ms = self.hold.look()
            if left_ms is not None and left_ms <= 0:
                self._let_go(self.hold.end())
                continue
            poller.poll(min(left_ms or PROBE_MS, PROBE_MS) if guard.on_devices() else left_ms)
            if self._core.epoch != ailing_in and (ailing := guard.probe()):
                ailing_in = self._core.epoch  # said once: a group that ails does so until it is made anew
                words = ", ".join(f"group {group}: {fault.value}" for group, fault in ailing)
                self._testify(words, {fault for _, fault in ailing})
            for group, kind, sequence, error, epoch, _at_ns in self._control.take_events():
                who = self._core.rank, self._core.incarnation
                if (late := lateness.evidence_of(*who, group, kind, sequence, error)) is not None:
                    _logger.warning("%s", lateness.sentence(late))
                    self._say(late)
                    continue
                fault = guard.classify(group, error)
                self.hold.begin(epoch, self._patience(fault, error))
                self._testify(f"{kind} {sequence} of group {group}: {error}", {fault})

    def _ask(self) -> None:
        """Say once more how this rank stands: that changes nothing, and is taken by a launcher that runs."""
        with self._lock:
            core = self._core
            if core.state is WorkerState.RUNNING:
                self._say(StageReached(core.rank, core.incarnation, core.epoch, Stage.RUNNING, core.updates, True, ""))

    def _patience(self, fault: Fault, error: str) -> float:
        """How long a repair is awaited that could mend this. What the script did wrong itself is mended by none. Of a
        peer that has left by itself nobody makes one, unless it has failed, which is known by then."""
        if fault is Fault.ARGUMENTS:
            return 0.0
        left = PEER_HAS_LEFT in error and not self.has_session
        return min(LEFT_SECONDS, self._unrepaired_seconds) if left else self._unrepaired_seconds

    def _testify(self, text: str, faults: set[Fault]) -> None:
        """Tell the manager what this rank saw fail. Where nothing came in time, silence is all that it saw."""
        kind = EvidenceKind.COLLECTIVE_TIMEOUT if faults == {Fault.SILENCE} else EvidenceKind.COLLECTIVE_ERROR
        self._say(Evidence(kind, -1, self._core.incarnation, self._core.rank, 0, cut(text)))

    def _let_go(self, epoch: int) -> None:
        """Operations that failed and wait for a repair end with their error, unless a repair has begun."""
        with self._lock:
            self._raise_what_failed(epoch)

    def _raise_what_failed(self, epoch: int) -> None:
        if self._control.mode != self._normal or self._core.state is not WorkerState.RUNNING:
            return
        try:
            self._control.resume(epoch)
        except ValueError:
            return  # a repair has begun just now
        _logger.warning("a collective has failed and nobody repairs it: its error is raised in the script")

    # ---- the training thread ----------------------------------------------------------------------------------

    def begin(self) -> None:
        """A session exists: from now on a step can be given up."""
        with self._lock:
            self.has_session = True

    def ordered(self) -> bool:
        return bool(self._control.mode != self._normal)

    def record(self, occasion: Occasion, step: int, pieces: list[bytes]) -> None:
        self._kept(lambda: self._record.write(occasion, step, pieces))

    def record_ledger(self, number: int, pieces: list[bytes]) -> None:
        if self.records:
            self._kept(lambda: self._record.write_ledger(number, pieces))

    def ledger(self) -> tuple[int, bytes] | None:
        return self._inherited.ledger() if self._inherited is not None else None

    def _kept(self, write: Callable[[], None]) -> None:
        try:
            write()
        except (OSError, UsageError) as error:
            self.records = False
            _logger.warning(
                "this rank's local state can no longer be kept, so its death would not be healed in place: %s", error
            )

    def refuse(self, sentence: str) -> None:
        _leave_at_once(Quit(1, cut(sentence)))

    def training_begins(self) -> None:
        from taskd.comm import guard

        self._control.stop_record()
        guard.training_begins()

    def operations(self) -> int:
        from taskd.comm import guard

        return guard.begun()

    def committed(self, updates: int) -> None:
        if self._healed:
            self._healed = False
            self._answer(self._core.epoch, Stage.RUNNING, updates)

    def tell_proof(self, digests: Digests, updates: int, every: int, first: int, end: int) -> None:
        core = self._core
        self._say(
            Proof(
                rank=core.rank,
                incarnation=core.incarnation,
                epoch=core.epoch,
                updates=updates,
                every=every,
                layout=digests.number,
                total=len(digests.units),
                harmless=digests.harmless,
                taken=digests.taken,
                first=first,
                digests=digests.of(first, end),
                names=digests.names(first, end) if self.speaks else "",
                missing=digests.missing,
            )
        )

    @contextlib.contextmanager
    def rehearsing(self) -> Iterator[None]:
        self._control.rehearsing = True
        try:
            yield
        finally:
            self._control.rehearsing = False

    def apart(self) -> AbstractContextManager[None]:
        return self.rehearsing_apart(self._core.epoch)

    def run(self, loop: Loop) -> None:
        if self.newcomer:
            self._answer(self._core.epoch, Stage.PARKED, -1)
        while True:
            effect = self._todo.get()
            try:
                if self._follow(effect, loop):
                    self._healed = True
                    return
            except StepAbandoned:
                continue  # a newer epoch: its Park stands in the queue, or will
            except Misfit as error:
                self._failed(effect, error)
                _leave_at_once(Quit(1, cut(str(error))))
            except Exception as error:
                # Of whatever kind: the manager has to hear that the stage failed, so that it climbs the ladder.
                self._failed(effect, error)

    def everyone(self, mine: bytes) -> tuple[list[bytes], int]:
        from taskd.state.restore import everyone

        return everyone(mine), self._core.rank

    def all_arrived(self, heal: Callable[[], None]) -> bool:
        import torch.distributed as dist

        try:
            if dist.is_initialized():
                dist.barrier()
            return True
        except StepAbandoned:
            heal()
            return False

    def _follow(self, effect: WorkerEffect, loop: Loop) -> bool:
        """Do one effect; True when training goes on."""
        if isinstance(effect, Park):
            self._let_operations_end()
            held = loop.held()
            flaw = loop.flaw()
            if not flaw and held < 0 and not self.newcomer:  # a newcomer holds nothing, and nobody expects it to
                flaw = "its update is torn"
            self._answer(effect.epoch, Stage.PARKED, -1 if flaw else held, ok=not flaw, reason=cut(flaw))
        elif isinstance(effect, Rebuild):
            self._rebuild_groups(effect.order.epoch)
            self._answer(effect.order.epoch, Stage.REBUILT, loop.held())
        elif isinstance(effect, Restore):
            from taskd.state.restore import restore

            restore(
                effect.order, self._core.rank, loop, self._inherited if self.newcomer else None, self.rehearsing_apart
            )
            self.newcomer = False
            self._answer(effect.order.epoch, Stage.RESTORED, effect.order.updates)
        elif isinstance(effect, Resume):
            self._control.resume(effect.epoch)
            self._answer(effect.epoch, Stage.RUNNING, effect.updates)
            return True
        return False

    @staticmethod
    def _let_operations_end() -> None:
        """No operation of the step that was given up may touch a tensor any more."""
        from taskd.comm import guard

        guard.quiesce(QUIESCE)

    def _rebuild_groups(self, epoch: int) -> None:
        """Not by this thread: a group waits for all its members, and one of them may be dying."""
        aside.do(lambda: self._rebuild(epoch), lambda: self._core.epoch != epoch, f"epoch {epoch} is over")
        self._resume(epoch)

    def _resume(self, epoch: int) -> None:
        """Operations run again, unless a newer epoch has begun."""
        try:
            self._control.resume(epoch)
        except ValueError:
            raise StepAbandoned(f"epoch {epoch} is over") from None

    @contextlib.contextmanager
    def rehearsing_apart(self, epoch: int) -> Iterator[None]:
        """Inside of a repair: let operations complete on this rank alone for a moment."""
        from taskd.comm import guard

        with self._lock:
            if self._core.epoch != epoch:
                raise StepAbandoned(f"epoch {epoch} is over")
            self._control.sandbox(EMPTY_RECORD)
        try:
            with self.rehearsing(), guard.counting_apart():
                yield
        finally:
            self._resume(epoch)

    def _answer(self, epoch: int, stage: Stage, updates: int, *, ok: bool = True, reason: str = "") -> None:
        self._feed(Done(epoch, stage, updates, ok, reason))

    def _failed(self, effect: WorkerEffect, error: Exception) -> None:
        _logger.warning("a stage of the repair failed: %s", error)
        epoch = effect.order.epoch if isinstance(effect, (Rebuild, Restore)) else self._core.epoch
        stage = {Park: Stage.PARKED, Rebuild: Stage.REBUILT, Restore: Stage.RESTORED}.get(type(effect), Stage.RUNNING)
        self._answer(epoch, stage, -1, ok=False, reason=cut(str(error) or repr(error)))


def _end_on_devices(epoch: int) -> None:
    """Let go of a training thread that waits for its device: what is queued there ends. On a thread of its own, since
    it may take seconds; a failure comes up again in the rebuild, which waits for this."""
    from taskd.comm import guard

    def end() -> None:
        try:
            guard.end_inner_groups(epoch, f"epoch {epoch} begins", on_devices_alone=True)
        except TaskdError as error:
            _logger.warning("what is queued on this rank's device does not end: %s", error)

    if guard.on_devices():
        threading.Thread(target=end, name="taskd-devices", daemon=True).start()


def _leave_at_once(quit_effect: Quit) -> None:
    """End this process wherever its training thread is: another incarnation has its seat, or the job stops."""
    _logger.log(logging.WARNING if quit_effect.exit_code else logging.INFO, "this process ends: %s", quit_effect.reason)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(quit_effect.exit_code)
