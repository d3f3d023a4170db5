"""Batches by number: opens a loader at any step of an epoch, and gives the same batch again when a step is done again.

With a StepSampler, a loader opens at the wanted step without loading the earlier batches. With any other sampler, or if
the loader's processes draw at random, the earlier batches are loaded and thrown away, with one log message about it.
The random generators end up as on a rank that never failed. A newcomer opens its loader as its life before opened it,
with the generators of that moment (loaders.py), and then goes on with its own generators. If the loading of a batch has
raised an error and the batch is asked for again, the loader is opened anew in the same way.

When an epoch is opened once more, this module checks that it yields the same batches: the last known batch is loaded
again and compared. If it differs, nobody can tell what this rank has to train on, and AnotherBatch is raised.

The sampler's epoch belongs to the script. A loop over several epochs counts up from it and puts it back (`Order`). No
other loop changes it.
"""

from __future__ import annotations

import contextlib
import logging
import operator
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset

from taskd import log
from taskd.errors import UsageError
from taskd.state import counts, rng
from taskd.state.batch import Handed, digest
from taskd.state.counts import numbers_in
from taskd.state.numbering import Numbering
from taskd.worker.loaders import Loaded, Loaders, Opening
from taskd.worker.sampler import StepSampler

SPOILT = "the step writes into a tensor of its batch, and the loader has no other copy: copy what is changed in place"
ANOTHER = (
    "a loader that was opened once more has given another batch for step {step}: what it loads depends on something "
    "that nobody has noted"
)
LOST = (
    "an epoch begins, and nobody can tell where the loader is: it holds an iterator, or counts in processes that stay"
)
NO_LENGTH = "a {kind} has no length, and steps(epochs=...) needs one: write one loop of steps(loader) for each epoch"
ITERATOR = (
    "a {kind} is an iterator: it cannot be opened again for a newcomer; give steps() the loader or list that makes it"
)
SHORTER = "a loader that was opened once more has no batch for step {step}: it ends after {count} batches"
_END = object()
_logger = log.get(__name__)


class AnotherBatch(Exception):
    """Raised when it is not known which batch this rank has to train on."""


class LoaderEnded(Exception):
    """Raised when a loader without a length has no batch left."""


class Order:
    """The sampler's epoch in one loop: as the script has set it, plus one for each further epoch of the loop.

    When the loop is over, the script's own number is put back. So no loop depends on what an earlier loop left, and a
    rank that never ran the earlier loop finds the same number. If a sampler has no readable epoch, a loop of several
    epochs counts the epochs from 0, and a loop of a single epoch leaves the sampler alone.
    """

    def __init__(self, loader: Any, epochs: int) -> None:
        self._sampler = _with_epochs(loader)
        self._several = epochs > 1
        self._first = self._put = self._scripts = _epoch_of(self._sampler)
        if self._several and self._sampler is not None and self._first is None:
            kind = type(self._sampler).__name__
            text = "%s has set_epoch() and no number `epoch` to read: steps(epochs=%d) counts its epochs from 0"
            log.once(_logger, logging.WARNING, f"epoch {kind}", text, kind, epochs)

    def opens(self, epoch: int) -> None:
        """Set the sampler to this epoch, before it is loaded. Raises UsageError if the script has set another one."""
        if self._first is None:
            if self._several and self._sampler is not None:
                self._sampler.set_epoch(epoch)
            return
        wanted, found = self._first + epoch, _epoch_of(self._sampler)
        if found == wanted:
            return
        if self._several and found != self._put:
            raise UsageError(
                f"the script has set its sampler to epoch {found} in a loop of steps(epochs=...), which counts epochs "
                "itself: write one loop of steps() for each epoch, or do not call set_epoch() in the loop"
            )
        self._scripts, self._put = self._first if self._several else found, wanted
        self._sampler.set_epoch(wanted)

    def opened(self) -> None:
        """Note that the first batch is loaded, so the sampler has already read its epoch."""
        if not self._several:
            self.over()

    def over(self) -> None:
        """Put the script's epoch back, unless the script has set another one meanwhile."""
        if self._put != self._scripts and _epoch_of(self._sampler) == self._put:
            self._sampler.set_epoch(self._scripts)
        self._put = self._scripts


def _with_epochs(loader: Any) -> Any:
    """Return the sampler with set_epoch(): the batch sampler, the sampler in it, or the loader's sampler."""
    batches = getattr(loader, "batch_sampler", None)
    for owner in (batches, getattr(batches, "sampler", None), getattr(loader, "sampler", None)):
        if hasattr(owner, "set_epoch"):
            return owner
    return None


def _epoch_of(sampler: Any) -> int | None:
    try:
        return operator.index(getattr(sampler, "epoch", None))  # type: ignore[arg-type]
    except TypeError:
        return None


