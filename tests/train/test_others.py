"""Values that steps keep where no source shows it: a step that is done again finds what its first attempt has found."""

from __future__ import annotations

import functools
import random
import signal
from collections import UserDict, UserList
from collections.abc import Callable
from enum import Enum
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from taskd.state import rng
from taskd.state.caches import draws
from taskd.state.inside import inside_of
from taskd.state.modules import Modules
from taskd.state.plain import packed
from taskd.state.variables import Variables

NUMBERS = (0, 1, 2, 2, 3)
"""Step 2 is done again."""


class State:
    """Has no attributes at first."""


class Phase(Enum):
    """A value that no repair can make again."""

    WARM = 1
    HOT = 2


class Keeps(nn.Module):
    """Keeps a list, and replaces it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = [1.0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = [*self.seen[-2:], self.seen[-1] + 1.0]
        return x * sum(self.seen)


def test_what_setattr_has_set_is_given_back() -> None:
    variables, state, layer = Variables(), State(), nn.Linear(1, 1)
    state.__dict__["scale"] = 1.0
    found = UserList[Any]()  # no repair looks into it
    for number in NUMBERS:
        variables.handed_out(number, 1)
        found.append(scale := getattr(state, "scale"))  # noqa: B009
        layer.weight.grad = torch.full_like(layer.weight, scale)
        for name in ("scale",):
            setattr(state, name, scale / 2)
    assert found == [1.0, 0.5, 0.25, 0.25, 0.125] and variables.others.given.missed == []


@pytest.mark.parametrize(
    ("made", "missed"),
    [
        (functools.partial(nn.functional.l1_loss), []),
        (torch.relu, []),
        (nn.L1Loss(), ["state.loss (which one)"]),
        (State(), ["state.loss (which one)"]),
    ],
)
def test_code_that_a_step_has_made(made: Any, missed: list[str]) -> None:
    """Only functions are taken away again: to make an object once more may do something else, too."""
    variables, state, layer = Variables(), SimpleNamespace(loss=None), nn.Linear(1, 1)
    found = UserList[bool]()
    for number in NUMBERS:
        variables.handed_out(number, 1)
        found.append(state.loss is None)
        layer.weight.grad = torch.full_like(layer.weight, 1.0 if state.loss is None else 2.0)
        for name in ("loss",) if number == 2 else ():
            setattr(state, name, made)
    assert found == [True, True, True, not missed, False] and variables.others.given.missed == missed


def test_what_comes_into_an_empty_object_is_seen() -> None:
    variables, state, layer = Variables(), State(), nn.Linear(1, 1)
    change: list[Callable[[int], None]] = [lambda number: state.__dict__.update(scale=float(number))]
    for number in NUMBERS[:-1]:
        variables.handed_out(number, 1)
        layer.weight.grad = torch.full_like(layer.weight, getattr(state, "scale", 1.0))
        for one in change:
            one(number)
    assert vars(state) == {"scale": 2.0} and {*(variables.looks[-1].others or {}).values()} == {packed(1.0)}


def test_a_marker_of_something_that_was_done_is_left_alone() -> None:
    variables, fired, layer = Variables(), set[str](), nn.Linear(1, 1)
    raised = UserList[int]()

    def fail(number: int) -> None:
        if number == 2 and "x" not in fired:
            fired.add("x")
            raised.append(number)
            raise ValueError("once")

    for number in NUMBERS:
        variables.handed_out(number, 1)
        layer.weight.grad = torch.full_like(layer.weight, 1.0)
        try:
            fail(number)
        except ValueError:
            continue
    assert raised == [2] and variables.others.given.missed == []


class Prepares:
    """Does something once, and sets something once."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer, self.is_done, self.is_late, self.scale = layer, False, False, 1.0

    def acts(self, number: int) -> None:
        if self.is_done:
            return
        if number == 2:
            self.layer.register_forward_hook(lambda *_: None)
            self.is_done = True

    def sets(self, number: int) -> None:
        if self.is_late:
            return
        self.scale = number * 0.5
        self.is_late = number == 2


