"""What must know of a step and is not ours: torch.autograd.backward, torch.save, `parameter.data`, every optimizer, and
loaders that the script opens itself.

They are replaced while a session's loop runs and put back when it has ended. It decides nothing.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader

from taskd.worker.loaders import Loaders


class Listener(Protocol):
    """Whom these calls concern (listener.py)."""

    def forward_ended(self) -> None: ...
    def saves(self) -> bool: ...
    def data_is_asked_for(self, parameter: torch.Tensor) -> None: ...
    def optimizer_steps(self, optimizer: torch.optim.Optimizer) -> None: ...


class Patches:
    """A context manager that may be entered again, also while it lasts."""

    listener: Listener

    def __init__(self, loaders: Loaders) -> None:
        """`listener` is to be set before this is entered."""
        self.loaders = loaders
        self._kept: list[tuple[Any, str, Any]] = []
        self._hook: Any = None
        self._depth = 0

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self._put_in()

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._take_out()

    def _put_in(self) -> None:
        listener = self.listener
        backward, save = torch.autograd.backward, torch.save

        def backward_of_step(*args: Any, **kwargs: Any) -> Any:
            listener.forward_ended()
            return backward(*args, **kwargs)

        def save_of_step(*args: Any, **kwargs: Any) -> Any:
            return save(*args, **kwargs) if listener.saves() else None

        loaders, iterate = self.loaders, DataLoader.__iter__

        def opened_by_script(loader: DataLoader[Any]) -> Any:
            return loaders.opened_by_script(loader, iterate)

        self._kept = [(torch.autograd, "backward", backward), (torch, "save", save), (DataLoader, "__iter__", iterate)]
        DataLoader.__iter__ = opened_by_script  # type: ignore[method-assign]
        torch.autograd.backward = backward_of_step  # type: ignore[assignment]
        torch.save = save_of_step
        data: Any = torch.Tensor.data

        def get(parameter: torch.nn.Parameter) -> torch.Tensor:
            listener.data_is_asked_for(parameter)
            found: torch.Tensor = data.__get__(parameter)
            return found

        def put(parameter: torch.nn.Parameter, value: torch.Tensor) -> None:
            listener.data_is_asked_for(parameter)
            data.__set__(parameter, value)

        torch.nn.Parameter.data = property(get, put)  # type: ignore[assignment]
        told = torch.compiler.disable(lambda optimizer, *_: listener.optimizer_steps(optimizer))  # see calls.py
        self._hook = register_optimizer_step_pre_hook(told)

    def _take_out(self) -> None:
        for owner, name, original in self._kept:
            setattr(owner, name, original)
        self._kept = []
        del torch.nn.Parameter.data
        self._hook.remove()