class Extent:
    """How many batches a loop has, and which of them belong to which epoch.

    A loader may have no length (a DataLoader over an IterableDataset). Its loop ends where the loader ends, which
    nobody knows before. Such a loop has one epoch.
    """

    def __init__(self, loader: Any, epochs: int) -> None:
        """Raises UsageError."""
        if epochs < 1:
            raise UsageError(f"epochs must be 1 or more, not {epochs}")
        try:
            self.per_epoch: int | None = len(loader)
        except TypeError:
            self.per_epoch = None
            kind = type(loader).__name__
            if hasattr(loader, "__next__"):
                raise UsageError(ITERATOR.format(kind=kind)) from None
            if epochs > 1:
                raise UsageError(NO_LENGTH.format(kind=kind)) from None
        self.epochs = epochs

    @property
    def length(self) -> int | None:
        """The number of all batches. None: the loader has not ended yet, and has no length."""
        return None if self.per_epoch is None else self.per_epoch * self.epochs

    def over(self, done: int) -> int | None:
        """Return the number of all batches if the loop is over after `done` ones, or else None."""
        return self.length if self.length is not None and done >= self.length else None

    def epoch(self, number: int) -> int:
        """Return the epoch of this batch."""
        return number // self.per_epoch if self.per_epoch else 0

    def position(self, number: int) -> int:
        """Return the place of this batch in its epoch."""
        return number % self.per_epoch if self.per_epoch else number

    def left(self, position: int) -> int:
        """Return how many batches an epoch has from this place on, as far as that is known."""
        return 0 if self.per_epoch is None else self.per_epoch - position


