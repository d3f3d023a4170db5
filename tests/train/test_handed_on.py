"""Tests which loops are reported to hand something on from step to step, on scripts as people write them.

Each script runs eight steps in one process. Its frame is inspected by the real code, and only the session is a fake.
"perhaps" holds what would be reported at the first repair.
"""

from __future__ import annotations

import itertools
import linecache
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from taskd.state.coverage import Coverage
from taskd.state.local import LocalState
from taskd.state.replica import Replica

_number = itertools.count()
BEFORE = """
import copy, math, sys, torch, torch.nn.functional as F
from collections import deque
from dataclasses import dataclass
from torch import nn
def cell(x, h):
    return x, torch.tanh(x.mean(0) + (0 if h is None else h))
"""
LOOP = """
def main(loader=loader):
{before}
    for step in session.steps(loader):
        with step as (x, y):
{body}
"""
EPOCHS = """
def main():
{before}
    for epoch in range(2):
        for step in session.steps(loader):
            with step as (x, y):
{body}
"""
METHOD = """
class Trainer:
    def __init__(self):
        self.hidden, self.total, self.loss, self.state, self.meters = torch.zeros(4), 0.0, None, {}, {"a": 0.0}
    def cell(self, x, h):
        return x, torch.tanh(x.mean(0) + h)
{before}
    def fit(self):
        for step in session.steps(loader):
            with step as (x, y):
{body}
def main():
    Trainer().fit()
"""


class Played:
    """A fake session that inspects the loop each time it hands out a step."""

    def __init__(self) -> None:
        self.replica = Replica()
        self.local = LocalState(self.replica)
        self.coverage = Coverage(self.replica, self.local.objects)
        self.said: list[str] = []
        self.perhaps: set[str] = set()
        self.number = 0

    def steps(self, loader: Any) -> Iterator[Any]:
        """Yield a step for each batch."""
        self.coverage.look()
        for batch in loader:
            variables, known = self.local.variables, self.local.known
            self.said += self.coverage.hands_on(variables.held(known))
            self.perhaps |= {*self.coverage.perhaps(variables.held(known, True)), *variables.doubtful(known())}
            yield Handed(self.number, batch)
            self.number += 1
        self.said += self.coverage.hands_on(self.local.variables.held(self.local.known), closely=True)


class Handed:
    """A step of the fake session."""

    rehearsal = False

    def __init__(self, number: int, batch: Any) -> None:
        self.number, self.batch = number, batch

    def __enter__(self) -> Any:
        return self.batch

    def __exit__(self, *_: object) -> None:
        pass


def run(source: str) -> Played:
    """Run this script. Returns the fake session, with all that it has found out about the script."""
    name = f"<script {next(_number)} of test_handed_on>"
    text = BEFORE + source
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    torch.manual_seed(0)
    session, model = Played(), nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session.replica.models["model"], session.replica.optimizers["optimizer"] = model, optimizer
    loader = [(torch.randn(2, 4), torch.randn(2, 4)) for _ in range(8)]
    space = {"session": session, "model": model, "optimizer": optimizer, "loader": loader, "__name__": name}
    exec(compile(text, name, "exec"), space)
    space["main"]()
    return session


def built(template: str, before: str, body: str) -> str:
    """Return a script: `template` with this code before its loop and in the loop's body."""
    indents = (" " * 4, " " * (12 if template is LOOP else 16))
    found = template.replace("{before}", textwrap.indent(textwrap.dedent(before).strip() or "pass", indents[0]))
    return found.replace("{body}", textwrap.indent(textwrap.dedent(body).strip(), indents[1]))


