"""Tests numbers of a script that move in its loop: what a survivor puts back, and what a newcomer begins with.

They run in one process, with a fake manager as in test_session.py. Several processes are tested in tests/trust.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import math
import signal
import weakref
from collections import UserDict, UserList
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
import torch
from torch import nn

from taskd.errors import Misfit, PeerError, StepAbandoned
from taskd.state.note import Told
from taskd.state.record import Occasion
from taskd.state.variables import Variables
from taskd.worker import resilient as resilience
from taskd.worker.heal import Loop
from taskd.worker.session import Session
from taskd.worker.together import Together
from tests.train.test_session import FakeRepair, Newcomer, Recording

STEPS = 8
count = 0


def counted() -> int:
    """Count up in a variable of the module."""
    global count
    count += 1
    return count


class Trainer:
    """A training that counts in local variables, in the module and in its own attributes."""

    def __init__(self, repair: FakeRepair) -> None:
        global count
        torch.manual_seed(1)
        self.repair, self.count = repair, 0
        self.model = nn.Linear(4, 4)
        count = 0

    def train(self) -> list[tuple[int, ...]]:
        """Train. Returns the counts of each finished step: those before, inside and after its `with`."""
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        session = self.repair.session = Session(self.repair)
        session.register(model=self.model, optimizer=optimizer)
        first = inside = behind = 0
        found = UserDict[int, tuple[int, ...]]()  # no repair looks into it
        for step in heapq.merge(session.steps([torch.ones(2, 4)] * STEPS)):  # this generator is not the script's
            first += 1
            self.count += 1
            with step as x:
                inside += 1
                counted()
                optimizer.zero_grad()
                self.repair.here(step.number, "start")
                self.model(x).square().mean().backward()
                self.repair.here(step.number, "reduced")
                optimizer.step()
                found[step.number] = (first, inside, behind, self.count, count)
            behind += 1
        found[STEPS] = (first, inside, behind, self.count, count)
        return [found[number] for number in sorted(found)]


@pytest.mark.parametrize("place", ["start", "reduced"])
@pytest.mark.parametrize("at", [0, 1, 5])
def test_a_step_that_is_done_again_counts_once(at: int, place: str) -> None:
    wanted = Trainer(FakeRepair()).train()
    repair = FakeRepair(at, place)
    assert Trainer(repair).train() == wanted
    assert repair.repairs


@pytest.mark.one_in(2)
@pytest.mark.parametrize("at", [1, 5])
def test_a_newcomer_counts_on(at: int) -> None:
    source = Recording(at, Occasion.START)
    wanted = Trainer(source).train()
    assert Trainer(Newcomer(source)).train()[-len(wanted[at:]) :] == wanted[at:]


def test_a_newcomer_forgets_its_rehearsal() -> None:
    """Its predecessor died in the first step, so no variable had moved yet."""

    class First(Newcomer):
        def run(self, loop: Any) -> None:
            self.newcomer = False

    assert Trainer(First(Recording(0, Occasion.START))).train() == Trainer(FakeRepair()).train()


class Telling(Recording):
    """A survivor that tells a newcomer its variables."""

    told = b""

    def record(self, occasion: Occasion, step: int, pieces: list[bytes]) -> None:
        super().record(occasion, step, pieces)
        if (occasion, step) == (Occasion.START, self.until):
            assert self.session is not None
            self.told = self.session._registered.local.variables.tell(step)


class Answering(Together):
    """Gives the newcomer what the survivor tells."""

    def __init__(self, asking: Asking) -> None:
        self.asking = asking

    def everyone(self, mine: bytes) -> tuple[list[bytes], int]:
        asking = self.asking
        if not asking.broken:
            asking.broken = asking.on = True
            raise StepAbandoned("a repair begins")
        assert isinstance(asking.source, Telling)
        with contextlib.suppress(PeerError):
            Told.unpack(mine)
            return [Told().pack(), mine], 1
        return [asking.source.told, mine], 1


class Asking(Newcomer):
    """A newcomer whose record is from the step before. A repair begins when it asks for the first time."""

    def __init__(self, source: Telling) -> None:
        super().__init__(source)
        self.broken = 0
        self.together = Answering(self)

    def ordered(self) -> bool:
        return super().ordered() or self.on

    def run(self, loop: Loop) -> None:
        if self.newcomer:
            super().run(loop)
        else:
            FakeRepair.run(self, loop)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("at", [2, 3, 5])
def test_a_newcomer_asks_for_what_its_record_lacks(at: int) -> None:
    source = Telling(at, Occasion.FORWARD)
    wanted = Trainer(source).train()
    newcomer = Asking(source)
    assert Trainer(newcomer).train()[-len(wanted[at:]) :] == wanted[at:]
    assert newcomer.repairs == [at]


def test_a_newcomer_behind_the_first_update_starts_over_where_one_rank_alone_tells() -> None:
    """A number that has moved only once may be the same on all ranks or not: no rank can know."""
    source = Telling(1, Occasion.FORWARD)
    Trainer(source).train()
    with pytest.raises(Misfit, match=r"the script's behind, count, first, inside would be after step 0"):
        Trainer(Asking(source)).train()


def script(variables: Variables, numbers: list[int], amounts: list[Any], begin: Any = 0) -> UserList[Any]:
    """Run a loop that counts by these amounts. Returns the value that it finds in each step."""
    moving = begin
    found = UserList[Any]()  # no repair looks into it
    for number, amount in zip(numbers, amounts, strict=True):
        variables.handed_out(number, 1)
        found.append(moving)
        moving += amount
    return found


@pytest.mark.parametrize("value", [1, 1.5, -(1 << 62), math.inf])
def test_a_number_travels_as_it_is(value: Any) -> None:
    one, other = Variables(), Variables()
    script(one, [0, 1], [value, 0])
    other.inherited.adopt(one.pack())
    [found] = script(other, [1], [0], -1)
    assert type(found) is type(value) and found == value


@pytest.mark.parametrize("value", [1 << 64, "text", 2j])
def test_what_does_not_travel_is_left_alone(value: Any) -> None:
    one, other = Variables(), Variables()
    script(one, [0, 1], [value, type(value)()], type(value)())
    other.inherited.adopt(one.pack())
    assert script(other, [1], [0], -1) == [-1]


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x90", msgpack.packb([1, 1, "", [{}, {}]]), msgpack.packb(7)])
def test_a_record_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(PeerError):
        Variables().inherited.adopt([data])


@pytest.mark.parametrize("there", ["", []])
def test_what_is_no_number_is_not_replaced_by_one(there: Any) -> None:
    variables, found = Variables(), UserList[Any]()
    count: Any = 5
    for attempt in range(2):  # two attempts of the same step
        variables.handed_out(0, 1)
        found.append(count)
        count += there if attempt else 0
        if not attempt:
            count = there
            found = [*found]
    assert found == [5, there]


def test_what_a_loop_sets_anew_is_left_alone() -> None:
    """Examples are a descriptor, the last loss, the position of an iterator and a guard object."""
    variables, descriptor, place, items, guard = Variables(), 3, 0, iter("abc"), None
    for attempt in range(2):  # two attempts of the same step
        variables.handed_out(0, 1)
        doubtful = variables.doubtful()
        descriptor = 4 + attempt
        if place == 3:
            items = iter("abc")
            place = 0
        assert next(items) == "abc"[place]
        place += 1
        guard = guard or object()
    assert (descriptor, place) == (5, 2) and guard is not None
    assert doubtful == ["place"]


def test_what_has_got_the_scripts_locals_is_not_written_to() -> None:
    variables = Variables()
    given = [*range(2)]
    count = 0
    config = locals()
    config["count"] = 7
    for _ in given:
        variables.handed_out(0, 1)
        doubtful = variables.doubtful()
        count += 1
    assert config["count"] == 7 and "_" not in config and count == 2
    assert doubtful == ["count"]


class Meter:
    """An average meter as in the usual examples."""

    def __init__(self) -> None:
        self.sum = self.count = 0.0
        self.last = 0.0

    def update(self, value: float) -> None:
        """Add one value."""
        self.last = value
        self.sum += value
        self.count = self.count + 1


class Odd:
    """An object without a __dict__: it has __slots__."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Batches:
    """Counts what it takes from an iterator."""

    def __init__(self) -> None:
        self.parts, self.taken = iter(range(100)), 0

    def next(self) -> int:
        """Return the next item and count it."""
        self.taken += 1
        return next(self.parts)