def test_a_function_that_returns_at_once_guards_what_it_does() -> None:
    layer, found, left = nn.Linear(1, 1), UserList[Any](), UserList[str]()
    variables, prepares = Variables(), Prepares(layer)
    for number in NUMBERS:
        variables.handed_out(number, 1)
        left += variables.others.given.left
        found.append((prepares.is_done, prepares.is_late, prepares.scale))
        layer.weight.grad = torch.full_like(layer.weight, prepares.scale + prepares.is_done)
        prepares.acts(number)
        prepares.sets(number)
    assert found[2:] == [(False, False, 0.5), (True, False, 0.5), (True, True, 1.0)]
    assert {*left} == {"prepares.is_done"} and variables.others.given.missed == []


@pytest.mark.parametrize("raised", [True, False])
def test_a_marker_that_no_source_shows_is_left_alone_after_an_error(raised: bool) -> None:
    variables, layer, state = Variables(), nn.Linear(1, 1), {"failed": False}

    def fail(*_: Any) -> None:
        state.update(failed=True)
        raise ValueError("once")

    hook: Any = None
    for number in NUMBERS[:-1]:
        again = hook is not None
        variables.handed_out(number, 1, raised=raised and again)
        if number == 2 and not again:
            hook = layer.register_forward_pre_hook(fail)
        try:
            layer(torch.ones(1) * (1.0 + state["failed"]))
        except ValueError:
            hook.remove()
    given = variables.others.given
    assert (given.left, given.missed) == ((["state['failed']"], []) if raised else ([], ["state['failed']"]))


@functools.lru_cache
def table(length: int) -> torch.Tensor:
    return torch.rand(length)


@functools.lru_cache
def ramp(length: int) -> torch.Tensor:
    return torch.arange(length)


class Cache:
    """Draws at its first use."""

    @functools.cached_property
    def noise(self) -> torch.Tensor:
        return torch.rand(3)

    @functools.cached_property
    def ramp(self) -> torch.Tensor:
        return torch.arange(3)


def test_what_a_cached_property_has_drawn_is_kept() -> None:
    variables, cache, layer = Variables(), Cache(), nn.Linear(1, 1)
    for number in range(2):
        variables.handed_out(number, 1)
        kept = variables.looks[-1].rows.keys()
        layer.weight.grad = torch.full_like(layer.weight, (cache.noise[:2].sum() + cache.ramp.sum()).item())
    assert kept == {"cache.noise"}


@pytest.mark.parametrize("cached", [table, ramp])
def test_what_a_cached_function_has_drawn_is_missed(cached: Callable[[int], torch.Tensor]) -> None:
    variables, layer = Variables(), nn.Linear(1, 1)
    for number in NUMBERS[:-1]:
        variables.handed_out(number, 1)
        layer.weight.grad = torch.full_like(layer.weight, cached(number).sum().item())
    assert variables.others.given.missed == (["what cached has drawn"] if cached is table else [])


def test_a_flag_that_toggles_is_given_back() -> None:
    variables, gan, layer = Variables(), SimpleNamespace(turn=True), nn.Linear(1, 1)
    found = UserList[bool]()
    for number in NUMBERS:
        variables.handed_out(number, 1)
        found.append(gan.turn)
        if gan.turn:
            layer.weight.register_hook(lambda grad: grad)
            gan.turn = False
        else:
            layer.weight.data.add_(1.0)
            gan.turn = True
    assert found == [True, False, True, True, False] and variables.others.given.left == []


def test_a_phase_that_ends_is_given_back() -> None:
    variables, warm, layer = Variables(), True, nn.Linear(1, 1)
    found = UserList[bool]()
    for number in NUMBERS:
        variables.handed_out(number, 1)
        found.append(warm)
        layer.weight.grad = torch.full_like(layer.weight, 0.1 if warm else 1.0)
        if warm and number == 2:
            warm = False
    assert found == [True, True, True, True, False]


