"""The moments at which the script's counters are inspected, put back, and settled with the other ranks.

state/variables.py says what the counters are. state/settling.py says what ranks conclude from each other's counters.
This module knows the moments: a step is handed out, its body begins and ends, a rehearsal is over, a repair has ended.

Failure modes: a newcomer gets a step long before its script uses it (resilient.py); some ranks meet and others do not.
Invariant: all ranks meet at the same place in the order of their collectives, or none does (`_settle` says why).
"""

from __future__ import annotations

from collections.abc import Callable

from taskd.errors import StepAbandoned
from taskd.state.coverage import SEALED, listed
from taskd.state.note import Told, as_said
from taskd.state.others import lost_sight_of, sealed_things
from taskd.state.rest import Loops
from taskd.state.settling import Settled, Table
from taskd.state.strange import STARTS_OVER
from taskd.state.variables import keep_what_is_set, pass_loop
from taskd.worker import emptied
from taskd.worker.feed import Feed
from taskd.worker.heal import Repair
from taskd.worker.hooked import Hooked
from taskd.worker.kept_files import KeptFiles
from taskd.worker.leftovers import Leftovers
from taskd.worker.notes import Notes
from taskd.worker.registered import Registered

WHAT = "the counters of the script"
UNKNOWN = (
    "nobody knows what the script's {names} would be after step {number}, which was left behind its update: "
    "count before the backward or behind `with step:`, or use step.number"
)
UNSURE = (
    "nobody can tell what the script's {names} would be in step {number} on a rank that has not seen the end of the "
    "step before: left as they are, they may be one step behind; count behind `with step:`, or use step.number"
)
DOUBTFUL = (
    "the script counts {names} in its loop in a way that no repair puts back: a step that is done again counts twice; "
    "use step.number, or count apart from what else is set there"
)
UNSEEN = (
    "the loop has changed {names} in a way that its source does not show, and no repair puts that back: a step that is "
    "done again finds there what its first attempt has left, and a newcomer what its script begins with; use "
    "step.number for what is counted, or register what has the rest"
)
PERHAPS = (
    "the loop may hand {names} on from step to step, and no repair puts that back: a step that is done again finds "
    "there what its first attempt has left; set it at the beginning of each step, or register what holds it"
)
UNFIT = (
    "steps have changed {names}, and this rank can give no value back there that the step could begin with: it is a "
    "flag that nobody sees set, or it was not there, or no plain value; keep it in an object with state_dict() and "
    "load_state_dict(), and name that in taskd.session().register(local=...)"
)
GUARDS = (
    "steps have set {names}, a flag that guards what is done only once: it is left as it is; if steps compute with it, "
    "keep it in an object with state_dict() and load_state_dict(), and name that in taskd.session().register(local=...)"
)
UNLIKE = (
    "the loop leaves {names} to its next steps, and the step that is done again finds something else there: keep it in "
    "an object with state_dict() and load_state_dict(), and name that in taskd.session().register(local=...)"
)
SHOWN = (
    "what the script shows of {names} lacks step {number} on a rank that has not seen its end: count before the "
    "backward or behind `with step:`"
)
LEFT_OUT = (
    "what the script has gathered in {names} to show it is long, or more than numbers and texts: a newcomer may lack "
    "it, and a step that is done again may be in it twice; keep it in an object with state_dict() and "
    "load_state_dict(), and name that in taskd.session().register(local=...)"
)
OUT_OF_SIGHT = (
    "steps change {names} in a way that the source does not show, and to look at that before each step takes more than "
    "a tenth of the time, so nobody does any more: {over}; keep it in an object with state_dict() and "
    "load_state_dict(), and name that in taskd.session().register(local=...)"
)
_NOTHING = Table(False, False, []).pack()


