"""Notes what each loader draws, from which generator and when, so a newcomer opens it exactly as its life before did.

    who                               draws                             when
    every DataLoader                  a base seed, from its generator   when its iterator is made: in each epoch, and
                                      or torch's                        with persistent_workers only once
    RandomSampler (shuffle=True)      from its generator, or a seed     at the first batch of each epoch; with
                                      from torch's                      replacement every 32 samples
    a sampler that draws in iter()    anything                          as each epoch is opened, and once more when an
                                                                        iterator with processes is made
    DistributedSampler, StepSampler   from one by seed and epoch        no other draw depends on it
    a dataset without processes       torch's, random's, numpy's, own   with each sample
    a dataset in a loader process     the process' own, seeded with     with each sample; with persistent_workers an
                                      base seed and process number      epoch goes on where the last one has ended

So this module notes each opening: the generators before it and, if the processes were made earlier, the generators of
that earlier moment. To open the same epoch once more, new processes are made with the same base seed, without a new
draw, and the sampler draws as it did. The processes are watched: a stand-in for the loader's collate function reports
the state of their generators after each batch. If the generators have advanced, an epoch is loaded from its first batch
on. Persistent workers then begin with the states that the earlier workers had at the epoch's start. Where those are not
known (a loop that was left in the middle), the job says so and starts over.

A script's own sampler, dataset or loader may count something. These numbers are noted with an opening, too (counts.py).
An epoch that is opened once more must yield the same batches. This is checked, not assumed: the last known batch is
loaded again and compared (feed.py). At an epoch's beginning there is no such batch, so a loader whose position is
unknown is refused.

The script itself may open a loader with persistent workers in a loop or in session.between, to evaluate for example.
Such a loader takes its base seed from a copy of the generator. A newcomer opens it at another time, and that must not
change any draw.

It does NOT see the draws of a loader that makes its iterator in its own way. The batches of such a loader are always
loaded from the epoch's first one on, and with persistent workers a death makes all ranks start over.
"""

from __future__ import annotations

import contextlib
import inspect
import struct
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data._utils import signal_handling

from taskd.errors import PeerError
from taskd.state import counts, rng, tree
from taskd.state.counts import Counts, Numbers, numbers_in
from taskd.state.coverage import STARTS_OVER

DRAWS = "loader processes that stay (persistent_workers) draw at random, and {why}: " + STARTS_OVER
LEFT = "a loop was left before its epoch's end"
EAGER = "the sampler draws in iter()"
STREAM = "load an IterableDataset"
SHARED = "the script loads from them by itself, too"
OF_SCRIPT = "no loop of steps() is over them"
OWN_WAY = "{kind}, with persistent_workers, makes its iterator in a way of its own: " + STARTS_OVER
HIDES = "the loader has an iterator in it ({where}), and how far that has come nobody can tell: " + STARTS_OVER
ROW_BYTES = 1 << 16
"""The space in which one loader process reports its generators."""
_ROW = struct.Struct("<qBBxxI")
"""The report of one process: the number of batches it has made, whether its generators have advanced, whether its
dataset has counted, and the length of the generators' state."""
_LOOKS = 4
"""Numbers are checked for changes after each of an epoch's first batches, up to this many."""


