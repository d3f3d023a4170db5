"""Replaces functions of torch that must know about the current step: torch.autograd.backward, torch.save,
`parameter.data`, every optimizer's step, DataLoader.__iter__, and torch's check for loader processes that have ended.

They are replaced while any session's loop runs, and put back when the last loop has ended. Calls go to the session
whose loop began last. A loop that was left in its middle ends when its generator is collected, perhaps while another
loop runs. So a session removes only itself, and never what another session needs. It decides nothing.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from taskd.state import shards
from taskd.worker.loaders import Loaders


class Listener(Protocol):
    """The object that these calls are told to (listener.py)."""

    def forward_ended(self) -> None: ...
    def saves(self) -> bool: ...
    def data_is_asked_for(self, parameter: torch.Tensor) -> None: ...
    def is_put_into(self, parameter: torch.Tensor, value: torch.Tensor) -> None: ...
    def backward_begins(self, given: Any) -> None: ...
    def optimizer_steps(self, optimizer: torch.optim.Optimizer) -> None: ...


class Patches:
    """A context manager that can be entered more than once, even while it is active."""

    listener: Listener

    def __init__(self, loaders: Loaders) -> None:
        """Set `listener` before this is entered."""
        self.loaders = loaders
        self._depth = 0

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            _torch.enters(self)

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            _torch.leaves(self)


class _Torch:
    """The replaced functions of this process."""

    def __init__(self) -> None:
        self._inside: list[Patches] = []
        """The active patches, the newest last."""
        self._kept: list[tuple[Any, str, Any]] = []
        self._hook: Any = None
        self._kinds: list[Any] = []

    def enters(self, one: Patches) -> None:
        """Note that the loop of `one` begins."""
        if not self._inside:
            self._put_in()
        self._inside.append(one)

    def leaves(self, one: Patches) -> None:
        """Note that the loop of `one` has ended."""
        self._inside.remove(one)
        if not self._inside:
            self._take_out()

    def _told(self) -> list[Patches]:
        """Return the patches to be told; none, if a script has kept a replaced function and calls it later."""
        return self._inside[-1:]

    def _put_in(self) -> None:
        backward, save, iterate = torch.autograd.backward, torch.save, DataLoader.__iter__
        look = signal_handling._error_if_any_worker_fails
        self._kept = [(torch.autograd, "backward", backward), (torch, "save", save), (DataLoader, "__iter__", iterate)]
        self._kept.append((signal_handling, "_error_if_any_worker_fails", look))
        data: Any = torch.Tensor.data

        def backward_of_step(*args: Any, **kwargs: Any) -> Any:
            for one in self._told():
                one.listener.backward_begins((args, kwargs))
                one.listener.forward_ended()
            return backward(*args, **kwargs)

        def save_of_step(*args: Any, **kwargs: Any) -> Any:
            return save(*args, **kwargs) if all(one.listener.saves() for one in self._told()) else None

        def opened_by_script(loader: DataLoader[Any]) -> Any:
            told = self._told()
            return told[0].loaders.opened_by_script(loader, iterate) if told else iterate(loader)

        def process_of_loader_ended() -> None:
            if all(one.loaders.asked for one in self._told()):
                look()

        def get(parameter: torch.nn.Parameter) -> torch.Tensor:
            for one in self._told():
                one.listener.data_is_asked_for(parameter)
            found: torch.Tensor = data.__get__(parameter)
            return found

        def put(parameter: torch.nn.Parameter, value: torch.Tensor) -> None:
            for one in self._told():
                one.listener.data_is_asked_for(parameter)
                one.listener.is_put_into(parameter, value)
            data.__set__(parameter, value)

        def steps(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            for one in self._told():
                one.listener.optimizer_steps(optimizer)

        DataLoader.__iter__ = opened_by_script  # type: ignore[method-assign]
        signal_handling._error_if_any_worker_fails = process_of_loader_ended
        torch.autograd.backward = backward_of_step  # type: ignore[assignment]
        torch.save = save_of_step
        # A parameter that is split over ranks is of a class of its own.
        self._kinds = [kind for kind in (torch.nn.Parameter, shards.kind()) if kind]
        for kind in self._kinds:
            kind.data = property(get, put)
        self._hook = register_optimizer_step_pre_hook(torch.compiler.disable(steps))  # see following.py

    def _take_out(self) -> None:
        for owner, name, original in self._kept:
            setattr(owner, name, original)
        self._kept = []
        for kind in self._kinds:
            del kind.data
        self._hook.remove()


_torch = _Torch()
