"""The manager's proof that all ranks hold the same state. Digests come in, and the names of differing units come out.

Each rank digests the same units of its state after the same updates (plan.py), and sends this proof with its node's
beat. When all ranks have sent their proof of an update, the proofs are compared. Failure modes, and what follows:

- *A proof is lost, or a slower rank sends fewer proofs*: an update without the proofs of all ranks is judged when
  enough newer updates are there, by the proofs that came. No rank is ever asked or waited for.
- *A unit differs from the start* (each rank's own part of a model, a module in another mode): replicas do not share it.
  This is reported once, and the unit is not compared. The same holds for the list of the units.
- *A repair comes before all ranks have told*: the proofs that came before it are compared when it is over.
- *A repair comes before the first proof*: if only the ranks differ that took a unit from others, the unit was alike. If
  others differ, too, the unit was each rank's own, and the takers have lost theirs. Both are verdicts.
- *A unit was alike and is not any more*: a verdict. Three ranks or more: the few ranks that differ from the majority
  are named. Two ranks, or no majority: all ranks are named, and none is blamed.
- *Ranks list other units*: the list itself is compared in the same way. Contents are compared among ranks with the same
  list.
- *Ranks hold parts of a model*: each part is compared by itself, as if it were a job of its own.
- *The manager restarts*: the units found alike or excepted are in the journal, as verdicts. Proofs are not.

Invariants: a unit that was never alike is never reported as a difference. A difference is reported once, until the unit
is compared anew. Not here: what is done about a difference (doubts.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from taskd.core import limits
from taskd.core.counters import Counters
from taskd.core.events import ProofVerdict
from taskd.core.job import Job
from taskd.core.messages import Proof
from taskd.core.types import ProofFinding, RankState
from taskd.core.words import cut, join, rank_words, verb

LIST = "the list of what is compared"
_SHOWN = 3
_MOST_ITEM = 200


class Unit(IntEnum):
    """What is known of one unit."""

    UNKNOWN = 0
    ALIKE = 1
    EXCEPTED = 2  # never alike


@dataclass(slots=True, eq=False)
class Layout:
    """One way in which ranks divide their state."""

    total: int
    units: bytearray
    told: dict[int, int] = field(default_factory=dict)
    """Units whose difference was reported, and how often all ranks had started over by then. It is not reported again
    before the ranks start over once more."""
    names: dict[int, str] = field(default_factory=dict)
    missing: str = ""
    harmless: int = 0
    """How many of its first units change no weight by themselves."""
    based: bool = False

    def name(self, unit: int) -> str:
        """The name of a unit, if a rank has sent it."""
        return self.names.get(unit, f"part {unit} of {self.total}")


@dataclass(frozen=True, slots=True)
class Last:
    """The last complete proof that found no difference."""

    updates: int
    ranks: int
    at: int
    every: int


@dataclass(slots=True, eq=False)
class Told:
    """The proofs of ranks that hold the same number of updates and the same part of the model. `complete`: those of all
    living ranks. `everybody`: those of all ranks that have not left."""

    proofs: dict[int, Proof]
    complete: bool
    everybody: bool
    at: int
    repaired: bool  # a repair has come since

    @property
    def updates(self) -> int:
        """The number of updates that these ranks hold."""
        return next(iter(self.proofs.values())).updates


class Proofs:
    """The open proofs of one job, and what is known of its units."""

    def __init__(self, job: Job, counters: Counters) -> None:
        self._job = job
        self._members = job.members
        self._counters = counters
        self.last: Last | None = None
        self._epoch = self._times = 0  # the epoch of the open proofs, and how often all had started over by then
        self._open: dict[int, dict[int, Proof]] = {}  # by the updates held, then by rank
        self.parts: dict[int, int] = {}  # by rank: the part of the model of its last proof
        self._ready: list[Told] = []
        self._layouts: dict[int, Layout] = {}
        self._sound: dict[int, int] = {}  # by rank, its incarnation: what it took in a repair was seen to be the same
        self._lists_alike = False  # all ranks had the same list once
        self._list_told: int | None = None  # like `Layout.told`, for the list

    @property
    def excepted(self) -> list[str]:
        """The names of what is not compared."""
        found = [
            layout.name(at)
            for layout in self._layouts.values()
            for at, one in enumerate(layout.units)
            if one == Unit.EXCEPTED
        ]
        return found + [layout.missing for layout in self._layouts.values() if layout.missing]

    # ---- filing -----------------------------------------------------------------------------------------------

    def file(self, node: str, proofs: Iterable[Proof], at: int) -> None:
        """Take the proofs of this node's ranks."""
        for proof in proofs:
            record = self._members.find(proof.rank)
            if record is None or record.where != node or not _whole(proof):
                self._counters.count("proof that fits no rank of its node")
            elif record.incarnation == proof.incarnation and proof.epoch >= self._epoch:
                if proof.epoch > self._epoch:
                    self._begin(proof.epoch, at)
                self._take(proof, at)

    def _take(self, proof: Proof, at: int) -> None:
        told = self._open.setdefault(proof.updates, {})
        told[proof.rank] = proof
        self.parts[proof.rank] = proof.part
        if self._is_complete(told):
            self._told(self._open.pop(proof.updates), True, at)
        elif len(self._open) > limits.PROOF_KEPT:
            self._told(self._open.pop(min(self._open)), False, at)

    def _is_complete(self, told: dict[int, Proof]) -> bool:
        """Whether all ranks that live have told theirs. Dead ones may have done so before."""
        members, counts = self._members, self._members.counts
        if len(told) < members.world_size - counts[RankState.LEFT] - counts[RankState.DEAD]:
            return False
        return not counts[RankState.DEAD] or all(one.rank in told for one in members.ranks if one.live)

    def _told(self, proofs: dict[int, Proof], complete: bool, at: int, repaired: bool = False) -> None:
        """Queue these proofs for comparison, part by part."""
        parts: dict[int, dict[int, Proof]] = {}
        for rank, proof in sorted(proofs.items()):
            parts.setdefault(proof.part, {})[rank] = proof
        everybody = len(proofs) >= self._members.world_size - self._members.counts[RankState.LEFT]
        self._ready += [Told(parts[part], complete, everybody, at, repaired) for part in sorted(parts)]
        del self._ready[: -limits.PROOF_KEPT * len(parts)]

    def _begin(self, epoch: int, at: int) -> None:
        """Another epoch has begun, and no more proofs of the one before are taken. What came is compared, unless all
        ranks have started over since."""
        self._drop_old()
        for updates in sorted(self._open):
            self._told(self._open.pop(updates), False, at, repaired=True)
        self._sound.clear()
        self._epoch = epoch

    def _drop_old(self) -> None:
        """Drop what ranks have told before all of them started over."""
        if self._times != self._job.starts_over.times:
            self._times = self._job.starts_over.times
            self.restart()

    def restart(self) -> None:
        """Drop all proofs: the manager was restarted."""
        self._open.clear()
        self._ready.clear()
        self._sound.clear()

    # ---- judging ----------------------------------------------------------------------------------------------

    def find(self) -> ProofVerdict | None:
        """Return the next verdict about the filed proofs. Call `take` with it before the next call."""
        self._drop_old()
        while self._ready:
            told = self._ready[0]
            verdict = self._judge(told)
            if verdict is not None and verdict.finding is not ProofFinding.DIFFERS:
                return verdict
            del self._ready[0]  # a difference is the last verdict about these proofs
            if verdict is not None:
                return verdict
            if told.complete:
                self._found_nothing(told)
        return None

    def _found_nothing(self, told: Told) -> None:
        last, ranks = self.last, len(told.proofs)
        every = max(proof.every for proof in told.proofs.values())
        if last is not None and (last.updates, last.at) == (told.updates, told.at):  # of another part
            ranks, every = ranks + last.ranks, max(every, last.every)
        self.last = Last(told.updates, ranks, told.at, every)
        if told.everybody and all(_covers(proof) for proof in told.proofs.values()):
            self._sound.update((proof.rank, proof.incarnation) for proof in told.proofs.values() if proof.taken)

    def take(self, verdict: ProofVerdict) -> None:
        """Apply a verdict, new or from the journal."""
        if not verdict.total:  # it is about the list
            self._list_told = self._job.starts_over.times
            return
        layout = self._layout(verdict.layout, verdict.total)
        if verdict.finding is ProofFinding.BASE:
            layout.based, self._lists_alike, self._list_told = True, True, None
            layout.units[:] = bytes([Unit.ALIKE]) * layout.total
        for unit in verdict.units:
            if verdict.finding is ProofFinding.DIFFERS:
                layout.told[unit] = self._job.starts_over.times
            elif unit < layout.total:
                layout.units[unit] = Unit.EXCEPTED

    def _layout(self, number: int, total: int) -> Layout:
        layout = self._layouts.get(number)
        if layout is None or layout.total != total:
            if len(self._layouts) >= limits.PROOF_LAYOUTS:
                del self._layouts[next(iter(self._layouts))]
            layout = self._layouts[number] = Layout(total, bytearray(total))
        return layout

    def _judge(self, told: Told) -> ProofVerdict | None:
        """Compare these proofs, and return the first verdict about them. None: nothing (more) to report."""
        lists = {rank: (proof.layout, proof.total) for rank, proof in told.proofs.items()}
        takers = {
            rank for rank, proof in told.proofs.items() if proof.taken and self._sound.get(rank) != proof.incarnation
        }
        if len(set(lists.values())) > 1 and self._list_told != self._job.starts_over.times:
            harmless = len({proof.what_counts for proof in told.proofs.values()}) == 1
            if self._lists_alike or (takers and not harmless):
                return self._differs(told, (0, 0), {-1: dict(lists.items())}, takers)
            if told.everybody and self._list_told is None:
                return self._excepted(ProofFinding.EXCEPTED, told, (0, 0), (), harmless)
        usual = Counter(lists.values()).most_common(1)[0][0]
        alike = [proof for rank, proof in sorted(told.proofs.items()) if lists[rank] == usual]
        layout = self._layout(*usual)
        for proof in alike:
            if proof.names:
                layout.names.update(enumerate(proof.names.split("\n"), proof.first))
            layout.missing = proof.missing or layout.missing
            layout.harmless = proof.harmless
        everybody = told.everybody and len(alike) == len(told.proofs)
        first = everybody and not layout.based and all(_covers(proof) for proof in alike)
        apart = _apart(alike)
        known = {
            unit
            for unit, values in apart.items()
            if layout.units[unit] == Unit.ALIKE or _taken_apart(values, takers, unit < layout.harmless)
        }
        new = tuple(unit for unit in apart if layout.units[unit] == Unit.UNKNOWN and unit not in known)
        if first and not known:
            return self._excepted(ProofFinding.BASE, told, usual, new)
        if new:
            return self._excepted(ProofFinding.EXCEPTED, told, usual, new)
        differing = {
            unit: apart[unit] for unit in sorted(known) if layout.told.get(unit) != self._job.starts_over.times
        }
        if differing:
            return self._differs(told, usual, differing, takers)
        for proof in alike if everybody else ():
            for unit, _ in _words(proof):
                if layout.units[unit] == Unit.UNKNOWN:
                    layout.units[unit] = Unit.ALIKE
        return None

    def _excepted(
        self,
        finding: ProofFinding,
        told: Told,
        where: tuple[int, int],
        units: tuple[int, ...],
        harmless: bool = False,
    ) -> ProofVerdict:
        """The verdict that these units are not compared. Without a layout it is about the list; `harmless`: the lists
        of what may change a weight are the same."""
        names, own, parts = [LIST], [] if harmless else [LIST], []
        if layout := self._layouts.get(where[0]):
            names = [layout.name(unit) for unit in units]
            own = [layout.name(unit) for unit in units if unit >= layout.harmless]
        if names:
            parts.append(f"{_list(names)} {verb(len(names), 'is', 'are')} not the same on all ranks")
        if layout and layout.missing and not layout.based:
            parts.append(layout.missing)
        reason = cut(f"not compared between ranks: {'; '.join(parts)}") if parts else ""
        item = cut(own[0], _MOST_ITEM) if own else ""
        return ProofVerdict(finding, told.updates, *where, units, (), False, False, not own, item, reason)

    def _differs(
        self, told: Told, where: tuple[int, int], differing: dict[int, dict[int, object]], takers: set[int]
    ) -> ProofVerdict:
        """The verdict that these units differ. It names the wrong ranks, or all ranks if that is unknown."""
        updates = told.updates
        layout = self._layouts.get(where[0])
        units = tuple(sorted(unit for unit in differing if unit >= 0))
        names = [layout.name(unit) for unit in units] if layout is not None and units else [LIST]
        item, what = names[0], _list(names)
        wrong: set[int] = set()
        everybody: set[int] = set()
        named = True
        for unit, values in differing.items():
            few = _few(values) or set()
            was_alike = layout is None or unit < 0 or layout.units[unit] == Unit.ALIKE
            named &= bool(few) and (was_alike or few <= takers)
            wrong |= few
            everybody |= values.keys()
        if named:
            others = everybody - wrong
            reason = (
                f"after update {updates} {rank_words(wrong)} {verb(len(wrong), 'holds', 'hold')} other contents of "
                f"{what} than {rank_words(others)}, which agree"
            )
        else:
            why = "most do not agree, so nobody knows"
            if len(everybody) == 2:
                why = "two ranks cannot tell which is wrong"
            elif told.repaired:
                why = "a repair has come since, so what a rank had may be lost"
            elif own := everybody & takers:
                theirs = verb(len(own), "it", "they")
                why = f"{rank_words(own)} took the state of others in a repair, so what {theirs} had is lost"
            reason = f"after update {updates} {rank_words(everybody)} do not hold the same of {what}: {why}"
        ranks = tuple(sorted(wrong if named else everybody))
        taken = told.repaired or not takers.isdisjoint(ranks)
        harmless = bool(units) and all(unit < layout.harmless for unit in units) if layout is not None else False
        item = cut(item, _MOST_ITEM)
        why = cut(reason)
        return ProofVerdict(ProofFinding.DIFFERS, updates, *where, units, ranks, named, taken, harmless, item, why)