class Watch:
    """Replaces the functions that a loader calls in its processes; it is sent there with the loader's arguments."""

    def __init__(self, loader: Any, states: list[bytes]) -> None:
        """`states`: the generator states that the processes begin with, if not the seeded ones. Raises OSError or
        RuntimeError if no shared memory is available."""
        self._collate, self._begin = loader.collate_fn, loader.worker_init_fn
        self._states = states
        self._rows = torch.zeros(loader.num_workers, ROW_BYTES, dtype=torch.uint8).share_memory_()
        self._process = -1
        self._count = 0
        self._seen = b""
        self._numbers: Numbers = {}

    # ---- in a process of the loader

    def begins(self, process: int) -> None:
        """Called instead of worker_init_fn."""
        if self._begin is not None:
            self._begin(process)
        info = get_worker_info()
        rng.follow_only(rng.find(info.dataset if info is not None else None))
        if process < len(self._states) and self._states[process]:
            rng.restore(self._states[process])
        self._process, self._seen = process, rng.capture()
        self._numbers = self._now()
        self._say(bool(self._states), self._seen)

    def __call__(self, samples: Any) -> Any:
        """Called instead of collate_fn."""
        batch = self._collate(samples)
        if self._process >= 0:
            self._count += 1
            state = rng.capture()
            if state != self._seen:
                self._seen = state
                self._say(True, state)
            else:
                self._put(struct.pack("<q", self._count))
            if self._count <= _LOOKS and self._now() != self._numbers:
                self._rows[self._process, 9] = 1
        return batch

    def _now(self) -> Numbers:
        """Return the numbers with which the dataset may count."""
        info = get_worker_info()
        return numbers_in(info.dataset) if info is not None else {}

    def _say(self, moved: bool, state: bytes) -> None:
        size = len(state) if len(state) <= ROW_BYTES - _ROW.size else 0
        counted = int(self._rows[self._process, 9])
        self._put(_ROW.pack(self._count, moved, counted, size) + state[:size])

    def _put(self, data: bytes) -> None:
        self._rows[self._process, : len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)

    # ---- in the process that owns the loader

    def draws(self) -> bool:
        """Whether the generators of any process have advanced."""
        return bool(self._rows[:, 8].any())

    def counts(self) -> bool:
        """Whether the dataset of any process has counted."""
        return bool(self._rows[:, 9].any())

    def made(self) -> int:
        """Return how many batches all processes together have made."""
        return sum(_ROW.unpack_from(tree.bytes_of(row[: _ROW.size]))[0] for row in self._rows)

    def states(self) -> list[bytes]:
        """Return the generator state of each process; it is empty for a process that has not begun."""
        found = []
        for row in self._rows:
            size = _ROW.unpack_from(tree.bytes_of(row[: _ROW.size]))[3]
            found.append(tree.bytes_of(row[_ROW.size : _ROW.size + size]))
        return found


@dataclass(slots=True, frozen=True)
class Opening:
    """How an epoch of a loader was opened."""

    at: int
    """The number of the epoch's first step."""
    before: bytes
    """The generators before the opening."""
    earlier: bool = False
    """Whether the loader's processes were made before this opening."""
    states: list[bytes] = field(default_factory=list)
    """The generators of those processes; empty: as they were seeded."""
    sure: bool = True
    """Whether `states` is known to be right."""
    numbers: Numbers = field(default_factory=dict)
    """The loader's numbers before the opening."""


@dataclass(slots=True)
class Own:
    """The parts of one loader that change as it is used."""

    number: int
    """The number of the loader."""
    generators: list[Any] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    new: bool = False
    """The loader was opened, and no batch was taken yet."""
    lost: bool = False
    """At an epoch's beginning, nobody could tell whether the loader goes on where it was. On a newcomer: its life
    before could not tell."""


class Loaded(NamedTuple):
    """What is known about a batch that was loaded."""

    at: int
    """The number of its step."""
    digest: int
    before: bytes = b""
    """The generators before the loading, if the loading advanced them."""


