"""Tests which variables of a script are found to be counters, on sources as people write them."""

from __future__ import annotations

import functools
import gc
import linecache
import textwrap
import weakref
from types import CodeType, FunctionType
from typing import Any

import pytest

from taskd.state import counters
from taskd.state.counters import Counters, Loop
from taskd.state.places import NOTHING, Place

MODULE = """
total = 0
def helper():
    global total
    total += 1
    own = 0
    own += 1
def sets():
    global total
    total = len("abc")
@decorated
def behind():
    global hidden
    hidden += 1
def inner_most():
    global deep
    deep += 1
def outer():
    inner_most()
class Trainer:
    def __init__(self):
        self.steps = self.seen = 0
    def train_step(self, batch):
        self.seen += len(batch)
    def reset(self):
        self.seen = unknown()
    def early(self, batch):
        if batch is None:
            return
        self.hidden = self.model(batch)
    def both(self, batch):
        if batch is None:
            self.hidden = batch
            return None
        else:
            self.hidden = self.model(batch)
            return self.hidden
    def train(self, loader, n=0, other=None):
        for epoch in range(3):
            n = 0
            running = 0.0
            for step in loader:  # here
{body}
            n = -1
"""
NAME = "<a script of test_counters>"


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def outer() -> None:
        function()

    return outer


def code_of(code: CodeType, name: str) -> CodeType:
    """Return the code of the function of this name, which is nested somewhere in this code."""
    todo = [code]
    while todo[-1].co_name != name:
        todo += [one for one in todo.pop().co_consts if isinstance(one, CodeType)]
    return todo[-1]


def found_in(body: str, source: str = MODULE, function: str = "train", sees: Any = None) -> Loop:
    """Return what is found about a loop with this body, in the method of a class."""
    text = source.replace("{body}", textwrap.indent(textwrap.dedent(body).strip(), " " * 16))
    linecache.cache[NAME] = (len(text), None, text.splitlines(keepends=True), NAME)
    space: dict[str, Any] = {"decorated": decorated}
    module = compile(text, NAME, "exec")
    exec(module, space)
    line = next(at for at, one in enumerate(text.splitlines(), 1) if one.endswith("# here"))
    code = module if function == "<module>" else code_of(module, function)

    trainer = object.__new__(space["Trainer"])

    def look(place: Place) -> Any:
        if sees is not None:
            return sees(place)
        return place.found(trainer if place.root == "self" else space.get(place.root, NOTHING))

    return counters.of_loop(code, line, space, look)


@pytest.mark.parametrize(
    ("body", "local", "attributes", "module"),
    [
        ("n += 1", "n", "", ""),
        ("n = n + 1", "n", "", ""),
        ("n = 1 + n", "n", "", ""),
        ("n = n + step + 1\nrunning = 0.9 * running + 0.1 * step.item()", "n running", "", ""),
        ("n = (n + 1) % 4\nrunning = min(running, step.loss)", "n running", "", ""),
        ("n = step(n)\nrunning = step.loss(running)", "", "", ""),
        ("n: int = n + 1\n[running, other] = running + 1, step", "n running", "", ""),
        ("total = 0\ntotal += 1\nhelper()", "total", "", "total"),  # a variable of the function and one of the module
        ("if step:\n    norm = clip(step)\n    n += 1\nif n:\n    print(norm)", "n", "", ""),
        ("if step:\n    norm = clip(step)\n    n += 1", "n", "", ""),
        ("n -= 1\nrunning *= 0.5", "n running", "", ""),
        ("with step as batch:\n    self.steps += 1", "", "steps", ""),
        ("if step:\n    n += 1\nelse:\n    running += step.loss", "n running", "", ""),
        ("try:\n    n += 1\nexcept ValueError as error:\n    pass\nfinally:\n    running += 1", "n running", "", ""),
        ("match step:\n    case 1:\n        n += 1", "n", "", ""),
        ("for at in step:\n    n += at", "n", "", ""),
        ("other.count += 1\nother[0] += 1", "", "", ""),
        ("loss = step.loss\nn += loss", "n", "", ""),
        ("helper()", "", "", "total"),
        ("other = [helper() for one in step]", "", "", "total"),
        ("behind()", "", "", "hidden"),
        ("outer()", "", "", "deep"),
        ("self.train_step(step)", "", "seen", ""),
        ("def inner():\n    n = 0\n    n += 1\ninner()", "", "", ""),
        ("f = lambda: helper()", "", "", ""),
        ("n = 0 if step else n + 1", "n", "", ""),
        ("n += 1\nif n == 4:\n    step.optimizer()\n    n = 0", "n", "", ""),
        ("if n == 4:\n    running = n = -1\nn += 1", "n", "", ""),
        ("n += 1\nm = [n for n in step]", "n", "", ""),
        ("n, self.seen = n + 1, self.seen + 2", "n", "seen", ""),
        ("n += 1\nif n == 4:\n    n, running = 0, 0.0", "n", "", ""),
        ("n += 1\nn, other = 0, step", "n", "", ""),
        ("pass", "", "", ""),
    ],
)
def test_what_is_counted_in_a_loop(body: str, local: str, attributes: str, module: str) -> None:
    found, doubtful, *_ = found_in(body)
    doubtful.elsewhere, doubtful.methods = [], []
    assert (found, doubtful) == (Counters(local.split(), attributes.split(), module.split()), Counters())


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("if n == len(step):\n    other = iter(step)\n    n = 0\nn += 1\nnext(other)", "n"),  # an iterator's position
        ("n += 1\nn = step.number", "n"),
        ("try:\n    x = next(other)\nexcept StopIteration:\n    n += 1\n    other = iter(step)", "n"),
        ("if running > 3:\n    n += 1\n    other = load(n)\nuse(other)", "n"),
        ("if step:\n    self.steps += 1\n    self.it = iter(step)\nnext(self.it)", "steps"),
        ("n += 1\nmatch step:\n    case [n]:\n        pass", "n"),
        ("n += 1\nimport os.path as n", "n"),
        ("n += 1\nother = locals()", "n"),
        ("n += 1\nother = vars()", "n"),
        ("for n in step:\n    n += 1", "n"),
        ("n += 1\nif (n := step):\n    pass", "n"),
        ("n += 1\ndel n", "n"),
        ("with step as n:\n    n += 1", "n"),
        ("n += 1\nn, other = step", "n"),
        ("helper()\nsets()", "total"),
        ("self.train_step(step)\nself.reset()", "seen"),
    ],
)
def test_what_is_set_together_with_other_things_is_left_alone(body: str, name: str) -> None:
    found, doubtful, *_ = found_in(body)
    assert name in (*doubtful.local, *doubtful.attributes, *doubtful.module, *doubtful.unread)
    assert name not in (*found.local, *found.attributes, *found.module)


