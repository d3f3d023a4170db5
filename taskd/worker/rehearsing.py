"""A newcomer's rehearsal at the update of its step, which it does not make: it ends there, or goes on without it.

It goes on if the script needs what the rest of the body sets (state/behind.py). The optimizer then steps without
gradients, so torch's own optimizers change no parameter. A closure is run once, for its forward and backward. The
rehearsal ends early where the rest raises an error, or is about to write something that writes.py sees. When the script
asks for the next step, what the rest has changed in the script is put back (state/rest.py).

Failure modes: an optimizer that cannot step without gradients (its error ends the rehearsal); an optimizer inside of
another one (it finds no gradients, and has none to put back); a loop that ends when training has got somewhere (it ends
after MOST updates). Invariant: after the step, the gradients are as before.
It does NOT undo what the rest does to registered objects, since the newcomer's state comes later. It does not undo what
goes to files that were opened before, pipes or connections: `step.rehearsal` tells a script that it is rehearsed.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import torch

from taskd.errors import StepAbandoned
from taskd.state.behind import Body
from taskd.state.rest import Loops, Rest

Given = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of a call."""
ENDS = "the rehearsal of a step ends at its update"
MOST = 100
"""So many updates are left out in one rehearsal."""


class Where(Enum):
    """How far the rehearsal of the current step is."""

    NOWHERE = auto()  # the current step is no rehearsal
    BEFORE = auto()
    BEHIND = auto()  # behind an update that it has left out


class Rehearsing:
    """The rehearsal of the current step, if it is one."""

    def __init__(self) -> None:
        self.where = Where.NOWHERE
        self.passes_loop = False
        """Whether the newcomer goes on behind the loop of this step, since the others have ended it."""
        self.loops: Loops = []
        """The functions that ask for the step, with what their loops may set."""
        self.ended_by = ""
        """What ended the last rehearsal behind its update before the body was through."""
        self._body: Body | None = None
        self._rests: list[Rest] = []
        """One for each `with step:` of this turn of the loop that went on."""
        self._left_out = 0
        self._stepping: list[str] = []
        """The optimizers that step without an effect, the innermost last."""
        self._aside: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        """The gradients that an optimizer does not get, by its name."""

    def begin(self, rehearsal: bool) -> None:
        """Begin a step."""
        self.where = Where.BEFORE if rehearsal else Where.NOWHERE
        self._body = Body.entered() if rehearsal else None
        self._left_out = 0

    @property
    def under_way(self) -> bool:
        """Whether the current step is a rehearsal."""
        return self.where is not Where.NOWHERE

    @property
    def is_behind(self) -> bool:
        """Whether it goes on behind an update that it has left out."""
        return self.where is Where.BEHIND

    def go_on(self) -> None:
        """Go on behind the update. Raises StepAbandoned if the rehearsal ends here."""
        if self.is_behind:
            return
        rest = None if self._body is None else self._body.rest(self.passes_loop, self.loops)
        if rest is None:
            raise StepAbandoned(ENDS)
        self._rests.append(rest)
        self.where = Where.BEHIND

    def leave_out(self, name: str, optimizer: torch.optim.Optimizer, given: Given) -> Given:
        """Leave out the step of an optimizer that begins now. Return the arguments with which it steps without an
        effect. Raises StepAbandoned if the rehearsal ends here."""
        given = _without_closures(given)
        self.go_on()
        self._left_out += 1
        if self._left_out > MOST:
            raise StepAbandoned(f"{ENDS}: there were {MOST}")
        own = [one for group in optimizer.param_groups for one in group["params"]]
        taken = [(one, one.grad) for one in own if one.grad is not None]
        self._stepping.append(name)
        self._aside.setdefault(name, []).extend(taken)
        for one, _ in taken:
            one.grad = None
        return given

    def optimizer_ended(self, name: str) -> None:
        """Put back the gradients of an optimizer whose step was left out."""
        if name in self._stepping:
            self._stepping.remove(name)
        if name not in self._stepping:
            for one, gradient in self._aside.pop(name, ()):
                one.grad = gradient

    def leave(self, ended_by: str) -> None:
        """Leave the body of the step. `ended_by`: the error that has ended it behind its update, or nothing."""
        self._stepping.clear()
        for name in [*self._aside]:
            self.optimizer_ended(name)
        self.where, self._body, self.ended_by = Where.NOWHERE, None, ended_by

    def over(self) -> list[str]:
        """The script asks for the next step: put back what the rest of the body has changed. Return the names of what
        nobody can put back."""
        rests, self._rests = self._rests, []
        return sorted({name for rest in reversed(rests) for name in rest.put_back()})


def _without_closures(given: Given) -> Given:
    """Run the closures among these arguments. In their place, return functions that return what they have returned."""
    args, more = given
    return tuple(map(_run, args)), {key: _run(value) for key, value in more.items()}


def _run(value: Any) -> Any:
    if not callable(value):
        return value
    with torch.enable_grad():
        result = value()  # it contains the forward and backward, which are to be rehearsed
    return _returning(result)


def _returning(result: Any) -> Callable[..., Any]:
    return lambda *_, **__: result