class Known:
    """What is known about one loader."""

    def __init__(self, loader: Any, number: int, watches: bool) -> None:
        plain = isinstance(loader, DataLoader) and type(loader).__iter__ is DataLoader.__iter__
        several = isinstance(loader, DataLoader) and loader.num_workers > 0
        stays = several and loader.persistent_workers
        self.own = Own(number)
        self.processes: int = loader.num_workers if several else 0
        self.stays = stays and plain
        self.odd = type(loader).__name__ if stays and not plain else ""
        self.hidden = counts.hides(loader)
        self.made = b""
        """The generators before the persistent processes were made."""
        self.states: list[bytes] = []
        """The generators of the persistent processes when the last epoch ended, if those processes draw."""
        self.sure = True
        """Whether `states` is known to be right."""
        self.drew = several and not plain  # assume the worst about processes that cannot be watched
        self.of_script = False
        self._shared = False  # the script has loaded from it between two epochs
        self._stream = several and isinstance(loader.dataset, IterableDataset)
        self._watches = watches and several and plain
        self._watch: Watch | None = None
        self._expected = 0  # batches that its processes have made by the end of the epoch
        self._iterator: Callable[[], Any] = lambda: None
        self._eager: bool | None = None  # not known yet

    @property
    def draws(self) -> bool:
        """Whether the batches of its processes depend on the batches that they loaded before."""
        if not self.drew and self._watch is not None:
            self.drew = self._watch.draws() or (not self.stays and self._watch.counts())
        return self.drew

    def looks(self, loader: Any, position: int, per_epoch: int | None) -> bool:
        """Whether this batch is one of an epoch's first, or one at which a sampler may come to its end. `per_epoch`:
        None if nobody knows where that is."""
        ahead = self.processes * (loader.prefetch_factor or 0) if self.processes else 0
        return per_epoch is None or bool(position < _LOOKS or position >= per_epoch - 1 - ahead)

    def loaded(self, loader: Any) -> None:
        """Note that a batch was loaded from the loader, and that nothing else happened meanwhile."""
        self.own.counts.end(loader)
        counted = self._watch is not None and self.stays and self._watch.counts()
        self.own.lost = counted or bool(counts.hides(loader))

    def opening(self, loader: Any, at: int) -> Opening:
        """Return the opening of its next epoch, which begins now."""
        before, numbers = rng.capture(), numbers_in(loader)
        if self.stays and not self.made and loader._iterator is not None:
            self.made = before  # the script has used the loader: its processes are replaced, without a new draw
        self._shared |= self.sure and self._watch is not None and self.stays and self._watch.made() != self._expected
        return Opening(at, before, self.stays and bool(self.made), self.states, self.sure, numbers)

    def iterate(self, loader: Any, opening: Opening, batches: int, anew: bool) -> Iterator[Any]:
        """Return an iterator over `batches` batches. `anew`: existing processes, if any, do not belong to this
        opening."""
        if not self.processes or self.odd:
            return iter(loader)
        if not self.stays:
            return self._make(loader, opening, batches)
        if anew or loader._iterator is not self._iterator():
            loader._iterator = None
        if loader._iterator is not None:
            self._expected += batches
            found = iter(loader)
        elif opening.earlier:
            with _base_seed_of(loader, self.made):
                found = self._make(loader, opening, batches)
            if self._is_eager(loader):  # the sampler has drawn twice; with existing processes it draws once
                rng.restore(opening.before)
                found = iter(loader)
        else:
            self.made = opening.before
            found = self._make(loader, opening, batches)
        self._iterator = weakref.ref(found)
        self.sure = False
        return found

    def _make(self, loader: Any, opening: Opening, batches: int) -> Iterator[Any]:
        self._watch, self._expected = None, batches
        if not self._watches:
            return iter(loader)
        try:
            self._watch = Watch(loader, opening.states)
        except (OSError, RuntimeError):
            self.drew, self._watches = True, False
            return iter(loader)
        with _set(loader, collate_fn=self._watch, worker_init_fn=self._watch.begins):
            return iter(loader)

    def epoch_ended(self, more: int = 0) -> None:
        """Note that all batches of the epoch have arrived, so the loader's processes are idle. `more`: how many of them
        nobody had expected."""
        self._expected += more
        if not self.stays or self._watch is None:
            return
        made = self._watch.made()
        self.sure, self._expected = made == self._expected and not self._stream, made
        self.states = self._watch.states() if self.draws else []

    def make_for_script(self, loader: Any, make: Callable[[Any], Any]) -> Any:
        """Make an iterator for the script, which opens this loader with persistent workers by itself."""
        self.of_script = True
        opening = self.opening(loader, -1)
        self.made = opening.before
        with _base_seed_of(loader, self.made):
            try:
                self._watch = Watch(loader, []) if self._watches else None
            except (OSError, RuntimeError):
                self.drew = True
            if self._watch is None:
                return make(loader)
            with _set(loader, collate_fn=self._watch, worker_init_fn=self._watch.begins):
                return make(loader)

    def _is_eager(self, loader: Any) -> bool:
        if self._eager is None:
            self._eager = _draws_in_iter(order_of(loader))
        return self._eager

    def flaw(self, loader: Any, sure: bool) -> str:
        """Return why a newcomer could not go on with this loader, or an empty text. `sure`: the state of its processes
        is known."""
        if self.odd:
            return OWN_WAY.format(kind=self.odd)
        if self.hidden:
            return HIDES.format(where=self.hidden)
        if not self.stays or not self.draws:
            return ""
        if self.of_script:
            return DRAWS.format(why=OF_SCRIPT)
        if self._stream:
            return DRAWS.format(why=STREAM)
        if self._shared:
            return DRAWS.format(why=SHARED)
        if not sure:
            return DRAWS.format(why=LEFT)
        return DRAWS.format(why=EAGER) if self._is_eager(loader) else ""


