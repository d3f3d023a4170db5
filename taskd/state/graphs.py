"""Sees whether gradients flow through what one step leaves to the next: `output, hidden = model(x, hidden)`.

Such a tensor belongs to the graph of gradients of the step that made it. Most scripts cut the graph in the next step
(`hidden = hidden.detach()`). Then its contents are all that matters, and it can be put back or given to a newcomer.
If a later backward goes on through it, they are not: what is given has no graph. So a hook waits for its gradient. The
graph counts as cut once a backward has run without one.

Failure modes: gradients flow only now and then (from the first time on it is no longer kept); a step runs no backward
(then nothing is known). It does NOT see a backward that asks only for the gradients of some inputs.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch.utils.hooks import unserializable_hook


def has_graph(value: Any) -> bool:
    """Whether it is a tensor in a graph of gradients."""
    return isinstance(value, torch.Tensor) and value.grad_fn is not None


class Graphs:
    """What is known of the tensors that one script hands on."""

    def __init__(self) -> None:
        self._backwards = 0
        """In so many steps a backward has run to its end."""
        self._runs = False
        """Whether one has begun in this step."""
        self._followed: dict[str, int] = {}
        """By name: in how many steps a backward had run when the tensor of this name was last followed."""
        self._hooked: dict[int, weakref.ref[torch.Tensor]] = {}
        """The tensors that have a hook, by id."""
        self._flow: set[str] = set()
        """Names of tensors through which gradients have flowed."""

    def loop_begins(self) -> None:
        """Another loop begins, in which names may stand for other things."""
        self._followed.clear()

    def step_begins(self) -> None:
        """A step begins, perhaps once more."""
        self._runs = False

    def backward_begins(self) -> None:
        """A backward of the script begins."""
        self._runs = True

    def step_ended(self) -> None:
        """A step has run to its end."""
        self._backwards += self._runs

    def is_cut(self, name: str) -> bool:
        """Whether a backward has run since a tensor of this name was followed, and no gradient has come to any."""
        return name not in self._flow and self._followed.get(name, self._backwards) < self._backwards

    def follow(self, tensors: Mapping[str, Iterable[torch.Tensor]]) -> None:
        """Wait for the gradients of these tensors."""
        for name, several in tensors.items():
            self._followed[name] = self._backwards
            for one in several:
                if id(one) not in self._hooked or self._hooked[id(one)]() is not one:
                    at = id(one)
                    self._hooked[at] = weakref.ref(one, partial(self._gone, at))
                    one.register_hook(unserializable_hook(partial(self._flows, name)))

    def _gone(self, at: int, _: Any) -> None:
        self._hooked.pop(at, None)

    def _flows(self, name: str, _: torch.Tensor) -> None:
        self._flow.add(name)
