"""The functions that a step calls once when its update is agreed: `step.on_commit(function, *values)`.

Examples are a checkpoint or a line of metrics. A step that is given up must not write them, and they must not be lost
with the rank that was to write them. Failure modes: the rank dies before it has written, while it writes, or after it;
the others have done the step meanwhile, so nobody computes it again; the step is done again and would write twice.

So the values are written to this rank's ledger before a gradient leaves the rank. Once any rank has the update, every
rank's ledger says what that rank owes. The ledger also notes how much of it is done. A newcomer that owes something has
the values from the ledger. It gets the functions by rehearsing that step, of which nothing is kept. A function may run
twice, if the rank died between the function's end and the note.

What the body saves by itself after its backward is not covered, and a warning says so. A function that communicates
cannot be done by one rank alone. From then on a death makes all ranks start over.
It does NOT know what is written. It does not see values that a function holds itself, instead of getting them as
arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from taskd.errors import StepAbandoned
from taskd.state import rng, tree
from taskd.state.ledger import Ledger

TOO_LATE = (
    "step.on_commit() is called behind the step's last backward, where the others may have the update already: should "
    "this rank die right there, nobody knows what it was to do; call it before the backward"
)
SAVED = (
    "torch.save() is called in a step behind its backward, where the others may have the update already: should this "
    "rank die right there, nobody writes that file again; use step.on_commit(taskd.save, ...), before the backward"
)
TALKS = "a function that was given to step.on_commit() communicates"
CHANGED = "the step calls on_commit() {found} times where it called it {wanted} times in the life before of this rank"


class Effects:
    """The functions of the current step."""

    def __init__(self, ledger: Ledger, operations: Callable[[], int]) -> None:
        """`operations`: returns how many collectives this process has begun."""
        self._ledger = ledger
        self._operations = operations
        self._talks = False
        self._may_be_had = False  # whether other ranks may already have the current step's update
        self._functions: list[Callable[..., Any]] = []
        self._values: list[bytes] = []
        self._said_late = self._said_saved = False

    def begin(self) -> None:
        """Begin a step, or a rehearsal of one."""
        self._functions, self._values = [], []
        self._may_be_had = False

    def saves(self) -> list[str]:
        """Note that the body saves something by itself. Return a sentence, only once."""
        if not self._may_be_had or self._said_saved:
            return []
        self._said_saved = True
        return [SAVED]

    def outside(self) -> list[str]:
        """Return what one rank alone could not do again."""
        return [TALKS] if self._talks else []

    def add(self, function: Callable[..., Any], values: tuple[Any, ...]) -> None:
        """Add a function to call. Raises UsageError if a value cannot be kept."""
        self._functions.append(function)
        self._values.append(b"".join(tree.pack(values, "the values of on_commit()")))

    def forward_ended(self, step: int) -> None:
        """Write down what this step owes, before any of its gradients leaves the rank."""
        ledger, self._may_be_had = self._ledger, True
        noted = ledger.owed if ledger.owed_of == step else []  # by an attempt that was given up
        if noted == self._values:
            return
        if ledger.owed_of != step:
            ledger.paid = 0
        ledger.owed_of, ledger.owed = step, [*self._values]
        ledger.save()

    def late(self, step: int) -> list[str]:
        """Write down what the body has added since its last backward, now that it has ended. Return a sentence, only
        once."""
        noted = len(self._ledger.owed) if self._ledger.owed_of == step else 0
        if len(self._functions) == noted:
            return []
        self.forward_ended(step)
        said, self._said_late = self._said_late, True
        return [] if said else [TOO_LATE]

    def owes(self, updates: int) -> bool:
        """Whether a function of the step before is still to be called."""
        ledger = self._ledger
        return ledger.owed_of == updates - 1 >= 0 and ledger.paid < len(ledger.owed)

    def differ(self) -> str:
        """Return why the functions found now do not match what is owed, or an empty text."""
        found, wanted = len(self._functions), len(self._ledger.owed)
        return "" if found == wanted else CHANGED.format(found=found, wanted=wanted)

    def pay(self, updates: int) -> None:
        """Call the functions that the step before owes, if any are left."""
        ledger = self._ledger
        while self.owes(updates):
            generators, begun = rng.capture(), self._operations()
            try:
                self._functions[ledger.paid](*tree.unpack(ledger.owed[ledger.paid]))
            except StepAbandoned:  # raised in a collective of the function
                return
            finally:
                self._talks |= self._operations() != begun
            rng.restore(generators)  # if a rank died in it, nobody would know what it had drawn
            ledger.paid += 1
            ledger.save()