class Ring:
    """Starts again from time to time, with a new list."""

    def __init__(self) -> None:
        self.at, self.rows = 0, [0.5]

    def next(self) -> float:
        """Return the next item."""
        if self.at == len(self.rows):
            self.rows = [*self.rows, 1.5]
            self.at = 0
        self.at += 1
        return self.rows[self.at - 1]


def test_what_is_counted_in_other_places_is_put_back_or_said() -> None:
    variables, meter, state = Variables(), Meter(), SimpleNamespace(step=0, rate=1.0, inner={"seen": 0})
    totals, per_class, layer, odd = {"samples": 0, "name": 0}, [0, 0], nn.Linear(1, 1), Odd()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scores, layer.seen = torch.zeros(2), 0  # type: ignore[assignment]
    own, batches, ring, fresh = Meter(), Batches(), Ring(), Meter()
    known = {id(own), id(optimizer), id(optimizer.param_groups[0])}
    variables.known = lambda: known
    found = UserList[Any]()  # no repair looks into it
    for at, number in enumerate([0, 1, 1, 2]):  # step 1 is done again
        variables.handed_out(number, 1)
        doubtful = variables.doubtful(known)
        found.append((meter.sum, meter.count, totals["samples"], state.step, state.inner["seen"], odd.count))
        meter.update(0.5)
        own.update(0.5)
        totals["samples"] += 8
        per_class[at % 2] += 1
        scores[at % 2] += 1
        state.step = state.step + 1
        state.rate = 2.0
        state.inner["seen"] += 1
        layer.seen += 1  # type: ignore[operator]
        odd.count += 1
        batches.next()
        ring.next()
        fresh = Meter()
        fresh.update(1.0)
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
    assert found == [(0.5 * n, n, 8 * n, n, n, n) for n in (0, 1, 1, 2)]
    assert (own.count, layer.seen, batches.taken, ring.at) == (4, 4, 4, 2)
    assert doubtful == ["batches.taken", "fresh.count", "fresh.sum", "ring.at"]