def test_a_text_that_is_used_through_its_methods_is_given_back() -> None:
    variables, mode, layer = Variables(), "warm", nn.Linear(1, 1)
    found = UserList[str]()
    for number in NUMBERS:
        variables.handed_out(number, 1)
        found.append(mode)
        layer.weight.grad = torch.full_like(layer.weight, 1.0 if mode.startswith("w") else 2.0)
        mode = "warm" if mode.endswith("l") else "full"
    assert found == ["warm", "full", "warm", "warm", "full"] and variables.others.given.missed == []


def test_what_a_module_keeps_is_looked_at_where_it_is_now() -> None:
    variables, module = Variables(), Keeps()
    variables.others.looks_inside = lambda: inside_of({"module": module}, {})
    found = UserList[Any]()
    for number in NUMBERS:
        variables.handed_out(number, 1)
        found.append([*module.seen])
        module(torch.ones(1)).sum().backward() if number < 0 else module(torch.ones(1))
    assert found == [[1], [1, 2], [1, 2, 3], [1, 2, 3], [2, 3, 4]] and variables.others.given.missed == []


@pytest.mark.parametrize("kind", ["alias", "tuple", "Enum"])
def test_what_cannot_be_given_is_missed(kind: str) -> None:
    schedules: dict[str, Any] = {"warm": [0.1, 0.2], "main": [1.0, 2.0], "kept": object()}
    variables, state, layer = Variables(), SimpleNamespace(of=None), nn.Linear(1, 1)
    state.of = {"alias": schedules["warm"], "tuple": (object(), 0.1), "Enum": Phase.WARM}[kind]

    def change(number: int) -> None:
        if number == 2:
            state.of = {"alias": schedules["main"], "tuple": (state.of, 0.2), "Enum": Phase.HOT}[kind]

    changes: list[Callable[[int], None]] = [functools.partial(change)]
    for number in NUMBERS[:-1]:
        variables.handed_out(number, 1)
        layer.weight.grad = torch.full_like(layer.weight, len(schedules) + (state.of is None))
        for one in changes:
            one(number)
    assert variables.others.given.missed, "schedules or state"


