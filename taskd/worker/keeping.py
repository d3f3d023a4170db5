"""Decides when what only this rank has of a model is written to its memory file, and brings a process to it.

The state is written when a step begins, and what the optimizer is given before it updates, which is before the gate
(gate.py). So once any rank has made an update, every rank has written what leads to it: a newcomer makes the update by
itself, and so does a survivor that was stopped at the gate. After the second update this rank makes that update once
more and compares (the first one has made the optimizer's state). If it gets other bits, nothing is kept from then on,
and the job says that a death makes all start over. Before this is known, what was written does not count as leading to
an update.

Failure modes: the host has no room; a state that cannot be kept; an update that is no function of its gradients, or is
not the only change of the weights: the optimizer communicates or steps twice, weights move behind it, or an error
leaves a step behind it. A survivor sees each of them in the step in which it happens first. Each ends the keeping, with
a sentence, and costs no step. This module does NOT know which ranks have the same (state/parts.py) or how the file is
made (state/shard_file.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

from taskd import memory
from taskd.core.types import NOTHING_KEPT, Kept
from taskd.errors import PeerError, TaskdError
from taskd.state import kept_shards, shards
from taskd.state.replica import Replica
from taskd.state.shard_file import Leads, ShardFile
from taskd.state.strange import STARTS_OVER

ENDS = "what only this rank has of the model is kept no longer, since {why}: {over}"
OTHERWISE = "an update of this job depends on more than its gradients: made again, {what} came out otherwise"
TOO_DEAR = "it would take {share:.0%} of each step (TASKD_RECOVER_KEEP_SHARDS=always keeps it nevertheless)"
KEEPS = (
    "each rank keeps what only it has of the model in memory of its host: {megabytes:.1f} MB for this rank, and "
    "{ms:.1f} ms in each step"
)
MOVED = "the parameters were changed behind the update, or may have been, and what was kept does not lead there"
TWICE = "the optimizer updates more than once in a step"
TALKS = "the optimizer communicates while it steps, and a rank alone could not make its update again"
LEFT = "an error has left a step behind its update, or the script has caught it"
_COPIES = 7
"""Two states, each of the parameters and two moments, and the gradients: so many times the parameters are kept."""
_SHARE = 0.5
"""The share of the host's free memory that all of its ranks together may use."""
_WEIGHED_AFTER = 6
_MOST_OF_A_STEP, _LEAST_NS = 0.1, 20_000_000
"""It is too dear if it takes this share of a step and this time, on average of the steps after the try."""


class Trial(Enum):
    """How far it is known that an update can be made again, and what the keeping costs."""

    OPEN = auto()
    PASSED = auto()
    WEIGHED = auto()
    ENDED = auto()