class Limit:
    """Counts what is above a limit that the first values set. The count is only shown."""

    def __init__(self) -> None:
        self.limit, self.above, self.seen, self.lowest = 9.0, 0, 0, 9.0

    def add(self, value: float) -> None:
        """Look at one value."""
        self.seen += 1
        self.lowest = min(self.lowest, value)
        if self.seen < 2:
            self.limit = value
        if value > self.limit:
            self.above += 1


def test_what_callbacks_count_to_show_it_is_put_back_though_they_set_something_beside_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    variables, callbacks = Variables(), [Limit(), Limit()]
    for number in (0, 1, 2, 2, 3):  # step 2 is done again
        variables.handed_out(number, 1)
        print(callbacks[1].above, variables.doubtful())
        for callback in callbacks:
            callback.add(number + 1.0)
    assert [line[0] for line in capsys.readouterr().out.splitlines()] == ["0", "0", "1", "1", "2"]


def test_what_a_newcomer_counts_in_other_places_begins_with_its_record() -> None:
    totals, variables = {"samples": 5}, Variables()
    record: list[bytes] = []
    for newcomer in (False, True):
        if newcomer:
            totals, variables = {"samples": 0}, Variables()
            variables.inherited.adopt(record)
        for number in range(5, 8) if newcomer else range(3, 6):
            variables.handed_out(number, 1)
            totals["samples"] += 8
        record = variables.pack()
        assert totals["samples"] == (21 + 24 if newcomer else 5 + 24)


def test_what_is_counted_behind_a_generator_of_the_scripts_own_is_said() -> None:
    variables, count, other = Variables(), 0, 0
    doubtful: list[str] = []

    def numbers() -> Iterator[int]:
        given = 0
        for number in range(3):
            variables.handed_out(number, 1)
            doubtful[:] = variables.doubtful()
            yield number
            given = number + given

    for _ in numbers():
        count += 1
    other += count
    assert doubtful == ["count"] and other == 3


def test_what_a_function_inside_counts_is_put_back() -> None:
    variables, count = Variables(), 0

    def one_more() -> None:
        nonlocal count
        count += 1

    found = UserList[Any]()  # no repair looks into it
    for number in (0, 0, 1, 1):
        variables.handed_out(number, 1)
        one_more()
        found.append(count)
    assert found == [1, 1, 2, 2]


received = 0


def stop(number: int, frame: Any) -> None:
    global received
    received += number


