"""What forwards hand on to later ones in plain attributes of a module, by their source."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from taskd.state.carrying import carried_by


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


class OwnState(Recurrent):
    def get_extra_state(self) -> Any:
        return self.hidden


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (Recurrent, {"hidden"}),
        (Inherits, {"hidden"}),
        (Calling, {"hidden"}),
        (InPlace, {"hidden"}),
        (Keyed, {"states"}),
        (Attends, set()),
        (Reads, set()),
        (OwnState, set()),
        (lambda: nn.Linear(2, 2), set()),
    ],
)
def test_what_a_forward_finds_as_an_earlier_one_has_left_it(kind: Any, found: set[str]) -> None:
    assert carried_by(kind()).handed_on == found
