"""`@taskd.resilient` on a train-step function: the same transaction for loops that should stay as they are.

The function is called once per step with its batch, in the same order on every rank. If a call's step was given up, the
call runs again with the same arguments. A call returns None if its update was taken from another rank. A newcomer's
calls for steps that are already done return None, too. Nobody can tell which call is the last one. So the ranks do not
wait for each other after it, as they do at the end of `session.steps`. Several functions may take turns. The
transaction is the same: it is `session.steps` seen from inside the loop.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Generator, Iterator
from typing import Any
from weakref import WeakKeyDictionary

from taskd.errors import UsageError
from taskd.state import rng
from taskd.state.batch import Handed
from taskd.worker.current import session
from taskd.worker.session import Session
from taskd.worker.step import Step

SPOILT = (
    "a function under @taskd.resilient is called again and has written into a tensor among its arguments: "
    "copy what is changed in place"
)


class _Calls:
    """Used where a session expects a loader. It also keeps the step that a newcomer was given ahead of its calls."""

    takes_steps_early = True

    def __init__(self) -> None:
        self.made = 0
        self.steps: Generator[Step, None, None] | None = None
        self.ahead: Step | None = None
        self.generators = b""  # the generators when that step was handed out
        self.given: Handed | None = None  # the arguments of the current call

    def __len__(self) -> int:
        return 2**62  # the number of calls is not known; the loop never ends

    def __iter__(self) -> Iterator[None]:
        return itertools.repeat(None)

    def next(self) -> Step:
        """Return the next step of the session, or the step that is still to be used."""
        if self.steps is None:
            self.steps = session().steps(self)
        if self.ahead is None:
            self.ahead = next(self.steps)
            self.generators = rng.capture()
        return self.ahead


_calls: WeakKeyDictionary[Session, _Calls] = WeakKeyDictionary()
"""The calls of each session: several functions take turns, and each call of any of them is the next step."""


def resilient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make each call of a train-step function one step of the session; register model and optimizer before."""

    @functools.wraps(function)
    def step(*args: Any, **kwargs: Any) -> Any:
        calls = _calls.setdefault(session(), _Calls())
        if session().ends or (calls.steps is None and session().updates):
            raise UsageError(
                "a function under @taskd.resilient was called after a loop over session.steps(): use one way"
            )
        number, calls.made = calls.made, calls.made + 1
        result = None
        handed = calls.given = Handed([args, kwargs])
        while session().updates <= number:
            one = calls.next()
            if one.number > number and not one.rehearsal:
                break  # a newcomer's loop still runs through steps that are done
            calls.ahead = None
            rng.restore(calls.generators)
            handed.put_back()
            if any(not tensor.requires_grad for tensor in handed.written()):
                raise UsageError(SPOILT)
            with one:
                result = function(*args, **kwargs)
        calls.given = None
        return result

    return step