NAMED = [
    ("hidden = torch.zeros(4)", "out, hidden = cell(x, hidden)\nmodel(out + hidden).mean().backward()", "hidden"),
    (
        "hidden = torch.zeros(4)",
        "hidden = hidden * 0.5\nout, hidden = cell(x, hidden)\nmodel(out + hidden).sum().backward()",
        "hidden",
    ),
    (
        "state = {'h': torch.zeros(4)}",
        "out, state['h'] = cell(x, state['h'])\nmodel(out + state['h']).sum().backward()",
        "state['h']",
    ),
    (
        "state = {'h': torch.zeros(4)}",
        "h = state['h']\nout, h = cell(x, h)\nmodel(out + h).sum().backward()\nstate['h'] = h.detach()",
        "state['h']",
    ),
    (
        "ema = {k: v.detach().clone() for k, v in model.named_parameters()}",
        """
            for k, v in ema.items():
                ema[k] = 0.9 * v + 0.1 * dict(model.named_parameters())[k].detach()
            (model(x) - F.linear(x, ema['weight'])).mean().backward()
        """,
        "ema[k]",
    ),
    (
        "ema = {k: v.detach().clone() for k, v in model.named_parameters()}",
        """
            for k, v in model.state_dict().items():
                ema[k] = 0.9 * ema[k] + 0.1 * v
            (model(x) - F.linear(x, ema['weight'])).mean().backward()
        """,
        "ema[k]",
    ),
    (
        "queue, ptr = torch.zeros(8, 4), 0",
        "(model(x) @ queue.T).mean().backward()\nqueue[ptr:ptr + 2] = x\nptr = (ptr + 2) % 8",
        "queue[ptr:ptr + 2]",
    ),
    ("bank = torch.zeros(8, 4)", "(model(x) @ bank.T).mean().backward()\nbank[y.argmax(1)] = x", "bank[y.argmax(1)]"),
    (
        "state = [torch.zeros(4), torch.zeros(4)]",
        "state[0] = 0.9 * state[0] + x.mean(0)\nmodel(x + state[0]).sum().backward()",
        "state[0]",
    ),
    ("state = [torch.zeros(4)]", "state[0].mul_(0.9).add_(x[0])\nmodel(x + state[0]).sum().backward()", "state[0]"),
    ("t = torch.zeros(4)", "t[0] *= 0.9\nt[0] += x.sum()\nmodel(x * t).sum().backward()", "t[0]"),
    (
        "hidden = torch.zeros(4)",
        """
            out, hidden = cell(x, hidden)
            model(out + hidden).sum().backward()
            if step.number in (0, 4):
                hidden = None
        """,
        "hidden",
    ),
    ("prev = cur = torch.zeros(4)", "prev = cur\ncur = x.mean(0)\nmodel(x + prev).sum().backward()", "cur"),
    (
        "mems = [torch.zeros(4)]",
        "mems.append(x[0])\nmems = mems[-3:]\nmodel(torch.stack(mems)).sum().backward()",
        "mems",
    ),
    (
        "mems = deque([torch.zeros(4)])",
        "mems.append(x[0])\nmems.popleft()\nmodel(torch.stack([*mems])).sum().backward()",
        "mems",
    ),
    (
        "scale = torch.ones(())",
        "norm = torch.nn.utils.clip_grad_norm_(model.parameters(), scale)\nscale = 0.9 * scale + 0.1 * x.norm()",
        "scale",
    ),
    (
        "scale = torch.ones(())",
        "for group in optimizer.param_groups:\n    group['lr'] = float(scale)\nscale = 0.9 * scale + 0.1 * x.norm()",
        "scale",
    ),
    (
        "h = None",
        "if step.number % 4 == 0:\n    h = torch.zeros(4)\nout, h = cell(x, h)\nmodel(x + h).sum().backward()",
        "h",
    ),
]
"""The code before the loop, the code in the loop, and the name that is reported as handed on."""


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("before", "body", "name"), NAMED)
def test_what_a_loop_hands_on_is_named(before: str, body: str, name: str) -> None:
    said = run(built(LOOP, before, body)).said
    assert said and f"hands {name} on from step to step" in said[0], said


