"""The last checkpoint: the script's own function writes it before all ranks start over, or the job ends for good.

It is called on one rank that holds the state after the agreed update, while all others wait. That rank has given up its
step and asks for the next one. So what the script counts is put back first, as if the step were done again. A script's
checkpoint may hold more than what is registered. Failure modes:

- the step that is given up has changed a tensor which nobody puts back;
- this rank is a newcomer, and lacks what steps of its predecessor have left somewhere;
- this rank made the update, and has not seen the end of its step, where the script counts it;
- gradients of several steps accumulate, and no checkpoint holds them;
- the function communicates, catches the refusal, fails, never returns, or is killed.

So all tensors for which nobody accounts are followed while it writes (state/leftover.py): on a newcomer all of them, on
others those that steps have changed. If one of them, or what is computed from it, is about to be written or read, there
is no last checkpoint, and the reason is said. It does NOT see arrays of numpy, numbers in places that no source shows,
and what a thread writes after the function has returned.
"""

from __future__ import annotations

import torch

from taskd.errors import StepAbandoned, TaskdError
from taskd.state import leftover
from taskd.state.coverage import listed
from taskd.state.strange import STARTS_OVER
from taskd.state.unaccounted import Census, name_of
from taskd.worker.accounted import Accounted
from taskd.worker.heal import Repair
from taskd.worker.registered import Registered
from taskd.worker.transaction import Transaction

UNSURE = (
    "it would hold what steps have left in {names}, which is not registered, so this rank may not have it as it was "
    "after that update: keep it in an object with state_dict() and load_state_dict(), and register that"
)
UNCOUNTED = "this rank does not know what the last step has left in {names}"
NO_FUNCTION = "this rank has no function for the last checkpoint"
AT_THE_END = "the loop is at its end"
ACCUMULATES = "gradients of several steps accumulate, and a checkpoint would not hold them"
TALKS = "the function for the last checkpoint communicates, and it is called on one rank alone"
MOVES = "the function for the last checkpoint has written into {names}: {over}"
_SOMEWHERE = "a tensor"


class LastCheckpoint:
    """The last checkpoint of one session. It judges what becomes of leftovers while it is written."""

    def __init__(self, registered: Registered, repair: Repair) -> None:
        self._registered, self._repair = registered, repair
        self._writes = False
        self._refused = ""
        """Why it must not be written."""
        self._names: set[str] = set()

    def write(self, transaction: Transaction, at_end: bool) -> None:
        """Let the script write it, report what became of it, and wait for what follows. The script asks for a step.
        `at_end`: its loop has no more."""
        self._refused = ""
        try:
            trouble = AT_THE_END if at_end else self._why_not(transaction)
            if not trouble:
                self._let_it_write(transaction)
        except StepAbandoned:
            trouble = TALKS
        except TaskdError as error:
            trouble = str(error)
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
        self._repair.saved(self._refused or trouble)
        transaction.heal()

    def _why_not(self, transaction: Transaction) -> str:
        """Put back what the script counts. Return why there can be no last checkpoint, or an empty text."""
        if self._registered.save is None:
            return NO_FUNCTION
        if transaction.carries_on():
            return ACCUMULATES
        begun = transaction.begun
        if begun is not None and begun.number == transaction.updates:  # the script went on behind the step once more
            self._registered.local.restore(begun.moment)
        if unknown := transaction.variables.put_back(transaction.updates):
            return UNCOUNTED.format(names=listed(unknown))
        return self._registered.doubts.sentence

    def _let_it_write(self, transaction: Transaction) -> None:
        assert self._registered.save is not None
        accounted = Accounted(self._registered)
        known = accounted.memory() | accounted.given_by_states()
        census = Census() if self._repair.replaces else self._registered.census
        leftover.begin()
        followed = census.left(known, accounted.kept((transaction.begun, transaction.prover)))
        leftover.follow(followed, self)
        local, before = self._registered.local, self._versions()
        moment = local.capture(False)
        self._writes = True
        self._names.clear()
        try:
            self._registered.save(transaction.updates)
        finally:
            self._writes = False
            leftover.release(followed)  # training may go on after all
            moved = sorted(name for name, _ in self._versions() - before)
            local.restore(moment)
            if moved:
                self._registered.coverage.flaws.append(MOVES.format(names=listed(moved), over=STARTS_OVER))

    def _versions(self) -> set[tuple[str, int]]:
        parameters = self._registered.replica.tensors()
        return {(name, one._version) for name, one in parameters if isinstance(one, torch.nn.Parameter)}

    # ---- judging ----------------------------------------------------------------------------------------------

    def holds(self, tensors: list[torch.Tensor]) -> bool:
        """See leftover.Judge."""
        return False

    def reaches_weights(self) -> None:
        """See leftover.Judge."""

    def is_read(self) -> None:
        """See leftover.Judge."""
        self._is_used_for_it()

    def is_saved(self) -> None:
        """See leftover.Judge."""
        self._is_used_for_it()

    def is_used(self, tensor: torch.Tensor) -> None:
        """See leftover.Judge."""
        self._names.add(name_of(tensor) or _SOMEWHERE)

    def _is_used_for_it(self) -> None:
        if self._writes:
            self._refused = UNSURE.format(names=listed(self._names or {_SOMEWHERE}))
            raise TaskdError(self._refused)