class Keeping:
    """What one session keeps."""

    def __init__(
        self,
        replica: Replica,
        file: ShardFile | None,
        always: bool,
        ends: Callable[[str], None],
        says: Callable[[str], None],
    ) -> None:
        """`always`: whatever it costs; `ends`: the keeping has ended, with this sentence; `says`: tells people what it
        costs."""
        self._replica, self._file, self._always = replica, file, always
        self._ends, self._says = ends, says
        self._trial = Trial.OPEN
        self._has_room = False
        self._loaded = -1
        """The number of updates of the state that was loaded whole, and need not be written again."""
        self._updated = False
        """Whether the current step has come to its optimizer."""
        self._spent_ns = self._since_ns = 0
        self._costs: list[float] = []
        """The time in each step since the try, in nanoseconds, and the steps' own."""

    def why_not(self) -> str:
        """Return why nothing can be kept. Empty: it can."""
        if self._file is None:
            return "recover.keep_shards is never, or taskd-run has not started this job"
        if self._trial is Trial.ENDED:
            return "that has ended before"
        if len(self._replica.optimizers) != 1:
            return f"the job has {'several optimizers' if self._replica.optimizers else 'no optimizer'}"
        (optimizer,) = self._replica.optimizers.values()
        if names := kept_shards.outside_of_its_state(optimizer):
            return f"the optimizer has attributes that may change with an update ({', '.join(names)})"
        others = (name for name, item in self._replica.others.items() if any(shards.inside(item.state_dict())))
        return next((f"{name} has shards of its own" for name in others), "")

    @property
    def kept(self) -> Kept:
        """To which numbers of updates this rank can be brought, by this process or by the one before."""
        return self._file.kept() if self._file is not None else NOTHING_KEPT

    # ---- in a step --------------------------------------------------------------------------------------------

    def step_begins(self, number: int) -> None:
        """Write the state that this step begins with."""
        self._updated = False
        if not self._on:
            return
        self._weigh()
        if number != self._loaded:
            self._write(lambda file: self._write_state(file, number))
        self._loaded = -1

    def comes_to_gate(self, number: int, updates: bool) -> None:
        """Write what leads to the next state. `updates`: the optimizer is about to step."""
        if self._on:
            self._updated = updates
            if not updates:
                self._write(lambda file: file.write_gradients(number, {}, Leads.WITHOUT_UPDATE))
                return
            leads = Leads.PERHAPS if self._trial is Trial.OPEN else Leads.SURELY
            self._write(lambda file: file.write_gradients(number, self._given(), leads))

    def updates_again(self) -> None:
        """The optimizer is about to step once more in this step."""
        if self._on:
            self._end(TWICE)

    def step_ended(self, updates: int, moved: bool, talks: bool, operations: Callable[[], int]) -> bool:
        """A step has ended. `moved`: parameters have changed behind its update; `talks`: optimizers communicate. Return
        whether an update was tried, so the parameters were written."""
        if not self._on:
            return False
        if moved or talks:
            self._end(MOVED if moved else TALKS)
            return False
        if self._trial is not Trial.OPEN or not self._updated:
            return False
        begun = operations()
        tried = self._try(updates)
        if self._on and operations() != begun:
            self._end(TALKS)
        return tried

    def step_left(self) -> None:
        """An error of the script has left a step, and the script may catch it and change what it likes."""
        if self._on:
            self._end(LEFT)

    def given_up(self, moved: bool) -> None:
        """A step was given up. `moved`: parameters had changed behind its update."""
        if self._on and moved:
            self._end(MOVED)

    def _try(self, updates: int) -> bool:
        """Make the last update again. Return False if it was the first one, which has made the optimizer's state."""
        assert self._file is not None
        (optimizer,) = self._replica.optimizers.values()
        before, given = self._file.state(updates - 1), self._file.gradients(updates - 1)
        try:
            if not kept_shards.has_same_entries(optimizer, before):
                return False
            what = kept_shards.tries(self._replica, before, given)
        except Exception as error:  # of any kind: the user's optimizer raises it
            self._end(f"an update cannot be made again ({type(error).__name__}: {error})")
            return True
        if what:
            self._end(OTHERWISE.format(what=what))
        else:
            self._trial = Trial.PASSED
        return True

    def _weigh(self) -> None:
        """Another step begins: after some of them, tell what the keeping costs, and end it if that is too much."""
        now_ns = time.perf_counter_ns()
        if self._trial is Trial.PASSED and self._since_ns:
            self._costs += [self._spent_ns, now_ns - self._since_ns]
        self._spent_ns, self._since_ns = 0, now_ns
        if len(self._costs) < 2 * _WEIGHED_AFTER:
            return
        spent, whole = sorted(self._costs[::2])[_WEIGHED_AFTER // 2], sorted(self._costs[1::2])[_WEIGHED_AFTER // 2]
        self._trial, self._costs = Trial.WEIGHED, []
        if spent > max(_MOST_OF_A_STEP * whole, _LEAST_NS) and not self._always:
            self._end(TOO_DEAR.format(share=spent / whole))
        else:
            assert self._file is not None
            self._says(KEEPS.format(megabytes=self._file.size / 1e6, ms=spent / 1e6))

    # ---- in a repair ------------------------------------------------------------------------------------------

    def bring(self, updates: int) -> bool:
        """Bring this rank to this number of updates. Return whether it has all of that state; False: what all ranks
        have alike is that of an update before. Raises PeerError if the file does not lead there."""
        file = self._file
        assert file is not None
        if file.proved and self._trial is Trial.OPEN:
            self._trial = Trial.PASSED  # by the life before
        file.go_back(updates)
        if (state := file.state(updates)) is not None:
            kept_shards.load(self._replica, state)
            self._loaded = updates
            return True
        state, given = file.state(updates - 1), file.gradients(updates - 1)
        if state is None or given is None:
            raise PeerError(f"what was kept of this rank leads to {file.kept()}, and not to {updates} updates")
        kept_shards.load(self._replica, state)
        if given:
            (optimizer,) = self._replica.optimizers.values()
            kept_shards.update(self._replica, optimizer, given)
        return False

    def word(self, updates: int) -> int:
        """Return a number for what all ranks had alike after so many updates. -1: this is not known here."""
        return self._file.word(updates) if self._file is not None else -1

    # ---- inside -----------------------------------------------------------------------------------------------

    @property
    def _on(self) -> bool:
        return self._replica.kept and self._file is not None and self._trial is not Trial.ENDED

    def _given(self) -> dict[str, Any]:
        (optimizer,) = self._replica.optimizers.values()
        return kept_shards.given_to(optimizer)

    def _write_state(self, file: ShardFile, number: int) -> None:
        state = kept_shards.state_of(self._replica)
        if not self._has_room and (why := self._lack_of_room(file, state)):
            self._end(why)
            return
        self._has_room = True
        file.write_state(number, state, kept_shards.number_of(state["common"]))

    @staticmethod
    def _lack_of_room(file: ShardFile, state: dict[str, Any]) -> str:
        needed = _COPIES * sum(one.nbytes for one in state["parameters"]) - file.size
        there = int(_SHARE * memory.free() / int(os.getenv("LOCAL_WORLD_SIZE", "1")))
        if needed <= there:
            return ""
        return f"it takes {needed / 1e6:.0f} MB, and {there / 1e6:.0f} MB are left for each rank of this host"

    def _write(self, write: Callable[[ShardFile], None]) -> None:
        assert self._file is not None
        began_ns = time.perf_counter_ns()
        try:
            write(self._file)
        except (OSError, TaskdError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            self._end(f"it cannot be written ({error})")
        self._spent_ns += time.perf_counter_ns() - began_ns

    def _end(self, why: str) -> None:
        """Keep nothing any more."""
        self._trial = Trial.ENDED
        if self._file is not None:
            self._file.forget()
        self._ends(ENDS.format(why=why, over=STARTS_OVER))
