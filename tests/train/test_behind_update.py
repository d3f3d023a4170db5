"""Tests whether a script is seen to need what a step's body sets at or behind its update."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from taskd.state.behind import Body
from taskd.state.places import Place
from taskd.state.rest import Loops, Rest

HEAD = """
import collections
import enum
import torch

class Meter:
    def update(self, value): self.value = value
    def shown(self): return self.value

class Whole:
    def __init__(self): self.value, self.name = 1.0, "loss"
    def update(self, value): self.value = value

class Net(torch.nn.Module):
    def update(self, value): self.value = value

class Colour(enum.Enum):
    RED, BLUE = 1, 2

phase, ready = 1, False

def change():
    global phase, ready
    phase, ready = 2, True

def train(update, *more):
    update()
    return 1.0

step = other = None
"""


class Step:
    """Stands for a step: it gives the body that is entered, and asks at each update. The script puts the body here."""

    __enter__ = staticmethod(Body.entered)  # called without a frame of this file between it and the script

    def __init__(self, whole: bool = True) -> None:
        self.whole, self.loops = whole, Loops()
        self.body: Body | None = None
        self.updates = 0
        self.rest: Rest | None = None
        self.result: Any = None

    def __exit__(self, *_: object) -> None:
        pass

    def update(self) -> None:
        """Make the update."""
        assert self.body is not None
        self.updates += 1
        self.rest = self.body.rest(self.whole, self.loops)


def run(folder: Path, source: str, whole: bool = True, written: tuple[Place, ...] = ()) -> Step:
    """Run a script whose function `run(step, update)` has this source. `written`: what its loop may set elsewhere."""
    place = folder / f"script_{len(list(folder.iterdir()))}.py"
    place.write_text(HEAD + "def run(step, update):\n" + textwrap.indent(textwrap.dedent(source).strip(), "    "))
    spec = importlib.util.spec_from_file_location(place.stem, place)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        step = Step(whole)
        step.loops.append((module.run.__code__, written))
        step.result = module.run(step, step.update)
    finally:
        del sys.modules[spec.name]
    assert step.updates == 1
    return step


def asked(folder: Path, source: str, whole: bool = True) -> bool:
    """Run a script; return whether it needs the rest of its body. `whole`: see Body.rest."""
    return run(folder, source, whole).rest is not None


NEEDED = {
    "a name that is set behind it": """
        with step as step.body:
            update()
            value = 1
        print(value)
    """,
    "a name that is set at it": """
        with step as step.body:
            value = train(update)
        print(value)
    """,
    "a call of several lines": """
        with step as step.body:
            value = train(
                update,
                1,
            )
        print(value)
    """,
    "one of a pair": """
        with step as step.body:
            update()
            value, third = 1, 2
        print(third)
    """,
    "a name that is read in a function": """
        def report():
            print(value)
        with step as step.body:
            update()
            value = 1
        report()
    """,
    "a key": """
        kept = [0]
        with step as step.body:
            update()
            index = 0
        print(kept[index])
    """,
    "an item of a list that it appends": """
        seen = []
        with step as step.body:
            update()
            seen.append(1)
        print(seen[0])
    """,
    "an item of a dict": """
        last = {}
        with step as step.body:
            update()
            last["loss"] = 1
        print(last["loss"])
    """,
    "a dict that is passed on": """
        last = {}
        with step as step.body:
            train(update, last)
        if not step.updates:
            print(last["loss"])
    """,
    "an object of the script": """
        meter = Meter()
        with step as step.body:
            update()
            meter.update(1)
        print(meter.value)
    """,
    "an attribute": """
        meter = Meter()
        with step as step.body:
            update()
            meter.value = 1
        print(meter.value)
    """,
    "inside of other blocks": """
        with step as step.body:
            if step:
                with torch.enable_grad():
                    update()
                    value = 1
        print(value)
    """,
    "in a loop around the update": """
        with step as step.body:
            for part in range(1):
                update()
                value = 1
        print(value)
    """,
    "added to where nothing was before": """
        with step as step.body:
            update()
            count = 1
        count += 1
    """,
    "a name that was None": """
        value = None
        with step as step.body:
            update()
            value = 1
        print(value + 1)
    """,
    "a count from 0": """
        total = count = 0
        with step as step.body:
            update()
            total += 1
            count += 1
        print(total / count)
    """,
    "a method that needs what another one sets": """
        meter = Meter()
        with step as step.body:
            update()
            meter.update(1)
        print(meter.shown())
    """,
    "an object that is passed on as a whole": """
        meter = Meter()
        with step as step.body:
            update()
            meter.update(1)
        train(print, meter)
    """,
}
NOT_NEEDED = {
    "it was set before the update": """
        with step as step.body:
            value = 1
            update()
        print(value)
    """,
    "in another block it was set before the update": """
        with step as step.body:
            with torch.enable_grad():
                value = 1
                update()
        print(value)
    """,
    "only the body reads it": """
        with step as step.body:
            update()
            value = 1
            print(value)
    """,
    "a name that has a value": """
        value = 0
        with step as step.body:
            update()
            value = 1
        print(value)
    """,
    "a sum that is shown": """
        total = 0
        with step as step.body:
            update()
            total += 1
        print(total)
    """,
    "a None that is asked for": """
        value = None
        with step as step.body:
            update()
            value = 1
        if value is not None:
            print(value)
    """,
    "a list whose length is asked for": """
        seen = []
        with step as step.body:
            update()
            seen.append(1)
        if len(seen) == 50:
            print("full")
    """,
    "another body of the same step": """
        with step as step.body:
            update()
            value = 1
        if step.updates > 5:
            with step as step.body:
                print(value)
    """,
    "a function that gives its locals away": """
        with step as step.body:
            update()
            value = 1
        print(value, locals())
    """,
    "a list that has items": """
        seen = [0]
        with step as step.body:
            update()
            seen.append(1)
        print(seen[-1])
    """,
    "an object that lacks nothing": """
        meter = Whole()
        with step as step.body:
            update()
            meter.update(1)
        print(meter.value)
    """,
    "an object that lacks something else": """
        meter = Meter()
        meter.name = "loss"
        with step as step.body:
            update()
            meter.update(1)
        print(meter.name)
    """,
    "an object that is gone": """
        import weakref
        meter = weakref.proxy(Meter())
        with step as step.body:
            update()
            train(print, meter)
        print(step)
    """,
    "a file that is written": """
        with open("/dev/null", "w") as log:
            with step as step.body:
                update()
                log.write("a line")
            log.flush()
    """,
    "a model whose method is called": """
        net = Net()
        with step as step.body:
            update()
            net.update(1)
        net.eval()
    """,
    "another attribute": """
        meter = Meter()
        meter.name = "loss"
        with step as step.body:
            update()
            meter.value = 1
        print(meter.name)
    """,
    "another name of a function": """
        def report():
            value = 2
            print(value)
        with step as step.body:
            update()
            value = 1
        report()
    """,
    "nothing behind it": """
        with step as step.body:
            update()
        print("done")
    """,
}


@pytest.mark.parametrize("source", NEEDED.values(), ids=NEEDED)
def test_what_is_needed(tmp_path: Path, source: str) -> None:
    assert asked(tmp_path, source)


@pytest.mark.parametrize("source", NOT_NEEDED.values(), ids=NOT_NEEDED)
def test_what_is_not_needed(tmp_path: Path, source: str) -> None:
    assert not asked(tmp_path, source)


def test_a_script_without_source_needs_nothing() -> None:
    space: dict[str, Any] = {}
    exec("def run(step, update):\n with step as step.body:\n  update()\n  value = 1\n print(value)", space)
    step = Step()
    space["run"](step, step.update)
    assert step.updates == 1 and step.rest is None


def test_what_follows_the_loop_is_needed_only_if_the_loop_is_left(tmp_path: Path) -> None:
    source = """
        for number in range(1):
            with step as step.body:
                update()
                value = 1
        print(value)
    """
    assert asked(tmp_path, source)
    assert not asked(tmp_path, source, whole=False)
    assert asked(tmp_path, source.replace("        print", "            print"), whole=False)


def test_what_the_rest_changes_is_put_back(tmp_path: Path) -> None:
    source = """
        phase, name, flag, hook, colour, pair = 1, "a", False, None, Colour.RED, (1, 2)
        seen, last, counts = [1], {"loss": 1.0}, collections.Counter(a=1)
        meter = Whole()
        meter.seen = []
        def look():
            return [phase, name, flag, hook, colour, pair, seen, last, counts, meter.value, meter.name, meter.seen]
        with step as step.body:
            update()
            phase, name, flag, hook, colour, pair, value = 2, "b", True, 1, Colour.BLUE, (3, 4), 3
            seen.append(2)
            last["loss"] = 2.0
            last["more"] = 3.0
            counts.update(["a"])
            meter.update(2.0)
            meter.seen.append(1)
        print(value)
        unsure = step.rest.put_back()
        return look(), value, unsure, colour is Colour.RED
    """
    found, value, unsure, red = run(tmp_path, source).result
    assert red and found.pop(4) is not None
    assert found == [1, "a", False, 1, (1, 2), [1], {"loss": 1.0}, {"a": 1}, 1.0, "loss", []]
    assert value == 3  # it had no value before
    assert not unsure


def test_a_flag_that_may_guard_is_named(tmp_path: Path) -> None:
    source = """
        done, meter = False, Whole()
        meter.begun = False
        def begin():
            meter.begun = True
        with step as step.body:
            update()
            if not done:
                done = True
            train(begin, meter)
            value = 1
        print(value)
        return step.rest.put_back(), done, meter.begun
    """
    assert run(tmp_path, source).result == (["done", "meter.begun"], True, True)


def test_what_a_function_sets_for_the_module_is_put_back(tmp_path: Path) -> None:
    source = """
        with step as step.body:
            update()
            train(change)
            value = 1
        print(value)
        return step.rest.put_back(), phase, ready
    """
    places = (Place("phase", "phase"), Place("ready", "ready"))
    assert run(tmp_path, source, written=places).result == (["ready"], 1, True)


def test_a_function_that_has_returned_gets_nothing_back(tmp_path: Path) -> None:
    source = """
        def one():
            kept, count = [], 1
            with step as step.body:
                update()
                kept.append(1)
                count = 2
            return kept[0], count
        return one(), step.rest.put_back()
    """
    assert run(tmp_path, source).result == ((1, 2), [])
