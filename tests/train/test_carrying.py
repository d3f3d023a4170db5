"""What forwards hand on to later ones in plain attributes of a module, by their source."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from taskd.state.carrying import carried_in


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.zeros(2)

    def forward(self, x: Any) -> Any:
        y = x + self.hidden
        self.hidden = y.detach()
        return y


class Calling(Recurrent):
    def forward(self, x: Any) -> Any:
        self.remember(x)
        return x + self.hidden

    def remember(self, x: Any) -> None:
        self.hidden = 0.9 * self.hidden + x


class Inherits(Recurrent):
    """Has no forward of its own."""


class InPlace(Recurrent):
    def forward(self, x: Any) -> Any:
        self.hidden.mul_(0.9).add_(x)
        return x + self.hidden


class Keyed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.states = {"h": torch.zeros(2)}

    def forward(self, x: Any) -> Any:
        self.states["h"] = x + self.states["h"]
        return self.states["h"]


class Attends(Recurrent):
    def forward(self, x: Any) -> Any:
        self.hidden = x.softmax(-1)
        return x * self.hidden


class Reads(Recurrent):
    def forward(self, x: Any) -> Any:
        return x + self.hidden


class CallsSuper(Recurrent):
    def forward(self, x: Any) -> Any:
        return super().forward(x) * 2


class Held(nn.Module):
    """A part of a stack, whose forward hands on what this keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.h = torch.zeros(2)

    def forward(self, x: Any, h: Any) -> Any:
        return x + h


class Stack(nn.Module):
    def __init__(self, parts: int = 2) -> None:
        super().__init__()
        self.cells = nn.ModuleList(Held() for _ in range(parts))

    def forward(self, x: Any) -> Any:
        for cell in self.cells:
            x = cell(x, cell.h)
            cell.h = x.detach()
        return x


class LongStack(Stack):
    def __init__(self) -> None:
        super().__init__(12)


class Numbered(Stack):
    def forward(self, x: Any) -> Any:
        for at in range(len(self.cells)):
            x = self.cells[at](x, self.cells[at].h)
            self.cells[at].h = x.detach()
        return x


class Expects(nn.Module):
    """Reads what another module sets."""

    def __init__(self) -> None:
        super().__init__()
        self.expected = torch.zeros(2)

    def forward(self, x: Any) -> Any:
        return x - self.expected


class Feedback(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Expects()

    def forward(self, x: Any) -> Any:
        y = self.encoder(x)
        self.encoder.expected = y.detach()
        return y


class OwnState(Recurrent):
    def get_extra_state(self) -> Any:
        return self.hidden


class Nth(Stack):
    def forward(self, x: Any) -> Any:
        y = x + self.cells[-1].h
        self.cells[-1].h = y.detach()
        return y


class Steps(nn.Module):
    """Has a step in place of a forward."""

    def __init__(self, keeps: bool) -> None:
        super().__init__()
        self.h, self.keeps = torch.zeros(2), keeps


class Keeps(Steps):
    def step(self, x: Any) -> Any:
        self.h = x + self.h
        return self.h


class KeepsNot(Steps):
    def step(self, x: Any) -> Any:
        return x


class Wraps(nn.Module):
    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core

    def forward(self, x: Any) -> Any:
        return self.core.step(x)


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.jit.script(nn.Linear(2, 2))

    def forward(self, x: Any) -> Any:
        return nn.functional.linear(x, self.inner.weight)


def names_of(attributes: Any) -> set[str]:
    return {name.rpartition(".")[2] for name, *_ in attributes}


class Masks(Feedback):
    """Sets it before each use."""

    def forward(self, x: Any) -> Any:
        self.encoder.expected = x.mean(0)
        return self.encoder(x)


def test_what_another_forward_sets_before_each_use_is_no_reason() -> None:
    found = carried_in(Masks().named_modules())
    assert names_of(found.perhaps) == {"expected"} and not found.handed_on


def test_each_module_is_judged_by_what_is_in_it() -> None:
    model = nn.Sequential(Wraps(KeepsNot(False)), Wraps(Keeps(True)))
    assert [name for name, *_ in carried_in(model.named_modules()).handed_on] == ["1.core.h"]


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (Recurrent, {"hidden"}),
        (Inherits, {"hidden"}),
        (Calling, {"hidden"}),
        (InPlace, {"hidden"}),
        (Keyed, {"states"}),
        (CallsSuper, {"hidden"}),
        (Stack, {"h"}),
        (LongStack, {"h"}),
        (Numbered, {"h"}),
        (Nth, {"h"}),
        (Feedback, {"expected"}),
        (Scripted, set()),
        (Attends, set()),
        (Reads, set()),
        (OwnState, {"hidden"}),
        (lambda: nn.Linear(2, 2), set()),
    ],
)
def test_what_a_forward_finds_as_an_earlier_one_has_left_it(kind: Any, found: set[str]) -> None:
    assert names_of(carried_in(kind().named_modules()).handed_on) == found
