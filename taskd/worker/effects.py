"""What a step is to do once when its update is agreed: `step.on_commit(function, *values)`.

A checkpoint, a line of metrics: neither may be written by a step that is given up, or be lost with the rank that was to
write it. Failure modes: the rank dies before it has written, in the middle, or behind; the others have done the step
meanwhile, so nobody computes it again; the step is done again and would write twice.

So the values stand in this rank's ledger before a gradient leaves the rank: once
anybody has the update, every rank's ledger says what it owes. How much of it is done is noted there, too. A newcomer
that owes something has the values; the functions it gets by rehearsing that step, in which nothing is kept. A function
may run twice, if the rank died between its end and the note.

What the body saves by itself, behind its backward, is not covered, which is said; a function that communicates could
not be done by one rank alone, so from then on a death makes all start over.
It does NOT know what is written, and sees no value that a function holds by itself instead of getting it.
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
    """Of the step under way."""

    def __init__(self, ledger: Ledger, operations: Callable[[], int]) -> None:
        """`operations`: how many this process has begun so far."""
        self._ledger = ledger
        self._operations = operations
        self._talks = False
        self._may_be_had = False  # the update of the step under way, by others
        self._functions: list[Callable[..., Any]] = []
        self._values: list[bytes] = []
        self._said_late = self._said_saved = False

    def begin(self) -> None:
        """A step begins, or a rehearsal of one."""
        self._functions, self._values = [], []
        self._may_be_had = False

    def saves(self) -> list[str]:
        """The body saves something by itself. A sentence, once."""
        if not self._may_be_had or self._said_saved:
            return []
        self._said_saved = True
        return [SAVED]

    def outside(self) -> list[str]:
        """What is done where one rank alone could not do it again."""
        return [TALKS] if self._talks else []

    def add(self, function: Callable[..., Any], values: tuple[Any, ...]) -> None:
        """One more thing to do. Raises UsageError if a value cannot be kept."""
        self._functions.append(function)
        self._values.append(b"".join(tree.pack(values, "the values of on_commit()")))

    def forward_ended(self, step: int) -> None:
        """Before any gradient of this step leaves the rank: write down what it owes."""
        ledger, self._may_be_had = self._ledger, True
        noted = ledger.owed if ledger.owed_of == step else []  # by an attempt that was given up
        if noted == self._values:
            return
        if ledger.owed_of != step:
            ledger.paid = 0
        ledger.owed_of, ledger.owed = step, [*self._values]
        ledger.save()

    def late(self, step: int) -> list[str]:
        """The body has ended: what it has asked for since its last backward is written down now. A sentence, once."""
        noted = len(self._ledger.owed) if self._ledger.owed_of == step else 0
        if len(self._functions) == noted:
            return []
        self.forward_ended(step)
        said, self._said_late = self._said_late, True
        return [] if said else [TOO_LATE]

    def owes(self, updates: int) -> bool:
        """Whether something of the step before is still to be done."""
        ledger = self._ledger
        return ledger.owed_of == updates - 1 >= 0 and ledger.paid < len(ledger.owed)

    def differ(self) -> str:
        """Why what was found now is not what is owed, or nothing."""
        found, wanted = len(self._functions), len(self._ledger.owed)
        return "" if found == wanted else CHANGED.format(found=found, wanted=wanted)

    def pay(self, updates: int) -> None:
        """Do what the step before owes; nothing if that is done."""
        ledger = self._ledger
        while self.owes(updates):
            generators, begun = rng.capture(), self._operations()
            try:
                self._functions[ledger.paid](*tree.unpack(ledger.owed[ledger.paid]))
            except StepAbandoned:  # in a collective of its own
                return
            finally:
                self._talks |= self._operations() != begun
            rng.restore(generators)  # of a rank that dies in it nobody would know what it had drawn
            ledger.paid += 1
            ledger.save()
