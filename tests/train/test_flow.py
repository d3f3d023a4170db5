"""Tests what a loop is found to hand on from one step to the next, on sources as people write them."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

from taskd.state.flow import Flow
from taskd.state.places import NOTHING
from taskd.state.reach import Reach
from taskd.state.sources import LOOPS
from tests.train.test_counters import found_in


@pytest.mark.parametrize(
    ("body", "carried"),
    [
        ("other, n = self.model(step, n)\nother.backward()", "n"),  # a hidden state
        ("n = tuple(one.detach() for one in n)\nother, n = self.model(step, n)\nother.backward()", "n"),
        ("running = 0.9 * running + 0.1 * step.loss()", ""),
        ("running = 0.9 * running + 0.1 * step.loss()\n(step.loss() / running).backward()", "running"),
        ("(step.loss() / running).backward()\nrunning = 0.9 * running + 0.1 * step.loss()", "running"),
        ("running += step.loss()\nprint(running)", ""),
        ("print(other)\nother = step.loss()", ""),
        ("if other is not None and step.loss() > other:\n    step.skip()\nother = step.loss()", "other"),
        ("other = step.loss()\nother = other + step.more()\nother.backward()", ""),
        ("with step as other:\n    other = other / 255\n    self.run(other, n)\n    n = other", "n"),
        ("if step:\n    other = 1\nelse:\n    other = 2\nprint(other, self.run(other))", ""),
        ("if step:\n    other = 1\nself.run(other)", "other"),
        ("if not step:\n    continue\nelse:\n    other = step.loss()\nself.run(other)", ""),
        ("try:\n    other = step.loss()\nexcept ValueError:\n    continue\nself.run(other)", ""),
        ("try:\n    other = step.loss()\nexcept ValueError:\n    pass\nself.run(other)", "other"),
        ("for at in step:\n    other = at\n    self.run(other)", ""),
        ("while step:\n    self.run(other)\n    other = step.loss()", "other"),
        ("match step:\n    case 1:\n        other = 1\n    case _:\n        other = 2\nself.run(other)", ""),
        ("self.hidden = self.model(step, self.hidden)\nself.hidden.backward()", "self.hidden"),
        ("self.loss = step.loss()\nself.loss.backward()", ""),
        ("self.both(step)\nself.run(self.hidden)", ""),
        ("helper()\nself.run(total)", "total"),
        ("n = self.after(n)\nself.run(n)", "n"),
        ("lists = [n for n in step]\nn = 1", ""),
        ("other.mul_(0.9).add_(step)\nself.run(other)", "other"),
        ("for name, one in other.items():\n    one.mul_(0.9)\nself.run(other)", "other"),
        (
            "for mine, its in zip(self.averages, self.model.parameters()):\n    mine.lerp_(its, 0.1)",
            "self.averages self.model",
        ),
        ("torch._foreach_mul_(other, 0.9)\nself.run(other)", "other"),
        ("other['a'] = 0.9 * other['a'] + step\nself.run(other)", "other['a']"),
        ("self.averages['a'] *= 0.9", "self.averages['a']"),
        ("with step as batch:\n    batch['x'] = batch['x'] / 255\n    batch['x'].clamp_(0, 1)", ""),
        ("for group in self.optimizer.param_groups:\n    group['lr'] *= 0.9", "self.optimizer.param_groups"),
        ("noise = step.noise()\nnoise.clamp_(0, 1)", ""),
        (
            "setattr(self, 'hidden', self.model(step, getattr(self, 'hidden', None)))\nself.hidden.backward()",
            "self.hidden",
        ),
        ("getattr(getattr(self, 'hidden'), 'loss', 0).backward()\nself.hidden = step", "self.hidden"),
    ],
)
def test_what_is_handed_on(body: str, carried: str) -> None:
    assert {place.text.partition("[...]")[0] for place in found_in(body).carried} == {*carried.split()}


@pytest.mark.parametrize(
    ("body", "told", "asked"),
    [
        ("self.base.execute(step)\nself.run(self.base.ask(1).one())", "self.base.execute", "self.base.ask"),
        ("self.base.cursor().execute(step)", "self.base.cursor", ""),
        ("n = self.base.cursor()\nn.execute(step)", "self.base.cursor", ""),
        ("n = self.base.cursor()\nn.execute(step)\nother = n.one()\nprint(other)", "self.base.cursor", ""),
        (
            "n = self.base.cursor()\nn.execute(step)\nother = n.one()\nother.backward()",
            "self.base.cursor",
            "self.base.cursor",
        ),
        ("n = self.base.open().more()\nn.add(step)", "self.base.open", ""),
        (
            "with self.base.open() as n:\n    n.add(step)\nself.run(self.base.total())",
            "self.base.open",
            "self.base.total",
        ),
        (
            "library.add(self.base, step)\nself.run(library.ask(self.base))",
            "library.add self.base",
            "library.ask self.base",
        ),
        ("n = self.base\nn.add(step)\nself.run(n.total())", "self.base self.base.add", "self.base self.base.total"),
        ("n = self.base.add\nn(step)", "self.base.add", ""),
        ("n = other if step else self.base\nn.add(step)", "other self.base", ""),
        ("for n in self.all:\n    n.add(step)", "self.all[...].add", ""),
        ("[other.add(one) for one in step]\n_ = other.less(step)", "other.add other.less", ""),
        ("other.add(step)\nif other.total() > 3:\n    step.skip()", "other.add", "other.total"),
        ("other.add(step)\nprint(other.total())", "other.add", ""),  # only shown
        ("n = self.base.get(step)\nself.all.append(n)", "self.all.append", ""),  # only kept
        ("n = self.base.get(step)\nn.append(1)\nself.run(n)", "", "self.base.get"),  # a list of its own
        ("n = self.all\nn.append(1)\nself.run(n)", "self.all self.all.append", ""),
        ("library.save(self.base)\nself.run(self.base.ask())", "", "self.base.ask"),
        ("n = other.read()\nself.all.append(round(n))\n(n * step).backward()", "self.all.append", "other.read"),
        (
            "n = torch.tensor(other.read())\nself.scaler.scale(n).backward()",
            "",
            "other.read self.scaler.scale torch.tensor",
        ),
        ("self.base.save(step)\nself.run(self.base(1))", "", "self.base"),  # saving changes nothing
        ("other.add(step)\nself.run(other.to_value())", "other.add", "other.to_value"),
        ("other.add(step)\nother.flush()\nn = other.flush()\nself.run(n)", "other.add", "other.flush"),
    ],
)
def test_what_is_told_and_asked(body: str, told: str, asked: str) -> None:
    dealt = found_in(body).dealt
    assert {place.text for place in dealt.told} - {"print", "self.run"} == {*told.split()}
    assert {place.text for place in dealt.asked} == {*asked.split()}


def test_an_underscore_that_is_read_later_is_a_variable() -> None:
    found = found_in("_ = self.after(other)\nother = _\n_.backward()")
    assert {place.text for place in found.carried} == {"other"}


@pytest.mark.parametrize(
    ("body", "perhaps"),
    [
        ("for at in step:\n    other = at\nself.run(other)", "other"),
        ("self.early(step)\nself.run(self.hidden)", "self.hidden"),
        ("if n == 1:\n    other = 1\nif n == 1:\n    self.run(other)", "other"),
        ("if n == 1:\n    other = 1\nelif n == 2:\n    other = 2\nself.run(other)", "other"),
        (
            "for at in step:\n    if at == 0:\n        other = at\n    else:\n        other = other + at\nother.run()",
            "other",
        ),
    ],
)
def test_what_hangs_on_conditions(body: str, perhaps: str) -> None:
    found = found_in(body)
    assert ({one.text for one in found.perhaps}, {one.text for one in found.carried}) == ({*perhaps.split()}, set())


@pytest.mark.parametrize("module", ["argparse", "ast", "heapq", "inspect", "json.decoder", "tarfile", "textwrap"])
def test_whatever_stands_in_a_loop_is_followed(module: str) -> None:
    """Each loop of these modules of the standard library is followed to its end."""
    found = importlib.util.find_spec(module)
    assert found is not None and found.origin is not None
    tree = ast.parse(Path(found.origin).read_text())
    reach = Reach(test_whatever_stands_in_a_loop_is_followed.__code__, {}, lambda _: NOTHING)
    homes = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.Module))]
    for home, loop in ((one, loop) for one in homes for loop in ast.walk(one) if isinstance(loop, LOOPS)):
        hopeful, other = Flow(reach, True), Flow(reach, False)
        hopeful.loop(home, loop)
        other.loop(home, loop)
        assert hopeful.used <= hopeful.handed_on and other.used <= other.handed_on


@pytest.mark.parametrize(
    ("body", "guards"),
    [
        ("if not other:\n    self.register()\n    other = True", "other"),
        ("if step and not other:\n    other = True\n    raise ValueError", "other"),
        ("if other and step.loss() < 1:\n    other = False", ""),  # a phase that ends
        ("if other and step.loss() < 1:\n    print('over')\n    other = False", ""),
        ("if step:\n    self.register()\n    other = True", ""),
        ("if not self.done:\n    self.register()\n    self.done = True", "self.done"),
        ("if n:\n    self.register()\nelif not other:\n    self.register()\n    other = True", "other"),
    ],
)
def test_what_guards_something_that_is_done_once(body: str, guards: str) -> None:
    assert [place.text for place in found_in(body).guards] == ([guards] if guards else [])