def _whole(proof: Proof) -> bool:
    count, rest = divmod(len(proof.digests), limits.DIGEST_WORD)
    return rest == 0 and 0 < proof.total >= proof.first + count and proof.updates >= 0


def _covers(proof: Proof) -> bool:
    return proof.first == 0 and len(proof.digests) == proof.total * limits.DIGEST_WORD


def _words(proof: Proof) -> Iterable[tuple[int, bytes]]:
    """Each unit with its digest. Units without a digest are left out."""
    size, data = limits.DIGEST_WORD, proof.digests
    for at in range(len(data) // size):
        word = data[at * size : (at + 1) * size]
        if any(word):
            yield proof.first + at, word


def _apart(proofs: list[Proof]) -> dict[int, dict[int, object]]:
    """Units for which ranks sent different digests, with the digest of each rank."""
    if len({(proof.first, proof.digests) for proof in proofs}) == 1:
        return {}
    told: dict[int, dict[int, object]] = {}
    for proof in proofs:
        for unit, word in _words(proof):
            told.setdefault(unit, {})[proof.rank] = word
    return {unit: values for unit, values in sorted(told.items()) if len(set(values.values())) > 1}


def _taken_apart(values: dict[int, object], takers: set[int], harmless: bool) -> bool:
    """Whether a repair has made this difference, or has lost what was a rank's own. If only ranks differ that took the
    unit from others, it was alike, although this was never seen."""
    if takers.isdisjoint(values):
        return False
    return not harmless or len({values[rank] for rank in values.keys() - takers}) <= 1


def _few(values: dict[int, object]) -> set[int] | None:
    """The ranks that differ from the majority of all ranks with a digest. None: it is unknown which rank is wrong."""
    usual, count = Counter(values.values()).most_common(1)[0]
    if len(values) < 3 or 2 * count <= len(values):
        return None
    return {rank for rank, value in values.items() if value != usual}


def _list(names: list[str]) -> str:
    shown = names[:_SHOWN]
    more = len(names) - len(shown)
    return join([*shown, f"{more} more"] if more else shown)