class Counting:
    """The counters of one session."""

    def __init__(
        self,
        registered: Registered,
        repair: Repair,
        refuse: Callable[[str], None],
        notes: Notes,
        leftovers: Leftovers,
        files: KeptFiles,
    ) -> None:
        """`refuse` makes all ranks start over and never returns."""
        self._registered, self._repair, self._refuse = registered, repair, refuse
        self.notes, self.leftovers, self.files = notes, leftovers, files
        self.hooks = Hooked(registered, refuse)
        self._local, self._doubts = registered.local, registered.doubts
        self._variables = registered.local.variables
        self.restored = False
        """Whether a repair has brought all ranks to one state, and they have not met since."""
        self._tells_again = False
        """Whether all ranks have met at the end of a loop since a repair, and meet once more in the next one."""
        self._said: set[str] = set()  # names already reported as doubtful
        self._lacking: list[str] = []
        """What this rank does not know at the end of a loop, and a later loop may use."""
        self._ended: int | None = -1
        """The last step whose body has run to its end; None: the last step's body has not."""

    def handed_out(self, number: int, early: bool, raised: bool = False, caught: bool = False) -> None:
        """Note that the script gets this step. `early`: a newcomer may get it long before its use. `raised`: all ranks
        do it again, because it had raised on this rank. `caught`: the script does it again by itself. Raises
        StepAbandoned."""
        if caught:
            if self._repair.heals:
                self._doubts.look(WHAT, keep_what_is_set, self._variables, number, self._local.loop)
            return
        if not (early and self._variables.inherited.looks):
            self._look(number, raised=raised)
        if self._lacking:
            self._refuse(UNKNOWN.format(names=listed(self._lacking), number=number - 1))
        if self.restored and not early:
            self._settle(number)
        elif self._tells_again and not early:
            self._tell(self._variables.lacks(number))
        self.files.turn(number, early)

    def put_back(self, number: int) -> list[str]:
        """Set what the script counts to what it was when it got this step, on this rank alone. Return the names of what
        this rank cannot put back, or does not know because it has not seen the end of the step before."""
        self._look(number)
        variables, look = self._variables, self._doubts.look
        unknown = {*(look(WHAT, variables.doubtful, self._local.known(), True) or []), *variables.others.given.missed}
        if variables.lacks(number):
            own = look(WHAT, variables.tell, number) or _NOTHING
            settled = look(WHAT, variables.hear, number, [own], 0) or Settled()
            unknown |= settled.refused | settled.unsure
        return sorted(unknown)

    def arrives(self, updates: int) -> None:
        """Note that this rank has come to the end of a loop, before it meets the others there."""
        if self._repair.records and not self._variables.inherited.looks and self._ended == updates - 1:
            at_the_end = self._doubts.look(WHAT, self._variables.at_the_end, updates, self._local.loop)
            self.notes.leaves(*(at_the_end or (b"", b"")))

    def passes(self, updates: int) -> None:
        """Note that a loop is over on all ranks. A newcomer that has joined the others only there takes the counters of
        its predecessor."""
        self._registered.warn(emptied.put_back())
        if not self._variables.inherited.looks:
            return
        self._look(updates)
        if not self._variables.lacks(updates):
            self._ended = updates - 1
        else:
            used, self._lacking = self._doubts.look(WHAT, self._variables.used) or ([], [])
            if used:
                self._refuse(UNKNOWN.format(names=listed(used), number=updates - 1))

    def loop_ends(self, updates: int, heal: Callable[[], None]) -> bool:
        """Settle the counters when all ranks are at the end of a loop. Return False if a repair came, so the loop must
        check again."""
        if not self.restored:
            if self._repair.heals:
                self._hands_on(closely=True)
            return True
        try:
            self._look(updates)
            self._settle(updates, goes_on=True)
            return True
        except StepAbandoned:
            heal()
            return False

    def body_begins(self, number: int) -> None:
        """Note that the script has entered `with step:`."""
        if self._variables.inherited.looks:
            self._look(number, late=True)
            self._hands_on(again=True)
        self._ended = None
        self._registered.warn(emptied.put_back())
        self.leftovers.body_begins()
        self._variables.others.graphs.step_begins()

    def backward_begins(self) -> None:
        """Note that a backward of the script begins."""
        self._variables.others.graphs.backward_begins()
        self.files.judge()
        self.hooks.judge(is_whole=False)

    def body_ended(self, number: int) -> None:
        """Note that the body has run to its end."""
        self._ended = number
        self.leftovers.body_ended()
        self._variables.others.graphs.step_ended()
        self.files.judge()
        self.hooks.judge(is_whole=True)

    def numbers(self, number: int, feed: Feed) -> bool:
        """Set the number that the script's enumerate() gives to this step. Return False if this is impossible."""
        if feed.early or number < feed.numbering.start or not self._repair.heals:
            return True
        return self._doubts.look(WHAT, feed.numbering.hands_out, number, self._variables.numbered) is not False

    def numbers_rehearsal(self, feed: Feed) -> None:
        """Note that the script gets a step whose number does not matter."""
        self._doubts.look(WHAT, feed.numbering.hands_out_rehearsal, self._variables.numbered)

    def rehearsal_begins(self) -> Loops:
        """Note that the script gets a rehearsed step. Return what its loops may set."""
        self.files.rehearses()
        return self._doubts.look(WHAT, self._variables.rehearsal_begins) or []

    def rehearsed(self) -> None:
        """Note that the script asks for the next step after a rehearsed one."""
        self._doubts.look(WHAT, self._variables.rehearsed, self._registered.calls.rehearsing.passes_loop)

    def goes_by(self) -> None:
        """Note that a newcomer goes by this loop, which is over."""
        if ended := self.notes.ended(self._local.loop):
            self._doubts.look(WHAT, pass_loop, self._variables, ended)

    def _look(self, number: int, late: bool = False, raised: bool = False) -> None:
        if not self._repair.heals:
            return
        if self._variables.inherited.looks:
            self._doubts.look(WHAT, self._variables.inherited.came_to_the_end, self.notes.left)
        whole = self._ended == number - 1
        self._doubts.look(WHAT, self._variables.handed_out, number, self._local.loop, whole, late, raised)
        if names := self._doubts.look(WHAT, lost_sight_of, self._variables.others, self._variables.looks):
            sentence = OUT_OF_SIGHT.format(names=listed(names), over=STARTS_OVER)
            self._registered.coverage.flaws.append(sentence)
            self._registered.warn([sentence])
        if not self.restored:
            self._hands_on()

    def _hands_on(self, closely: bool = False, again: bool = False) -> None:
        """Check whether the loop hands on tensors that no repair would put back. `again`: the step is done again, or
        this rank is a newcomer, so a difference is refused."""
        held = self._doubts.look(WHAT, self._variables.held, self._local.known)
        found = [] if held is None else self._registered.hands_on(held, closely, again)
        if closely:
            names = self._doubts.look(WHAT, sealed_things, self._variables.others) or []
            found += [*self._registered.keeps(SEALED, names), *self.files.report()]
        coverage = self._registered.coverage
        unlike = self._variables.handed_on(coverage.handed(), coverage.put_back)
        if again and (found or unlike):
            self._refuse(found[0] if found else UNLIKE.format(names=listed(unlike)))

    def _settle(self, number: int, goes_on: bool = False) -> None:
        """Tell each rank what it lacks: on all ranks, at the first step after a repair, or at the loop's end.

        All ranks come here, or none does. The repair's stage RESTORED sets `restored` on every rank, and the manager
        lets no rank go on before all have reached that stage (core/repair/attempt.py). From there to the next repair
        all ranks make the same collectives in the same order. This one comes before step `number`, or after the meeting
        at the loop's end. If a rank dies before all have left it, a new repair sets `restored` on all ranks again. It
        is left out if a newcomer gets its step early: the others may never reach theirs.

        Raises StepAbandoned.
        """
        variables, look = self._variables, self._doubts.look
        self._hands_on(closely=True, again=True)
        if self._doubts.sentence:  # a look has failed, perhaps half-way
            self._refuse(self._doubts.sentence)
        self._check_what_was_put(goes_on)
        self._doubt(DOUBTFUL, look(WHAT, variables.doubtful, self._local.known()) or [])
        if used := look(WHAT, variables.doubtful, self._local.known(), True):
            self._refuse(DOUBTFUL.format(names=listed(used)))
        unsure = self._registered.perhaps(look(WHAT, variables.held, self._local.known, True) or {})
        self._doubt(LEFT_OUT, sorted(variables.others.left_out))
        self._doubt(PERHAPS, sorted(variables.looks[-1].without_given(unsure)) if variables.looks else unsure)
        lacking, rank = self._tell(variables.lacks(number), goes_on)
        if any(lacking):
            told, _ = self._repair.together.everyone(look(WHAT, variables.tell, number) or _NOTHING)
            settled = look(WHAT, variables.hear, number, told, rank) or Settled()
            speaks = settled.alone or rank == next(other for other, lacks in enumerate(lacking) if lacks)
            if settled.refused and speaks:
                self._refuse(UNKNOWN.format(names=listed(settled.refused), number=number - 1))
            self._check_what_was_put(goes_on)
            if settled.unsure and not settled.refused:
                self._registered.warn([UNSURE.format(names=listed(settled.unsure), number=number)])
            if settled.shown and not settled.refused:
                self._registered.warn([SHOWN.format(names=listed(settled.shown), number=number - 1)])
        self.restored = False

    def _check_what_was_put(self, goes_on: bool) -> None:
        """`goes_on`: this is the loop's end. There is no step any more in which leftovers could be followed."""
        given = self._variables.others.given
        if missed := [*given.missed, *(given.followed if goes_on else ())]:
            self._refuse(UNFIT.format(names=listed(missed)))
        self._doubt(GUARDS, given.left)

    def _tell(self, lacks: bool, goes_on: bool = False) -> tuple[list[bool], int]:
        """Tell all ranks what this loop has found. Return which ranks lack something of the step before, and this
        rank's number. `goes_on`: this is the loop's end. What stands behind it may differ on a newcomer, because it may
        use something that the last step has left, so they tell each other again in the next loop."""
        found, rank = self._repair.together.everyone(self.notes.told(lacks).pack())
        notes = [Told.unpack(one) for one in found]
        self._doubt(UNSEEN, sorted({as_said(name) for one in notes for name in one.unseen}))
        if sentence := self.notes.heard(notes, rank, goes_on):
            self._refuse(sentence)
        self._tells_again = goes_on
        return [one.lacks for one in notes], rank

    def _doubt(self, sentence: str, names: list[str]) -> None:
        """Report the sentence for those names that were not reported yet."""
        fresh = {*names} - self._said
        self._said |= fresh
        self._registered.warn([sentence.format(names=listed(fresh))] if fresh else [])
