"""What a loop hands on is judged by its contents: what changed once counts as moved, and an equal new object does not.

The scripts and the fake session are those of test_handed_on.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from taskd.state.held import Held
from tests.train.test_handed_on import EPOCHS, LOOP, built, run

USED = "(model(x) - F.linear(x, target['weight'])).mean().backward()\n"
COPY = "target = {k: v.clone() for k, v in model.state_dict().items()}"
TRAINED = "with torch.no_grad():\n    model.weight.add_(1)\n"
MOVED_ONCE = {
    "anew": (COPY, f"{TRAINED}{USED}if step.number == 4:\n    {COPY}"),
    "in the first step": (COPY, f"{TRAINED}{USED}if step.number == 0:\n    {COPY}"),
    "in the last step": (COPY, f"{TRAINED}{USED}if step.number == 7:\n    {COPY}"),
    "in the second loop": (COPY, f"{TRAINED}{USED}if step.number == 11:\n    {COPY}"),
    "at the end of the second loop": (COPY, f"{TRAINED}{USED}if step.number == 15:\n    {COPY}"),
    "in place": (COPY, f"{TRAINED}{USED}if step.number == 4:\n    target['weight'].copy_(model.weight)"),
    "through data": (COPY, f"{TRAINED}{USED}if step.number == 4:\n    target['weight'].data.mul_(0.5)"),
}


@pytest.mark.parametrize("how", MOVED_ONCE)
def test_what_moves_once_is_named(how: str) -> None:
    said = run(built(EPOCHS, *MOVED_ONCE[how])).said
    assert said and "hands target" in said[0], said


def test_what_moves_behind_the_last_look_of_a_loop_is_said_at_least() -> None:
    body = f"{TRAINED}{USED}if step.number == 5:\n    {COPY}\n    break"
    found = run(built(EPOCHS, COPY, body))
    assert "target" in found.perhaps or found.said, (found.perhaps, found.said)


MASK = """
if mask is None or mask.shape != x.shape:
    mask = torch.ones(x.shape).tril()
model(x * mask).mean().backward()
"""
SHORT = "x = x[:1] if step.number % 4 == 3 else x\n"
MADE_ANEW = {
    "for a short batch": ("mask = None", SHORT + MASK),
    "for a short batch, and there before": ("mask = torch.ones(2, 4).tril()", SHORT + MASK),
    "for each batch of another length": ("mask = None", f"x = x.expand(step.number + 2, 2, 4)\n{MASK}"),
    "in each epoch": ("", "if step.number % 8 == 0:\n    mask = torch.ones(4)\nmodel(x * mask).mean().backward()"),
    "for each length that comes": (
        "masks = {}",
        "at = step.number\nif at not in masks:\n    masks[at] = torch.ones(4)\nmodel(x * masks[at]).mean().backward()",
    ),
}


@pytest.mark.parametrize("how", MADE_ANEW)
def test_what_is_made_anew_alike_has_not_moved(how: str) -> None:
    assert run(built(EPOCHS, *MADE_ANEW[how])).said == []


def test_what_is_made_from_the_first_batch_is_said_after_a_repair() -> None:
    body = "if centre is None:\n    centre = x.mean(0)\nmodel(x - centre).sum().backward()"
    found = run(built(LOOP, "centre = None", body))
    assert found.said == [] and "centre" in found.perhaps, (found.said, found.perhaps)


@pytest.mark.parametrize(
    "body",
    [
        "model(x * float(seen.mean())).sum().backward()\nseen[:] = 0.5 * seen + x.mean(0).numpy()",
        "model(x * float(seen.mean())).sum().backward()\nseen = seen * 0.5 + x.mean(0).numpy()",
    ],
)
def test_arrays_of_numpy_are_handed_on_too(body: str) -> None:
    said = run(built(LOOP, "import numpy\nseen = numpy.ones(4)", body)).said
    assert said and "hands seen" in said[0], said


NUMBERS = {
    "a list that decides": (
        "losses = [9.0]",
        "loss = model(x).mean()\nif loss.item() < min(losses):\n    loss.backward()\nlosses.append(loss.item())",
        "losses",
    ),
    "a dict by any key": (
        "seen = {0: 0, 1: 0}",
        "(model(x) * seen[step.number % 2]).mean().backward()\nseen[step.number % 2] += 1",
        "seen[step.number % 2]",
    ),
    "a tuple that is made anew": (
        "state = (0, 1.0)",
        "(model(x) * state[1]).mean().backward()\nstate = (state[0] + 1, state[1] / 2)",
        "state",
    ),
    "a tuple of names that is made anew": (
        "from collections import namedtuple\nstate = namedtuple('State', 'n')(0)",
        "(model(x) * state.n).mean().backward()\nstate = state._replace(n=state.n + 1)",
        "state",
    ),
}


@pytest.mark.parametrize("how", NUMBERS)
def test_numbers_that_are_handed_on_in_other_things_are_said_after_a_repair(how: str) -> None:
    before, body, name = NUMBERS[how]
    found = run(built(LOOP, before, body))
    assert found.said == [] and name in found.perhaps, (found.said, found.perhaps)


def test_numbers_that_stay_are_not_said() -> None:
    found = run(built(LOOP, "rates = [0.1, 0.2]", "rates.sort()\n(model(x) * rates[0]).mean().backward()"))
    assert found.said == [] and "rates" not in found.perhaps, (found.said, found.perhaps)


KEPT = """
class Kept:
    def __init__(self): self.mean = torch.zeros(4)
    def state_dict(self): return {"mean": self.mean}
    def load_state_dict(self, state): self.mean = state["mean"]
"""
USED_IN_PLACE = "model(x - mean).mean().backward()\nmean.mul_(0.9).add_(x.mean(0))"


@pytest.mark.parametrize(
    ("then", "named"),
    [("", False), ("if step.number == 7:\n    mean = mean.clone()", True)],
    ids=["what is registered", "something else"],
)
def test_a_name_of_something_registered_that_stands_for_something_else_later(then: str, named: bool) -> None:
    before = f"{KEPT}kept = Kept()\nsession.local.objects['kept'] = kept\nmean = kept.mean"
    said = run(built(EPOCHS, before, f"{USED_IN_PLACE}\n{then}")).said
    assert bool(said) == named, said


def test_nothing_is_looked_at_once_something_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = list[bool]()
    look = Held.look

    def counted(self: Held, *args: Any) -> None:
        looks.append(self.moved)
        look(self, *args)

    monkeypatch.setattr(Held, "look", counted)
    said = run(built(LOOP, "mean = torch.zeros(4)", "model(x - mean).mean().backward()\nmean = x.mean(0)")).said
    assert len(said) == 1 and "hands mean" in said[0], said
    assert not any(looks) and len(looks) < 8, looks