HEALTHY = [
    ("", "optimizer.zero_grad()\nloss = F.mse_loss(model(x), y)\nloss.backward()\noptimizer.step()"),
    (
        "total = 0.0",
        "loss = model(x).mean()\nloss.backward()\ntotal += loss.detach()\nif step.number == 7:\n    print(total)",
    ),
    ("total = 0.0", "loss = model(x).mean()\nloss.backward()\ntotal = total + loss.detach()"),
    (
        "running = 0.0",
        """
            running += model(x).mean().detach()
            if step.number % 4 == 3:
                mean = running / 4
                print(mean)
                running = 0.0
        """,
    ),
    (
        "correct, total = torch.zeros(()), 0",
        "correct += (model(x) > 0).sum()\ntotal += len(x)\naccuracy = correct / total\nprint(f'{accuracy}')",
    ),
    ("stats = {'loss': 0.0}", "stats['loss'] += model(x).mean().detach()\nprint(stats['loss'] / 3)"),
    ("losses = {}", "losses['total'] = 0.0\nlosses['total'] += model(x).mean()\nlosses['total'].backward()"),
    ("confusion = torch.zeros(4, 4)", "confusion[y.argmax(1), model(x).argmax(1)] += 1"),
    (
        "losses = []",
        """
            losses.append(model(x).mean().detach())
            if len(losses) == 4:
                print(torch.stack(losses).mean())
                losses = []
        """,
    ),
    (
        "kind = 'mse'",
        """
            if kind == 'mse':
                loss = F.mse_loss(model(x), y)
            elif kind == 'l1':
                loss = F.l1_loss(model(x), y)
            loss.backward()
        """,
    ),
    (
        "extra = True",
        """
            loss = model(x).mean()
            if extra:
                aux = model(y).mean()
            if extra:
                loss = loss + aux
            loss.backward()
        """,
    ),
    ("", "for part in x.chunk(2):\n    loss = model(part).mean()\n    loss.backward()\nprint(loss.item())"),
    (
        "",
        """
            for part in x.chunk(2):
                loss = model(part).mean()
                loss.backward()
            value = loss.item() * 2
            optimizer.param_groups[0]['lr'] = value
        """,
    ),
    ("shown = None", "if shown is not None:\n    print(shown.item())\nshown = model(x).mean().detach()\nshown.sum()"),
    ("", "while True:\n    out = model(x)\n    if out is not None:\n        break\nout.mean().backward()"),
    (
        "",
        """
            try:
                loss = model(x).mean()
            except RuntimeError as error:
                if 'memory' in str(error):
                    continue
                else:
                    raise error
            loss.backward()
        """,
    ),
    (
        "",
        """
            batch = {k: v.to('cpu') for k, v in {'x': x}.items()}
            for k, v in batch.items():
                model(v).mean().backward()
        """,
    ),
    ("", "losses = {'a': model(x).mean()}\nloss = sum(loss for loss in losses.values())\nloss.backward()"),
    (
        "",
        """
            match {'x': x, 'y': y}:
                case {'x': a, 'y': b}:
                    a = a.to(torch.float64).float()
                    model(a).mean().backward()
        """,
    ),
    ("", "if (a := x * 2) is not None:\n    a = a.relu()\n    model(a).mean().backward()"),
    (
        "weights = torch.ones(4, dtype=torch.float64)",
        "weights = weights.to(x.dtype)\n(model(x) * weights).mean().backward()",
    ),
    ("mean = torch.ones(4)", "mean = mean.view(1, 4)\nmodel(x - mean).mean().backward()"),
    ("still = torch.zeros(2, 4)", "still.copy_(x)\nmodel(still).mean().backward()"),
    ("noise = torch.zeros(2, 4)", "noise.normal_()\nmodel(x + noise).mean().backward()"),
    (
        "",
        """
            for i, part in enumerate(x.chunk(2)):
                one = model(part).mean()
                if i == 0:
                    both = one
                else:
                    both = both + one
            both.backward()
        """,
    ),
    (
        "",
        """
            def closure():
                optimizer.zero_grad()
                loss = model(x).mean()
                loss.backward()
                return loss
            optimizer.step(closure)
        """,
    ),
    ("mask = None", "if mask is None:\n    mask = torch.ones(4)\nmodel(x * mask).mean().backward()"),
    (
        "best = None",
        """
            loss = model(x).mean()
            loss.backward()
            if best is None or loss < best:
                best = loss.detach()
                print('better', best)
        """,
    ),
    (
        "",
        """
            d_loss, g_loss = model(x).mean(), None
            d_loss.backward()
            if step.number % 2 == 0:
                g_loss = model(y).mean()
                g_loss.backward()
            message = f'{d_loss} {g_loss}'
            print(message)
        """,
    ),
    (
        "parts = iter(loader)",
        """
            try:
                a, b = next(parts)
            except StopIteration:
                parts = iter(loader)
                a, b = next(parts)
            model(a).mean().backward()
        """,
    ),
]
"""The code before the loop and the code in the loop."""


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("before", "body"), HEALTHY)
def test_a_healthy_loop_is_left_in_peace(before: str, body: str) -> None:
    assert run(built(LOOP, before, body)).said == []


