"""Compares the losses of a step that a repair lets ranks do again with those of the first attempt at it.

A repair puts back, or gives to a newcomer, whatever it knows that a step uses. Something may have been overlooked: a
function of a library that was replaced, the memory of a helper process, a file. If it has a part in the forward, the
loss of the second attempt is another one. So what each backward begins with is kept, in this process for its own next
attempt, and in the record, where a newcomer finds what its predecessor had.

This sees nothing if the first attempt did not come to a backward, nor what has a part only in what follows it. It does
not look at tensors on a device: reading one waits for the device, and an aborted collective leaves garbage in it.

Failure modes: a loss is another one though nothing was forgotten. An error may have left the first attempt because its
loss was wrong, so such an attempt is forgotten. A forward may not give the same bits twice, so a difference in the last
digits is only said. Backwards of other threads come in any order, so they are left out.
"""

from __future__ import annotations

import math
import os
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from taskd.errors import PeerError

Values = tuple[float, ...]
"""What one backward begins with: the number of its values, the share by which they may differ, and some of them."""
_BACKWARDS = 32
"""Most backwards of one step of which something is kept."""
_VALUES = 8
"""Most values of one backward that are kept."""
_SHARE = 1e-4
"""The share of a value up to which a difference may come from the order of additions, in numbers of 32 bits."""
_ROUNDINGS = 4
"""The same for numbers with fewer digits, in units of the last one."""
_NOTHING = 1e-6
"""Differences up to this size are small: a loss near zero may be rounding alone."""
_HEAD = struct.Struct("<qB")
"""The step, and how many backwards follow."""
_FACTS = 2  # before the values


@dataclass(slots=True, frozen=True)
class Difference:
    """A value that is not what it was."""

    was: float
    now: float
    is_small: bool
    """Whether only the last digits differ."""


@dataclass(slots=True)
class Losses:
    """What each backward of the current step began with."""

    number: int = -1
    """The step."""
    now: list[Values] = field(default_factory=list)
    """In this attempt."""
    first: list[Values] = field(default_factory=list)
    """In the attempt that this one repeats. Empty: it repeats none."""
    _expected: list[Values] = field(default_factory=list)
    """What the next attempt repeats."""
    _where: tuple[int, int] = 0, 0
    """The process and the thread of this attempt."""

    def forget(self) -> None:
        """Forget the step. What begins next repeats nothing, even if it has the same number."""
        self.number, self.now, self.first, self._expected = -1, [], [], []

    def step_begins(self, number: int) -> None:
        """Note that an attempt at this step begins."""
        self.first = self._expected if number == self.number else []
        self.number, self.now, self._expected = number, [], []
        self._where = os.getpid(), threading.get_ident()

    def is_done_again(self, number: int) -> None:
        """Note that a repair lets all ranks do this step again."""
        self._expected = max(self.now, self.first, key=len) if number == self.number else []

    def backward_begins(self, tensors: Any) -> Difference | None:
        """Note what a backward begins with: one tensor, or several. Return how this differs from the first attempt."""
        if len(self.now) == _BACKWARDS or self._where != (os.getpid(), threading.get_ident()):
            return None
        found = _values([tensors] if isinstance(tensors, torch.Tensor) else tensors)
        if found is None:
            return None
        self.now.append(found)
        at = len(self.now) - 1
        return _difference(self.first[at], found) if at < len(self.first) else None

    def pack(self) -> bytes:
        """Return it as bytes, for a newcomer."""
        known = max(self.now, self.first, key=len)
        parts = [struct.pack(f"<B{len(one)}d", len(one), *one) for one in known]
        return _HEAD.pack(self.number, len(known)) + b"".join(parts)

    def inherit(self, number: int, packed: Sequence[bytes]) -> None:
        """Take over what the predecessor had in this step, if it is among what it has packed. Raises PeerError."""
        for data in packed:
            step, found = _unpack(data)
            if step == number and len(found) > len(self._expected):
                self.number, self._expected = number, found


def _unpack(data: bytes) -> tuple[int, list[Values]]:
    found = list[Values]()
    try:
        number, count = _HEAD.unpack_from(data)
        at = _HEAD.size
        for _ in range(count):
            found.append(struct.unpack_from(f"<{data[at]}d", data, at + 1))
            at += 1 + 8 * len(found[-1])
    except (struct.error, IndexError) as error:
        raise PeerError(f"the losses of this rank's life before cannot be read: {error}") from error
    return number, found


def _values(tensors: Any) -> Values | None:
    """Return the first values of these tensors. None: they are nothing that can be read at once."""
    if not isinstance(tensors, Sequence) or not tensors or not all(map(_is_plain, tensors)):
        return None
    found = list[float]()
    for one in tensors:
        tensor = one.detach()
        tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        found += tensor.reshape(-1)[: _VALUES - len(found)].double().tolist()
    share = max(_SHARE, *(_ROUNDINGS * torch.finfo(one.dtype).eps for one in tensors))
    return (float(sum(one.numel() for one in tensors)), share, *found)


def _is_plain(value: Any) -> bool:
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and not value.is_nested
        and (value.is_floating_point() or value.is_complex())
        and not torch._C._functorch.is_functorch_wrapped_tensor(value)
    )


def _difference(was: Values, now: Values) -> Difference | None:
    """Return the first difference that is not small. If there is none, return the first small one."""
    if was[0] != now[0]:
        return Difference(was[0], now[0], is_small=False)
    share = max(was[1], now[1])
    size = max((abs(one) for one in was[_FACTS:] if math.isfinite(one)), default=0.0)
    pairs = [pair for pair in zip(was[_FACTS:], now[_FACTS:], strict=True) if not _same(*pair)]
    found = [Difference(one, other, abs(one - other) <= max(_NOTHING, share * size)) for one, other in pairs]
    return next((one for one in found if not one.is_small), next(iter(found), None))


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))