class Loaders:
    """All loaders that the loops of a session run over, in the order of their first loops."""

    def __init__(self, watches: bool = False) -> None:
        """`watches`: a newcomer may have to open these loaders later."""
        self.watches = watches
        self._known: weakref.WeakKeyDictionary[Any, Known] = weakref.WeakKeyDictionary()
        self._of_script: weakref.WeakKeyDictionary[Any, Known] = weakref.WeakKeyDictionary()
        self._count = 0
        self._inherited: Opening | None = None
        self.before: Loaded | None = None
        """The last batch that the life before loaded; None once this process has loaded a batch."""
        self.last: Loaded | None = None
        """The last batch that this process loaded."""
        self._open: tuple[Known, Opening] | None = None
        self._ours = False
        self.asked = False
        """Whether a loop waits for a batch."""
        self.as_always = False
        """Whether the script's own openings draw as they do outside of loops: a newcomer catches up with its own draws.
        """

    def enter(self, loader: Any) -> Known:
        """Return what is known about this loader, over which a loop begins."""
        try:
            known = self._known.get(loader)
        except TypeError:
            return Known(loader, -1, self.watches)  # for example a list, which draws nothing
        if known is None:
            known = self._known[loader] = Known(loader, self._count, self.watches)
            self._count += 1
            weakref.finalize(loader, rng.forget, known.own.number, known.own.generators)
        known.own.generators[:] = _generators(loader)
        rng.follow(known.own.number, known.own.generators)
        return known

    def open(self, loader: Any, known: Known, opening: Opening, batches: int, anew: bool) -> Iterator[Any]:
        """Open a loader for a loop. The generators are already set as the opening says."""
        self._open, self._ours = (known, opening), True
        try:
            return known.iterate(loader, opening, batches, anew)
        finally:
            self._ours = False

    def opened_by_script(self, loader: Any, make: Callable[[Any], Any]) -> Any:
        """Called instead of DataLoader.__iter__ while a loop or work between loops lasts."""
        stays = loader.persistent_workers and loader.num_workers > 0 and getattr(loader, "_iterator", None) is None
        if self._ours or self.as_always or not stays or type(loader).__iter__ is not DataLoader.__iter__:
            return make(loader)
        known = self._of_script[loader] = Known(loader, -1, self.watches)
        return known.make_for_script(loader, make)

    @contextlib.contextmanager
    def asks(self) -> Iterator[None]:
        """Mark that a loop waits for a batch. The death of a loader process is raised here, and not at a random place
        such as the optimizer (patches.py)."""
        self.asked = True
        try:
            yield
        finally:
            self.asked = False

    def look(self) -> None:
        """Raise RuntimeError if a loader process has died meanwhile."""
        signal_handling._error_if_any_worker_fails()

    def closed(self) -> None:
        """Note that the loop is over."""
        self._open = None

    def pack(self) -> bytes:
        """Pack for a newcomer how the current epoch was opened, and what is known about all loaders."""
        opening = self._open_as_it_counts()
        known = [*self._known.items()]
        parts = {
            "opening": None if opening is None else [getattr(opening, name) for name in opening.__slots__],
            "known": {one.own.number: [one.made, one.states, one.sure, one.draws] for _, one in known if one.processes},
            "numbers": {
                one.own.number: one.own.counts.of(numbers_in(loader)) for loader, one in known if one.own.counts.moving
            },
            "lost": [one.own.number for _, one in known if one.own.lost],
            "last": None if self.last is None else [*self.last],
        }
        return b"".join(tree.pack(parts, "what loaders have drawn"))

    def adopt(self, data: bytes) -> None:
        """Go on from the data that the life before has packed. Raises PeerError."""
        if not data:
            return
        parts = tree.unpack(data)
        try:
            self._inherited = None if parts["opening"] is None else Opening(*parts["opening"])
            self.before = None if parts["last"] is None else Loaded(*parts["last"])
            for loader, one in [*self._known.items()]:
                number = one.own.number
                if number in parts["known"]:
                    one.made, one.states, one.sure, one.drew = parts["known"][number]
                if number in parts["numbers"]:
                    counts.put(loader, parts["numbers"][number])
                    one.own.counts.moving.update(parts["numbers"][number])
                one.own.lost = number in parts["lost"]
        except (KeyError, TypeError, ValueError) as error:
            raise PeerError(
                f"what the loaders of this rank's life before have drawn cannot be read: {error!r}"
            ) from error

    def _open_as_it_counts(self) -> Opening | None:
        """Return how the current epoch was opened, with only those numbers that change."""
        if self._open is None:
            return None
        known, opening = self._open
        return replace(opening, numbers=known.own.counts.of(opening.numbers))

    def inherited(self, at: int, known: Known) -> Opening | None:
        """Return how the life before opened the epoch that begins with this step, if it did. Asked only once."""
        found, self._inherited = self._inherited, None
        if found is None or found.at != at:
            return None
        known.own.counts.moving.update(found.numbers)
        return found

    def flaw(self) -> str:
        """Return why a newcomer could not go on with one of the loaders, or an empty text."""
        for loader, one in [*self._known.items(), *self._of_script.items()]:
            under_way = self._open is not None and self._open[0] is one
            sure = self._open[1].sure if under_way and self._open is not None else one.sure
            if sentence := one.flaw(loader, sure):
                return sentence
        return ""