def test_what_a_handler_of_a_signal_sets_is_left_alone() -> None:
    stop, layer, variables = {"now": False}, nn.Linear(1, 1), Variables()

    def handler(number: int, frame: FrameType | None) -> None:
        stop["now"] = True

    before = signal.signal(signal.SIGUSR2, handler)
    try:
        for number in NUMBERS:
            variables.handed_out(number, 1)
            layer.weight.grad = torch.full_like(layer.weight, 1.0 + stop["now"])
            if number == 2:
                signal.raise_signal(signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert stop == {"now": True} and variables.others.given.missed == []


def test_other_items_of_what_a_handler_sets_are_given_back() -> None:
    run, layer, variables, found = {"now": False, "turns": 0}, nn.Linear(1, 1), Variables(), UserList[Any]()

    def handler(number: int, frame: FrameType | None) -> None:
        run["now"] = True

    before = signal.signal(signal.SIGUSR2, handler)
    try:
        for number in NUMBERS:
            variables.handed_out(number, 1)
            found.append(run["turns"])
            for name in ("turns",):
                layer.turns = run[name]
                run[name] += 1
            layer.weight.grad = torch.full_like(layer.weight, 1.0 + run["turns"] + run["now"])
            if number == 2:
                signal.raise_signal(signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert found == [0, 1, 2, 2, 3] and run["now"] and variables.others.given.missed == []


def test_a_phase_is_missed_although_its_class_is_named() -> None:
    variables, phase, layer = Variables(), Phase.WARM, nn.Linear(1, 1)
    for number in NUMBERS[:-1]:
        variables.handed_out(number, 1)
        layer.weight.grad = torch.full_like(layer.weight, 0.1 if phase is Phase.WARM else 1.0)
        if number == 2:
            phase = Phase.HOT
    assert variables.others.given.missed == ["phase"]


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_flag_that_the_last_step_may_have_set_for_the_first_time_is_said(at: int) -> None:
    variables, other, spike, layer = Variables(), Variables(), False, nn.Linear(1, 1)
    for one in (other, variables):
        spike = False
        for number in range(4):
            one.handed_out(number, 1, whole=number < 3)
            answers = one.hear(number, [other.tell(number), one.tell(number)], 1) if number == 3 else None
            layer.weight.grad = torch.full_like(layer.weight, 0.5 if spike else 1.0)
            if number == at:
                spike = True
    assert answers is not None
    assert answers.unsure == ({"spike"} if at == 3 else set())


class Draws(nn.Module):
    """Uses a generator of its class, and counts in a variable of its file."""

    rng = torch.Generator().manual_seed(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global forwards
        forwards += 1
        return x * torch.rand(1, generator=self.rng) * forwards


forwards = 0


def test_what_a_wrapped_module_uses_is_seen() -> None:
    global forwards
    variables, module, found = Variables(), Draws(), UserList[float]()
    forwards = 0
    wrapped: list[Callable[[torch.Tensor], torch.Tensor]] = [lambda x: nn.Module.__call__(module, x)]
    variables.others.looks_inside = lambda: inside_of({"module": module}, {})
    kept = UserDict[int, bytes]()
    for number in NUMBERS:
        variables.handed_out(number, 1)
        rng.restore(kept.setdefault(number, rng.capture()))
        found.append(wrapped[0](torch.ones(1)).item())
    assert found[2] == found[3] and len({*found}) == 4


def test_generators_are_put_back_by_name() -> None:
    one, other, new = (torch.Generator().manual_seed(seed) for seed in (1, 2, 3))
    rng.follow_by_name({"a": one, "b": other})
    state = rng.capture()
    first = [torch.rand(1, generator=each).item() for each in (one, other)]
    rng.follow_by_name({"0": torch.Generator(), "a": one, "b": new, "c": random.Random(1)})
    rng.restore(state)
    assert [torch.rand(1, generator=each).item() for each in (one, new)] == first
    rng.follow_by_name({"a": random.Random(1)})
    rng.restore(state)  # another kind: nothing is put there
    rng.follow_by_name({})


def test_a_generator_that_is_replaced_is_followed() -> None:
    variables, layer, noise = Variables(), nn.Linear(1, 1), torch.Generator().manual_seed(0)
    found, kept = UserList[float](), UserDict[int, bytes]()
    for number in NUMBERS:
        variables.handed_out(number, 1)
        rng.restore(kept.setdefault(number, rng.capture()))
        if number == 1:
            noise = torch.Generator().manual_seed(7)
        found.append(torch.rand(1, generator=noise).item())
        layer.weight.grad = torch.full_like(layer.weight, found[-1])
    assert found[2] == found[3] and len({*found}) == 4


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *(("randn", True), ("xavier_uniform_", True), ("standard_normal", True), ("gauss", True), ("dropout", True)),
        *(("permute", False), ("operand", False), ("sample_rate", False), ("normalize", False), ("brand", False)),
    ],
)
def test_which_names_draw(name: str, expected: bool) -> None:
    space: dict[str, Any] = {"__name__": __name__}
    exec(compile(f"def function(x):\n    return x.{name}(3)\n", __file__, "exec"), space)
    assert draws(space["function"]) is expected


@pytest.mark.parametrize("made", [torch.Generator(), torch.ones(3), [object()]])
def test_an_attribute_of_a_module_may_become_an_object(made: Any) -> None:
    modules, module = Modules(), nn.Linear(1, 1)
    module.made, module.scale = None, 1.0  # type: ignore[assignment]
    assert modules.look({"module": module}) == []
    before = modules.note()
    module.made, module.scale = made, 2.0  # type: ignore[assignment]
    now = modules.note()
    assert [change[1:] for change in modules.pack(now, False)["changed"]] == [["scale", 2.0]]
    assert not now.alike(before) and not modules.moved(modules.note())
    modules.put_back(before)
    assert (module.made, module.scale) == (None, 1.0)
