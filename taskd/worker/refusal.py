"""The reason why this rank must not go on: its script has failed by itself, or going on would be wrong.

The reason reaches the other ranks in the next repair (restore.py). A newcomer that replaces this rank finds it in the
ledger. It must not go on after an error that the script has raised, because no rank does that step again.
This module judges nothing: other modules tell it the reason.
"""

from __future__ import annotations

from taskd import log
from taskd.errors import StepAbandoned
from taskd.state.ledger import NEVER, Ledger
from taskd.worker import reads
from taskd.worker.heal import Repair
from taskd.worker.passage import Passage
from taskd.worker.rehearsing import ENDS
from taskd.worker.step_state import StepState
from taskd.worker.transaction import Transaction

RUN_AGAIN = "a newcomer runs again through what its life before has behind it"
LACKS = "a newcomer has failed in the first step that it did, and may lack what earlier steps have left"
LEFT = (
    "this newcomer has come to the end of its script and not to the loop of its life before: what stands between the "
    "loops has decided otherwise, by weights that nobody has trained; let session.between() decide it"
)
PUT_IT = "put it into session.between(work, then) as `then`"
_logger = log.get(__name__)


class Refusal:
    """The refusal of one session."""

    def __init__(self, transaction: Transaction, ledger: Ledger, repair: Repair, passage: Passage) -> None:
        self._transaction, self._ledger, self._repair, self._passage = transaction, ledger, repair, passage
        self._sentence = ""

    def of(self, updates: int) -> str:
        """Return why going on after this number of updates would be wrong, or an empty text."""
        ledger = self._ledger
        if not self._sentence and self._repair.newcomer and NEVER < ledger.failed_at < updates:
            return ledger.failure
        return self._sentence

    def script_failed(self, sentence: str) -> None:
        """Note that the script has failed on this rank by itself. A newcomer that replaces it must not go on after
        that."""
        if self._repair.newcomer and self._passage.under_way:
            ended_by = self._transaction.registered.calls.rehearsing.ended_by
            first = f" (the step that it rehearsed had ended early: {ended_by})" if ended_by else ""
            self.refuse(f"{RUN_AGAIN}, and failed there: {sentence}{first}")
        step, left = self._transaction.current, self._transaction.raised.left
        inside = step.number if step is not None else left
        if inside is not None and self._repair.replaces and not (self._repair.newcomer or self._transaction.checked):
            self.refuse(f"{LACKS}: {sentence}")
        at = inside if inside is not None else self._transaction.updates - 1
        if at < 0 or self._repair.newcomer:
            return
        where = "in" if inside is not None else "after"
        self._note(at, f"its script failed {where} step {at}, which the others have done: {sentence}")

    def script_leaves(self) -> None:
        """Note that the script ends. A newcomer that has not joined the others yet must not end: then this refuses and
        never returns."""
        if self._repair.newcomer and not self._sentence:
            self.refuse(LEFT + reads.newer())

    def writes(self, sentence: str) -> None:
        """Refuse a write of the script in code that a newcomer runs again. Never returns. Raises StepAbandoned if only
        the body of a rehearsed step is to end."""
        if self._transaction.registered.calls.rehearsing.is_behind:
            raise StepAbandoned(f"{ENDS}, since {sentence}")
        if not self._sentence:
            self.refuse(f"{RUN_AGAIN}, and {sentence}: {PUT_IT}")

    def refuse(self, sentence: str) -> None:
        """Make all ranks start over: going on would be wrong. Never returns. Raises StepAbandoned in a step that
        is given up before its update; then no repair can succeed that follows."""
        _logger.warning("%s", sentence)
        self._sentence = sentence
        if self._repair.newcomer:
            self._passage.end()
            self._transaction.heal()
        self._note(self._transaction.updates - 1, sentence)
        step, state = self._transaction.current, self._transaction.step.state
        in_step = step is not None and step.in_body and not step.rehearsal and state is StepState.BODY
        self._repair.refuse(sentence, in_step)

    def losses_differ(self, sentence: str) -> None:
        """Refuse, unless the user has said that losses may differ."""
        if self._repair.losses_may_differ:
            _logger.warning("%s", sentence)
        else:
            self.refuse(sentence)

    def begin_anew(self) -> None:
        """Forget a noted failure: this rank does the failed step again."""
        if self._ledger.failed_at != NEVER:
            self._note(NEVER, "")

    def _note(self, at: int, sentence: str) -> None:
        self._ledger.failed_at, self._ledger.failure = at, sentence
        self._ledger.save()