NAMED_OF_OBJECTS = [
    ("", "out, self.hidden = self.cell(x, self.hidden)\nmodel(out + self.hidden).sum().backward()", "self.hidden"),
    (
        """
            def forward(self, x):
                h = self.hidden
                self.hidden = torch.tanh(x.mean(0) + h)
                return model(x + h)
        """,
        "self.forward(x).sum().backward()",
        "self.hidden",
    ),
    ("", "self.state.setdefault('a', torch.zeros(4)).mul_(0.9)\nself.hidden = 0.9 * self.hidden + x[0]", "self.hidden"),
    (
        "",
        """
            def closure():
                self.hidden = torch.tanh(x.mean(0) + self.hidden)
                loss = model(x + self.hidden).mean()
                loss.backward()
                return loss
            optimizer.step(closure)
        """,
        "self.hidden",
    ),
]
HEALTHY_OF_OBJECTS = [
    ("", "self.total += model(x).mean().detach()"),
    ("", "self.total = self.total + model(x).mean().detach()"),
    ("", "self.loss = model(x).mean()\nself.loss = self.loss / 2\nself.loss.backward()"),
    ("def add(self, more):\n    self.loss += more", "self.loss = model(x).mean()\nself.add(1)\nself.loss.backward()"),
    ("", "self.x, self.y = x, y\nself.x.mul_(2)\nmodel(self.x).mean().backward()"),
    ("", "self.meters['a'] += model(x).mean().detach()"),
    (
        "def set_input(self, x):\n    self.x = x",
        "self.set_input(x)\nself.loss = model(self.x).mean()\nself.loss.backward()",
    ),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("before", "body", "name"), NAMED_OF_OBJECTS)
def test_what_a_method_hands_on_is_named(before: str, body: str, name: str) -> None:
    said = run(built(METHOD, before, body)).said
    assert said and f"hands {name} on from step to step" in said[0], said


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("before", "body"), HEALTHY_OF_OBJECTS)
def test_a_healthy_trainer_is_left_in_peace(before: str, body: str) -> None:
    assert run(built(METHOD, before, body)).said == []


