"""Takes the failures that the guards announce, reports them to the manager, and ends the wait if no repair comes.

A failed operation is held for a repair (hold.py). If no repair comes in time, its error is raised in the script: it is
then the script's own mistake, or its end. An operation that is late has not failed: it is reported and goes on
(lateness.py). Groups on devices do not announce anything by themselves, so they are asked.

Failure modes: the script's own mistake (no repair is awaited); a peer that has left by itself (a repair comes only if
the peer has failed, and this is known soon); a group with a fault that lasts until the group is made anew (reported
once per epoch). It does NOT decide upon repairs and takes part in none (heal.py).
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any

from taskd import log
from taskd.comm.adapter import Fault
from taskd.core import limits
from taskd.core.messages import Evidence
from taskd.core.types import EvidenceKind
from taskd.core.words import cut
from taskd.worker import lateness
from taskd.worker.orders import Orders

PROBE_MS = 1000.0
"""How often groups on devices are asked about their state: they do not announce it by themselves."""
PEER_HAS_LEFT = "it has left: "
"""The words of rails about a peer whose interpreter has ended (csrc/rail/session/session.cpp)."""
LEFT_SECONDS = 2 * limits.SETTLE_NS / limits.SECOND
"""If the peer had failed, all ranks would start over within this time: before any step, that is decided after
SETTLE_NS."""
_logger = log.get(__name__)


class Failures:
    """The failures of this rank's operations."""

    def __init__(self, orders: Orders, control: Any, say: Callable[[Any], bool], unrepaired_seconds: float) -> None:
        """An error is raised in the script unless a repair begins within `unrepaired_seconds`. The repair of a dead
        rank or a silent node is ordered sooner than that."""
        self._orders = orders
        self._control = control
        self._say = say
        self._unrepaired_seconds = unrepaired_seconds
        self._ailing_in = -1  # the last epoch with a report: a group's fault lasts until the group is made anew

    def watch(self) -> None:
        """The body of a daemon thread."""
        from taskd.comm import guard

        hold = self._orders.hold
        poller = select.poll()
        poller.register(self._control.event_fd, select.POLLIN)
        while True:
            left_ms = hold.look()
            if left_ms is not None and left_ms <= 0:
                self._orders.let_go(hold.end())
                continue
            poller.poll(min(left_ms or PROBE_MS, PROBE_MS) if guard.on_devices() else left_ms)
            self._probe()
            for announced in self._control.take_events():
                self._hear(*announced)

    def _probe(self) -> None:
        from taskd.comm import guard

        epoch = self._orders.core.epoch
        if epoch != self._ailing_in and (ailing := guard.probe()):
            self._ailing_in = self._orders.core.epoch
            words = ", ".join(f"group {group}: {fault.value}" for group, fault in ailing)
            self._testify(words, {fault for _, fault in ailing})

    def _hear(self, group: str, kind: str, sequence: int, error: str, epoch: int, _at_ns: int) -> None:
        from taskd.comm import guard

        core = self._orders.core
        late = lateness.evidence_of(core.rank, core.incarnation, group, kind, sequence, error)
        if late is not None:
            _logger.warning("%s", lateness.sentence(late))
            self._say(late)
            return
        fault = guard.classify(group, error)
        self._orders.hold.begin(epoch, self._patience(fault, error))
        self._testify(f"{kind} {sequence} of group {group}: {error}", {fault})

    def _patience(self, fault: Fault, error: str) -> float:
        """Return how long to wait for a repair. No repair mends the script's own mistake. If a peer has left by itself,
        a repair comes only if the peer has failed, and that is known within LEFT_SECONDS."""
        if fault is Fault.ARGUMENTS:
            return 0.0
        left = PEER_HAS_LEFT in error and not self._orders.has_session
        return min(LEFT_SECONDS, self._unrepaired_seconds) if left else self._unrepaired_seconds

    def _testify(self, text: str, faults: set[Fault]) -> None:
        """Report to the manager what this rank saw fail. If only silence was seen, the evidence is a timeout."""
        kind = EvidenceKind.COLLECTIVE_TIMEOUT if faults == {Fault.SILENCE} else EvidenceKind.COLLECTIVE_ERROR
        core = self._orders.core
        self._say(Evidence(kind, -1, core.incarnation, core.rank, 0, cut(text)))
