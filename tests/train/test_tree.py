"""State that goes to another process keeps its types, or is refused by name."""

from __future__ import annotations

import enum
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from taskd.errors import PeerError, UsageError
from taskd.state import tree


class Mode(enum.IntEnum):
    FAST = 1


class Name(str, enum.Enum):
    FIRST = "first"


class Switch(enum.Flag):
    ONE = 1
    TWO = 2


Range = namedtuple("Range", "low high")
KINDS = (
    *(None, True, 3, -(2**70), 0.1, "text", b"bytes", float("-inf")),
    *(Mode.FAST, Name.FIRST, Switch.ONE | Switch.TWO, Range(1, Mode.FAST)),
    *(numpy.float64(0.1), numpy.int16(3), numpy.bool_(True)),
    *([1, (2, {3})], {"a": {4: frozenset({5})}}, torch.Size([2, 3]), torch.float16, torch.device("cpu")),
    Path("a/b"),
)


@pytest.mark.parametrize("value", KINDS, ids=repr)
def test_what_comes_out_is_what_went_in(value: Any) -> None:
    came = tree.unflatten(*tree.flatten(value))
    assert came == value and type(came) is type(value)
    again = tree.unpack(b"".join(tree.pack([value, torch.ones(2)])))
    assert type(again[0]) is type(value) and again[1].tolist() == [1, 1]


def test_tensors_are_found_inside_of_a_named_tuple() -> None:
    came = tree.unpack(b"".join(tree.pack({"ends": Range(torch.zeros(1), torch.ones(1))})))
    assert type(came["ends"]) is Range and came["ends"].high.item() == 1


def test_a_class_that_nobody_else_can_find_is_refused() -> None:
    class Inner(enum.Enum):
        ONE = 1

    with pytest.raises(UsageError, match=r"settings\['mode'\] is a .*Inner, which another process cannot find"):
        tree.flatten({"mode": Inner.ONE}, "settings")


@pytest.mark.parametrize("name", ["os.system", "builtins.list", "builtins.tuple", "nowhere.Class", "enum.no.such"])
@pytest.mark.parametrize("tag", ["e", "N"])
def test_nothing_else_is_made_of_a_name(name: str, tag: str) -> None:
    module, _, attribute = name.partition(".")
    text, _ = tree.flatten(Mode.FAST if tag == "e" else Range(1, 2))
    for old, new in ((__name__, module), (("Mode" if tag == "e" else "Range"), attribute)):
        text = text.replace(_text(old), _text(new), 1)
    before = set(sys.modules)
    with pytest.raises(PeerError, match="which this process does not know"):
        tree.unflatten(text, [])
    assert set(sys.modules) == before


def _text(value: str) -> bytes:
    """A short text as msgpack writes it."""
    data = value.encode()
    return bytes([0xA0 + len(data)]) + data if len(data) < 32 else bytes([0xD9, len(data)]) + data