SHADOW = "ema = {k: v.detach().clone() for k, v in model.named_parameters()}"
OTHERS = {
    "a function that is given it": (
        """
def update(average, model):
    for k, p in model.named_parameters():
        average[k].mul_(0.9).add_(p.detach(), alpha=0.1)
""",
        SHADOW,
        "(model(x) - F.linear(x, ema['weight'])).mean().backward()\nupdate(ema, model)",
        "ema[k]",
    ),
    "an object of the script's": (
        """
class Average:
    def __init__(self, model):
        self.shadow = {k: v.detach().clone() for k, v in model.named_parameters()}
    def update(self, model):
        for k, p in model.named_parameters():
            self.shadow[k].mul_(0.9).add_(p.detach(), alpha=0.1)
""",
        "ema = Average(model)",
        "(model(x) - F.linear(x, ema.shadow['weight'])).mean().backward()\nema.update(model)",
        "ema.shadow[k]",
    ),
    "a dataclass": (
        """
@dataclass
class State:
    h: torch.Tensor
def advance(state, x):
    return State(torch.tanh(state.h + x.mean(0)))
""",
        "state = State(torch.zeros(4))",
        "state = advance(state, x)\nmodel(x + state.h).mean().backward()",
        "state",
    ),
    "a function inside": (
        "",
        """
            hidden = torch.zeros(4)
            def body(x):
                nonlocal hidden
                hidden = torch.tanh(x.mean(0) + hidden)
                return model(x + hidden)
        """,
        "body(x).mean().backward()",
        "hidden",
    ),
    "a module's own tensor": (
        """
class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.center = nn.Linear(4, 4), torch.zeros(4)
    def forward(self, x):
        self.center = 0.9 * self.center + 0.1 * x.mean(0)
        return self.inner(x - self.center)
""",
        "net = Centred()",
        "net(x).mean().backward()",
        "net.center",
    ),
    "a generator of the script's": (
        """
def mine():
    for step in session.steps(loader):
        yield step
session_steps = mine
""",
        "hidden = torch.zeros(4)\nclass Mine:\n    steps = staticmethod(lambda loader: mine())\nsession = Mine()",
        "out, hidden = cell(x, hidden)\nmodel(out + hidden).mean().backward()",
        "hidden",
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_others_do_to_it_is_seen(case: str) -> None:
    more, before, body, name = OTHERS[case]
    said = run(more + built(LOOP, before, body)).said
    assert said and f"hands {name} on from step to step" in said[0], said


@pytest.mark.parametrize(
    ("before", "body", "name"),
    [
        ("", "if step.number < 9:\n    aux = model(x).mean()\naux.backward()", "aux"),
        ("", "for part in x.chunk(2):\n    loss = model(part).mean()\n    break\nloss.backward()", "loss"),
        (
            "more = 1",
            "if more == 1:\n    h = x.mean(0)\nelif more == 2:\n    h = y.mean(0)\nmodel(x + h).mean().backward()",
            "h",
        ),
    ],
)
def test_what_hangs_on_conditions_is_said_after_a_repair(before: str, body: str, name: str) -> None:
    found = run(built(LOOP, before, body))
    assert name in found.perhaps or (found.said and f"hands {name} on" in found.said[0]), (found.perhaps, found.said)


BEST = """
    loss = model(x).pow(2).mean()
    if loss.item() < lowest:
        lowest, best = loss.item(), copy.deepcopy(model.state_dict())
"""
BEHIND = {
    "loaded": (BEST, "model.load_state_dict(best)", True),
    "loaded through another name": (BEST, "kept = best\nif kept is not None:\n    model.load_state_dict(kept)", True),
    "saved": (BEST, "torch.save(best, io.BytesIO())", True),
    "shown": (BEST, "print(sorted(best))", False),
    "set anew first": (BEST, "best = model.state_dict()\nmodel.load_state_dict(best)", False),
    "set in each step": ("best = copy.deepcopy(model.state_dict())", "model.load_state_dict(best)", False),
}
"""A loop's body, the code behind the loop, and whether `best` is named at the first repair."""


@pytest.mark.parametrize("case", BEHIND)
def test_what_some_steps_set_and_the_code_behind_the_loop_reads(case: str) -> None:
    body, behind, is_named = BEHIND[case]
    played = run(built(LOOP, "import io\nlowest, best = 9e9, None", body) + textwrap.indent(behind, "    ") + "\n")
    assert ("best" in played.perhaps) == is_named, played.perhaps
    assert not played.said, played.said


def test_a_registered_trainer_is_put_back() -> None:
    source = built(METHOD, "", NAMED_OF_OBJECTS[0][1]).replace(
        "    Trainer().fit()",
        "    trainer = Trainer()\n    session.local.objects['trainer'] = trainer\n    trainer.fit()",
    )
    assert run(source).said == []


def test_a_look_into_what_is_large_is_short() -> None:
    run(built(LOOP, "count = {i: 0 for i in range(300000)}", "count[step.number] += 1\nmodel(x * count[1])"))


def test_tensors_of_inference_and_of_other_threads_are_looked_at() -> None:
    body = (
        "with torch.inference_mode():\n    queue = torch.cat([x, queue])[:4]\nmodel(x + queue.mean(0).clone()).mean()"
    )
    said = run(built(LOOP, "queue = torch.zeros(4, 4)", body)).said
    assert not said or "hands queue on" in said[0]