def test_a_loop_of_the_module_has_its_variables() -> None:
    source = "count = 0\nfor step in [1]:  # here\n    count += 1\nclass Trainer: pass\n{body}"
    assert found_in("", source.replace("{body}", ""), "<module>")[0] == Counters([], [], ["count"])


@pytest.mark.parametrize(
    ("body", "carries"),
    [
        ("step.hook(lambda: other.append(1))\nother.clear()\nstep.train(len(other))", False),
        ("other.append(1)\nother.clear()\nstep.train(len(other))", False),
        ("other.append(1)\nstep.train(len(other))\nother.clear()", True),
        ("other.append(1)\nif step:\n    other.clear()\nstep.train(len(other))", True),
        ("other.append(1)\nn = sum(other)\nother.clear()\nstep.train(n)", True),
        ("other.copy_(0.9 * other + step)\nstep.train(other)", True),
    ],
)
def test_what_is_emptied_before_it_is_used_is_not_handed_on(body: str, carries: bool) -> None:
    assert [place.text for place in found_in(body).carried] == (["other"] if carries else [])


@pytest.mark.parametrize(
    ("header", "numbers", "settable"),
    [
        ("step in session.steps(list(zip(n, other)))", False, True),
        ("step in session.steps([*enumerate(n)])", False, True),
        ("i, step in enumerate(session.steps([*zip(n, other)]))", True, True),
        ("i, step in zip(count(), session.steps(n))", True, False),
        ("i, step in steps(zip(count(), session.steps(n)))", True, False),
        ("i, step in enumerate(logged(session.steps(n)))", True, True),
    ],
)
def test_what_the_header_gives_beside_the_steps(header: str, numbers: bool, settable: bool) -> None:
    source = MODULE.replace("step in loader:", f"{header}:")
    body = "i = 0\none(step, i)" if not numbers else "with step as batch:\n    one(batch, i)"
    found = found_in(body, source)
    assert (found.numbered.used, found.numbered.settable) == (numbers, settable)


@pytest.mark.parametrize("source", ["", "def other(): pass\n", "this is no Python", "def train(:\n"])
def test_code_without_a_source_has_no_counters(source: str) -> None:
    linecache.cache[NAME] = (len(source), None, source.splitlines(keepends=True), NAME)
    code = compile("def train(n):\n    for step in n:\n        n += 1\n", NAME, "exec")
    assert counters.of_loop(code_of(code, "train"), 2, {}, lambda _: NOTHING)[:2] == (Counters(), Counters())


def test_an_expression_of_many_parts_costs_the_counters_only() -> None:
    counts, doubtful, *_ = found_in(f"n += 1\nother = {' + '.join(['step'] * 950)}")
    assert counts in (Counters(["n"]), Counters()) and doubtful == Counters()


def test_nothing_of_the_scripts_is_run_or_asked() -> None:
    """A name may refer to an object with its own __getattribute__."""

    class Proxy:
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError("not bound")

    source = "def train(n):\n    for step in n:\n        proxy()\n        n += 1\n"
    linecache.cache[NAME] = (len(source), None, source.splitlines(keepends=True), NAME)
    space: dict[str, Any] = {"proxy": Proxy()}
    exec(compile(source, NAME, "exec"), space)
    train = space["train"]
    assert type(train) is FunctionType
    assert counters.of_loop(train.__code__, 2, space, lambda one: space.get(one.root, NOTHING))[0] == Counters(["n"])


class Meter:
    """Something that the loop looks at."""

    count = 0


def test_no_object_of_the_script_is_kept_alive() -> None:
    seen = list[weakref.ref[Meter]]()

    def sees(_: Place) -> Meter:
        found = Meter()
        seen.append(weakref.ref(found))
        return found

    gc.disable()
    try:
        found_in("self.meter.update(step)\nother.count += self.meter.mean\nhelper()", sees=sees)
        assert seen and not any(one() for one in seen)
    finally:
        gc.enable()
