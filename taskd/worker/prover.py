"""A rank's part in the proof that all ranks hold the same state: it sends digests at the right updates and never waits.

At the end of a completed step, a slice of the state is digested if it is that slice's turn (core/proof/plan.py). The
whole state is digested after the first update, and after each of the first two updates that follow a repair. It is also
digested at a slice's turn if an optimizer has got more state. Between two turns a step costs one comparison. A failure
here ends the proofs of this rank and logs one warning; it never costs a step. This module compares nothing: the manager
does.
"""

from __future__ import annotations

import logging
import time

import torch.distributed as dist

from taskd import _native, log
from taskd.core import limits
from taskd.core.proof.plan import Rhythm, due, following, slices
from taskd.state.digests import Digests
from taskd.state.replica import Replica
from taskd.worker.heal import Repair

_logger = log.get(__name__)


class Prover:
    """The prover of one session."""

    def __init__(self, replica: Replica, repair: Repair) -> None:
        self._digests = Digests(replica, _native.digests)
        self._repair = repair
        self._rhythm: Rhythm | None = None
        self._slices: list[tuple[int, int]] = []
        self._whole = 1  # for how many updates the whole state is still to be digested
        self._told_whole = False
        self._cost_ns = 0  # the cost of the proof that was just sent
        self._next = 0  # the update count before which there is nothing to do
        self._ended_ns = 0  # when the last work here ended; 0: the time since then was not training
        self._ended = 0  # the update count at that time
        self._off = False
        self.spent_ns = self.whole_ns = 0
        """The time spent on slices and on the check in each step; the time of the last proof of the whole state."""

    def took(self) -> None:
        """Note that this rank holds another rank's state, so the two will be alike."""
        self._digests.taken = True

    def healed(self) -> None:
        """Note that a repair has brought the ranks to one state, which is then to be proved."""
        self._whole = max(self._whole, limits.PROOF_REPAIRED)
        self._digests.forget()
        self._next = self._ended_ns = 0

    def stop(self) -> None:
        """Make no more proofs: from here on, steps with one number need not hold the same on two ranks."""
        self._off = True

    def committed(self, updates: int) -> None:
        """Note that a step has ended normally, and that this rank holds `updates` updates."""
        if updates < self._next or self._off or self._digests.replica.kept:  # kept: no other rank has the same
            return
        began_ns = time.perf_counter_ns()
        try:
            if self._rhythm is None and not self._begin():
                return
            self._prove(updates, began_ns)
        except Exception as error:
            # Any kind of error: a user's object that fails when asked for its state must not end the training.
            self._off = True
            _logger.log(logging.WARNING, "what this rank holds is no longer compared with the others: %s", error)
        self._ended, self._ended_ns = updates, time.perf_counter_ns()
        took_ns = self._cost_ns or self._ended_ns - began_ns
        if self._told_whole:
            self.whole_ns = took_ns
        else:
            self.spent_ns += took_ns

    def _begin(self) -> bool:
        """Whether there are other ranks to compare with."""
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        self._off = ranks < 2 or not self._repair.records
        if not self._off:
            self._rhythm = Rhythm(ranks)
        return not self._off

    def _prove(self, updates: int, began_ns: int) -> None:
        rhythm, digests = self._rhythm, self._digests
        assert rhythm is not None
        self._cost_ns = 0
        if self._ended_ns and updates > self._ended:
            rhythm.step_took((began_ns - self._ended_ns) // (updates - self._ended))
        if digests.look():
            self._slices = slices(digests.sizes())
            self._whole = max(self._whole, 1)
        self._told_whole = self._whole > 0
        if self._told_whole:
            self._whole -= 1
            self._tell(updates, 0, len(digests.units))
            return
        at = due(updates, rhythm.every, len(self._slices))
        if at >= 0:
            self._tell(updates, *self._slices[at])
            rhythm.proof_took(self._cost_ns)
        self._next = following(updates, rhythm.every) if not self._whole else 0

    def _tell(self, updates: int, first: int, end: int) -> None:
        """Digest these units and send the digests. The cost is this thread's CPU time: time in which another process
        has the processor does not count. If a device is waited for, the cost is the elapsed time."""
        assert self._rhythm is not None
        clock = time.perf_counter_ns if self._digests.on_device else time.thread_time_ns
        began_ns = clock()
        whole_every = self._rhythm.every * len(self._slices)
        self._repair.tell_proof(self._digests, updates, whole_every, first, end)
        self._cost_ns = max(clock() - began_ns, 1)