class Feed:
    """The batches of one loader over one or more epochs."""

    def __init__(
        self, loader: Iterable[Any], epochs: int, loaders: Loaders | None = None, numbering: Numbering | None = None
    ) -> None:
        """`loaders`: what is known about all loaders of the session; `numbering`: the numbers that the steps get."""
        self.loader, self.extent = loader, Extent(loader, epochs)
        self.numbering = numbering if numbering is not None else Numbering()
        self.before = b""  # generators before the last batch was loaded (for an epoch's first batch: before opening)
        self._iterator: Iterator[Any] | None = None
        self._next = -1
        self._batch: Any = None
        self._number = -1
        self._loading = -1
        """The batch whose loading has begun but not ended."""
        self._handed = Handed(None)
        self._order = Order(loader, epochs)
        self._loaders = loaders if loaders is not None else Loaders()
        self._known = self._loaders.enter(loader)
        self._opening: Opening | None = None

    @property
    def hides(self) -> bool:
        """Whether the loader cannot be opened once more, because it keeps an iterator."""
        return bool(self._known.hidden)

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors that are given to the current step."""
        given = getattr(self.loader, "given", None) if self.early else None
        return [*self._handed.tensors(), *(given.tensors() if isinstance(given, Handed) else ())]

    @property
    def early(self) -> bool:
        """Whether a newcomer may get a step long before its script uses that step."""
        return getattr(self.loader, "takes_steps_early", False) is True

    def batch(self, number: int) -> Any:
        """Return batch `number`, counted over all epochs. Raises LoaderEnded if there is none, which nobody knew."""
        if number == self._number:
            if not self._handed.put_back():
                self._again(number)  # the step wrote, or may have written, into its batch
            return self._batch
        with self._loaders.asks():
            self._ask(number)
        return self._batch

    def _ask(self, number: int) -> None:
        again = number == self._loading
        self._loading = number
        if again:
            rng.restore(self.before)
        else:
            self.before = rng.capture()
            self._loaders.look()
        loaders, position = self._loaders, self.extent.position(number)
        first = position == 0
        known = loaders.before or (loaders.last if again else None)
        if known is not None and first and known.at < self.numbering.start + number and self._known.own.lost:
            raise AnotherBatch(LOST)
        if again or number != self._next or first:
            at = self.numbering.start + number - position
            before = self._opening if again or self._next >= 0 else None
            opening = before if before is not None and before.at == at else loaders.inherited(at, self._known)
            if known is not None and known.at == self.numbering.start + number - 1 and not first:
                self._show(number - 1, opening, known)
            else:
                self._open(number, opening)
        self._load(number)
        if loaders.watches:
            loaded = Loaded(
                self.numbering.start + number, digest(self._batch), self.before if self._has_moved() else b""
            )
            if known is not None and known.at == loaded.at:
                self._compare(known)
            loaders.last, loaders.before = loaded, None
        self._loading = -1

    def _has_moved(self) -> bool:
        """Whether loading has advanced a generator of this process."""
        return not self._known.processes and rng.capture() != self.before

    def _again(self, number: int) -> None:
        """Load a batch once more, with the same random draws as the first time."""
        own = rng.capture()
        rng.restore(self.before)
        self._open(number, self._opening)
        self._load(number)
        if (last := self._loaders.last) is not None and last.at == self.numbering.start + number:
            self._compare(last)
        rng.restore(own)

    def _show(self, number: int, opening: Opening | None, known: Loaded) -> None:
        """Open the loader at a batch that was loaded before, and check that the batch is the same."""
        own = rng.capture()
        self._open(number, opening)
        if known.before and self.extent.position(number):
            rng.restore(known.before)
        self._load(number)
        self._compare(known)
        rng.restore(own)

    def _compare(self, known: Loaded) -> None:
        if digest(self._batch) != known.digest:
            raise AnotherBatch(ANOTHER.format(step=known.at))

    def _load(self, number: int) -> None:
        assert self._iterator is not None
        extent, own = self.extent, self._known.own
        at = extent.position(number)
        looks = self._loaders.watches and (own.new or self._known.looks(self.loader, at, extent.per_epoch))
        if looks and not own.new:
            own.counts.begin(self.loader)
        try:
            self._batch = next(self._iterator)
        except StopIteration:
            if extent.per_epoch is not None:
                raise UsageError(f"the loader has {extent.per_epoch} batches by its length, but ended before") from None
            extent.per_epoch, self._loading = number, -1
            self._known.epoch_ended(number)
            if looks:
                self._known.loaded(self.loader)
            rng.restore(self.before)  # no step's record has what was drawn since then
            raise LoaderEnded from None
        self._order.opened()
        self._number, self._next = number, number + 1
        self._handed = Handed(self._batch)
        if at + 1 == extent.per_epoch:
            self._exhaust()
            self._known.epoch_ended()
        if looks:
            self._known.loaded(self.loader)
        own.new = False

    def _exhaust(self) -> None:
        """Ask for one batch more at an epoch's end, as a plain Python loop does: a sampler may then draw or count once
        more. A loader with processes asks its sampler in advance anyway."""
        own = rng.capture()
        loader: Any = self.loader
        if self._known.processes or isinstance(loader, (list, tuple)):
            return
        assert self._iterator is not None
        with contextlib.suppress(StopIteration):
            next(self._iterator)
            rng.restore(own)  # there was another batch, which nobody wanted

    def spoilt(self) -> str:
        """Return why the last batch cannot be given again unchanged, or an empty text."""
        loader: Any = self.loader
        written = {id(tensor) for tensor in self._handed.written()}
        if not written or not isinstance(loader, (list, tuple)):
            return ""  # a loader makes each batch anew
        again = Handed(loader[self.extent.position(self._number)]).tensors()
        return SPOILT if any(id(tensor) in written for tensor in again) else ""

    def sample(self) -> Any:
        """Load some batch of the right form for a rehearsal, in this process and without changing the loader."""
        numbers = numbers_in(self.loader)
        try:
            return self._sample()
        finally:
            counts.put(self.loader, numbers)

    def _sample(self) -> Any:
        loader: Any = self.loader
        batches, collate = getattr(loader, "batch_sampler", None), getattr(loader, "collate_fn", None)
        data: Any = getattr(loader, "dataset", None)
        numbered = hasattr(data, "__getitem__") and not isinstance(data, IterableDataset)  # its __getitem__ raises
        if batches is not None and collate is not None and numbered:
            return collate([data[index] for index in next(iter(batches))])
        stays = getattr(loader, "_iterator", None) is not None
        found = next(iter(loader))
        if not stays and getattr(loader, "_iterator", None) is not None:
            loader._iterator = None  # the loop makes its own iterator, with the right seeds
        return found

    def close(self) -> None:
        """Release the loader's worker processes."""
        self._iterator = None
        self._order.over()
        self._loaders.closed()

    def _open(self, number: int, known: Opening | None) -> None:
        """Open the loader at batch `number`. `known`: how this rank, or its life before, opened this epoch earlier."""
        position = self.extent.position(number)
        own = rng.capture()
        self._iterator = None
        opening = known
        if opening is None:
            opening = self._known.opening(self.loader, self.numbering.start + number - position)
        else:
            counts.put(self.loader, self._known.own.counts.of(opening.numbers))
        if self._loaders.watches:
            self._known.own.counts.begin(self.loader)
        self._known.own.new = True
        rng.restore(opening.before)
        self._opening = opening
        self._order.opens(self.extent.epoch(number))
        first = self._first(position)
        left = self.extent.left(first)
        self._iterator = self._loaders.open(self.loader, self._known, opening, left, known is not None)
        for at in range(first, position):
            if next(self._iterator, _END) is _END:
                raise AnotherBatch(SHORTER.format(step=self.numbering.start + number, count=at))
        if position:
            rng.restore(own)

    def _first(self, position: int) -> int:
        """Return where to open an epoch so that this batch is as before. From there on, all batches are loaded."""
        sampler = getattr(self.loader, "batch_sampler", None)
        steps = sampler if isinstance(sampler, StepSampler) else None
        first = 0
        if steps is not None and not (self._known.draws or self._known.own.counts.moving):
            first = position - position % max(1, self._known.processes)  # each process gets the batches it had before
        if steps is not None:
            steps.position = first
        if first + max(1, self._known.processes) <= position:
            log.once(
                _logger,
                logging.WARNING,
                "feed-skip",
                "%s: %d batches are loaded and skipped",
                "the loader has no taskd.StepSampler" if steps is None else "the loader's processes draw at random",
                position,
            )
        return first
