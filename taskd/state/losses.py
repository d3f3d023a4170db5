"""Compares the losses of a step that is done again with those of the first attempt at it.

A repair puts back, or gives to a newcomer, whatever it knows that a step uses. Something may have been overlooked: a
function of a library that was replaced, the memory of a helper process, a file. If it has a part in the forward, the
loss of the second attempt is another one. So what each backward begins with is kept, in this process for its own next
attempt, and in the record, where a newcomer finds what its predecessor had.

This sees nothing if the first attempt did not come to a backward, nor what has a part only in what follows it. It does
not look at tensors on a device: reading one waits for the device, and an aborted collective leaves garbage in it.

Failure mode: a forward does not give the same bits twice, though nothing is wrong. So a difference in the last digits
is only said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from taskd.errors import PeerError
from taskd.state import tree

Values = list[float]
_BACKWARDS = 32
"""Most backwards of one step of which something is kept."""
_VALUES = 64
"""Most values of one backward that are kept."""
_LAST_DIGITS = 1e-4
"""The share of a value up to which a difference may come from the order of additions."""


@dataclass(slots=True, frozen=True)
class Difference:
    """A value that is not what it was."""

    was: float
    now: float

    @property
    def is_small(self) -> bool:
        """Whether only the last digits differ."""
        return abs(self.was - self.now) <= _LAST_DIGITS * max(abs(self.was), abs(self.now))


@dataclass(slots=True)
class Losses:
    """What each backward of the current step began with."""

    number: int = -1
    """The step."""
    now: list[Values] = field(default_factory=list)
    """In this attempt."""
    first: list[Values] = field(default_factory=list)
    """In an earlier attempt, of this process or of its predecessor."""

    def forget(self) -> None:
        """Forget the step. What begins next is another one, even if it has the same number."""
        self.number, self.now, self.first = -1, [], []

    def step_begins(self, number: int) -> None:
        """Note that an attempt at this step begins."""
        if number != self.number:
            self.first = []
        elif len(self.now) > len(self.first):
            self.first = self.now
        self.number, self.now = number, []

    def backward_begins(self, tensors: Any) -> Difference | None:
        """Note what a backward begins with: one tensor, or several. Return how this differs from the first attempt."""
        several = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        if len(self.now) == _BACKWARDS or not isinstance(several, Sequence) or not all(map(_is_plain, several)):
            return None
        at, found = len(self.now), [value for one in several for value in _values(one)]
        self.now.append(found)
        return _difference(self.first[at], found) if at < len(self.first) else None

    def pack(self) -> bytes:
        """Return it as bytes, for a newcomer."""
        return tree.flatten([self.number, self.now], "the losses")[0]

    def inherit(self, number: int, packed: Sequence[bytes]) -> None:
        """Take over what the predecessor had in this step, if it is among what it has packed. Raises PeerError."""
        for data in packed:
            try:
                step, losses = tree.unflatten(data, [])
                if step == number and len(losses) > len(self.now):
                    self.number, self.now = number, [[*map(float, one)] for one in losses]
            except (TypeError, ValueError) as error:
                raise PeerError(f"the losses of this rank's life before cannot be read: {error}") from error


def _is_plain(value: Any) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.device.type == "cpu" and not value.is_sparse


def _values(tensor: torch.Tensor) -> Values:
    found = tensor.detach()
    found = torch.view_as_real(found.resolve_conj()) if found.is_complex() else found
    return found.reshape(-1)[:_VALUES].double().tolist()


def _difference(was: Values, now: Values) -> Difference | None:
    """Return the largest difference, if there is one."""
    if len(was) != len(now):
        return Difference(len(was), len(now))
    found = [Difference(*pair) for pair in zip(was, now, strict=True) if not _same(*pair)]
    return max(found, key=_size, default=None)


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def _size(one: Difference) -> float:
    size = abs(one.was - one.now)
    return math.inf if math.isnan(size) else size