def order_of(loader: Any) -> Any:
    """Return the object that chooses a loader's samples: its batch sampler, or its sampler."""
    batches = getattr(loader, "batch_sampler", None)
    return batches if batches is not None else getattr(loader, "sampler", None)


def _generators(loader: Any) -> list[Any]:
    return rng.find([getattr(loader, name, None) for name in ("generator", "batch_sampler", "sampler", "dataset")])


def _draws_in_iter(order: Iterable[Any]) -> bool:
    if inspect.isgeneratorfunction(type(order).__iter__):
        return False
    own, numbers = rng.capture(), numbers_in(order)
    iter(order)
    moved = rng.capture() != own
    rng.restore(own)
    counts.put(order, numbers)
    return moved


@contextlib.contextmanager
def _set(loader: Any, **values: Any) -> Iterator[None]:
    kept = {name: getattr(loader, name) for name in values}
    for name, value in values.items():
        setattr(loader, name, value)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(loader, name, value)


@contextlib.contextmanager
def _base_seed_of(loader: Any, moment: bytes) -> Iterator[None]:
    """An iterator that is made in this context gets the base seed of that moment, without a new draw."""
    own = rng.capture()
    rng.restore(moment)
    copied = torch.Generator()
    copied.set_state((loader.generator if loader.generator is not None else torch.default_generator).get_state())
    rng.restore(own)
    with _set(loader, generator=copied):
        yield
