"""Loads a state exactly: with its own dtypes, and with a check that the object has taken all of it.

`torch.optim.Optimizer.load_state_dict` casts a state to the dtype of the parameter: float32 moments of a bfloat16
parameter come out as bfloat16. Other objects may take only a part of the state that they gave. In both cases a newcomer
would differ from the others. So tensors get their own dtype again, and an object is asked for its state after loading.
It must have the same form, and the same numbers and texts beside its tensors.

It does NOT compare the contents of tensors, which costs as much as moving them.
"""

from __future__ import annotations

from typing import Any

import torch

from taskd.errors import PeerError

_PLAIN = (bool, int, float, str, bytes, type(None))


def load(name: str, item: Any, state: Any) -> None:
    """Call `item.load_state_dict(state)` and keep the dtypes of its tensors. Raises PeerError if the object has another
    state after that."""
    item.load_state_dict(state)
    if isinstance(item, torch.optim.Optimizer):
        _keep_dtypes(item, state)
    where = unlike(state, item.state_dict(), name)
    if where:
        raise PeerError(f"{where} is another one after it was loaded: {name} does not take up what it gives")


def _keep_dtypes(optimizer: torch.optim.Optimizer, state: Any) -> None:
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=False):
        own = optimizer.state.get(parameter)
        if own is not None and number in state["state"]:
            optimizer.state[parameter] = _with_dtypes(own, state["state"][number])


def _with_dtypes(found: Any, given: Any) -> Any:
    """Return what was loaded, with each tensor in the dtype in which it was given."""
    if isinstance(given, torch.Tensor) and isinstance(found, torch.Tensor):
        return found if found.dtype == given.dtype else given.to(found.device)
    if isinstance(given, dict) and isinstance(found, dict):
        for key in given.keys() & found.keys():
            found[key] = _with_dtypes(found[key], given[key])
    elif isinstance(given, list) and isinstance(found, list) and len(given) == len(found):
        found[:] = map(_with_dtypes, found, given)
    return found


def unlike(given: Any, found: Any, path: str) -> str:
    """Return the path of the first difference between two states. Empty: there is none."""
    if isinstance(given, torch.Tensor):
        same = isinstance(found, torch.Tensor) and (given.dtype, given.shape) == (found.dtype, found.shape)
        return "" if same else path
    if isinstance(given, dict):
        if not isinstance(found, dict) or given.keys() != found.keys():
            return path
        pairs = [(f"{path}[{key!r}]", value, found[key]) for key, value in given.items()]
    elif isinstance(given, (list, tuple)):
        if not isinstance(found, (list, tuple)) or len(given) != len(found):
            return path
        pairs = [(f"{path}[{at}]", one, other) for at, (one, other) in enumerate(zip(given, found, strict=True))]
    else:
        plain = isinstance(given, _PLAIN) and isinstance(found, _PLAIN)
        return path if plain and repr(given) != repr(found) else ""  # NaN equals itself in this way
    return next(filter(None, (unlike(one, other, where) for where, one, other in pairs)), "")