class Watch:
    """Has a method that is a signal handler, and another method that runs the loop."""

    def __init__(self) -> None:
        self.received = self.count = 0

    def stop(self, number: int, frame: Any) -> None:
        """Handle the signal through a helper method."""
        self.note(number)

    def note(self, number: int) -> None:
        """Add the number of the signal."""
        self.received += number

    def train(self) -> None:
        """Do one step twice."""
        variables, here = Variables(), 0
        for _ in range(2):
            variables.handed_out(0, 1)
            signal.raise_signal(signal.SIGUSR2)
            self.count += 1
            here += 1
        assert here == 1


@pytest.mark.parametrize("how", ["method", "partial", "module", "inner"])
def test_what_a_handler_stores_is_never_put_back(how: str) -> None:
    global received
    watch, received = Watch(), 0

    def inner(number: int, frame: Any) -> None:
        watch.received += number

    handlers = {"method": watch.stop, "partial": functools.partial(watch.stop), "module": stop, "inner": inner}
    before = signal.signal(signal.SIGUSR2, handlers[how])
    try:
        watch.train()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert (watch.received or received, watch.count) == (2 * signal.SIGUSR2, 1)


class Strange:
    """An object that refuses to give its __dict__."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__dict__":
            raise RuntimeError("none of your business")
        return object.__getattribute__(self, name)

    def __init__(self) -> None:
        self.count = 0

    def train(self) -> tuple[int, int]:
        """Do one step twice."""
        variables, here = Variables(), 0
        for _ in range(2):
            variables.handed_out(0, 1)
            here += 1
            self.count += 1
        return here, self.count


def test_a_strange_self_costs_its_attributes_only() -> None:
    assert Strange().train() == (1, 2)


class Begun:
    """Counts from a value that its class has."""

    count = 5

    def train(self) -> int:
        """Do one step twice."""
        variables = Variables()
        for _ in range(2):
            variables.handed_out(0, 1)
            self.count += 1
        return self.count


def test_an_attribute_may_begin_in_the_class() -> None:
    assert Begun().train() == 6


def test_what_exec_has_made_stays() -> None:
    variables, count, found = Variables(), 0, UserList[Any]()
    exec("scale = 2.0")
    for _ in range(2):
        variables.handed_out(0, 1)
        count += 1
        found.append(eval("scale"))
    assert (count, found) == (1, [2.0, 2.0])


def test_two_loops_have_counters_of_their_own() -> None:
    variables = Variables()
    one = two = 0
    for number in range(2):
        variables.handed_out(number, 1)
        one += 1
    for number in range(2, 4):
        variables.handed_out(number, 2)
        two += 1
    assert [sorted(look.values[0]) for look in variables.looks] == [["one"], ["one"], ["two"], ["two"]]
    assert (one, two) == (2, 2)


def test_a_step_with_nested_counts() -> None:
    """The steps come in an inner loop. The count of the outer loop is not put back."""
    variables, steps, samples, found = Variables(), 0, 0, UserList[Any]()
    for number in [0, 0, 1]:
        steps += 1  # noqa: SIM113 - the outer loop's own
        for _ in [number]:
            variables.handed_out(number, 1)
            samples += 4
        found.append((steps, samples))
    assert found == [(1, 4), (2, 4), (3, 8)], "the loop that asks is the inner one"


def test_no_tensor_of_a_step_outlives_it() -> None:
    variables = Variables()
    count = 0
    for number in (0, 0, 1):
        loss: Any = torch.ones(1)
        variables.handed_out(number, 1)
        seen = weakref.ref(loss)
        loss = None
        assert seen() is None and count == number
        count = count + 1


def test_a_decorated_function_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's variables are as they were at the call, also if a newcomer got its step before its calls."""

    def train(repair: FakeRepair) -> list[tuple[int, int]]:
        global count
        torch.manual_seed(1)
        session = repair.session = Session(repair)
        monkeypatch.setattr(resilience, "session", lambda: session)
        model, count, outside = nn.Linear(4, 4), 0, 0
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session.register(model=model, optimizer=optimizer)
        found = UserDict[int, tuple[int, int]]()  # no repair looks into it

        @resilience.resilient
        def step(number: int, outside: int) -> None:
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().mean().backward()
            counted()
            repair.here(number, "reduced")
            optimizer.step()
            found[number] = (outside, count)

        for number in range(STEPS):
            outside += number % 2
            step(number, outside)
        return [found[number] for number in sorted(found)]

    wanted = train(FakeRepair())
    assert train(FakeRepair(3, "reduced")) == wanted
    source = Recording(4, Occasion.START)
    train(source)
    assert train(Newcomer(source))[-4:] == wanted[4:]
