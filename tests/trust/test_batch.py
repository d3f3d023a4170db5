"""How a batch was handed out: what is put back in place, and what has to be loaded once more."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch

from taskd.state.batch import MOST, Handed
from taskd.worker.feed import SPOILT, Feed


@dataclass
class Sample:
    x: Any
    words: list[str] = field(default_factory=list)


class Slotted:
    __slots__ = ("x",)


def test_containers_have_their_contents_again() -> None:
    x, y = torch.ones(2), torch.zeros(2)
    inner = Sample(x, ["a"])
    batch = {"x": x, "deep": [inner, (y, {"z": 1})], "more": collections.OrderedDict(a=1, b=2)}
    wrapped = collections.UserDict(batch)
    handed = Handed([batch, wrapped])
    batch["x"] = batch["x"] / 2
    batch["deep"][1][1]["z"] = 5
    inner.x, inner.words[0] = y, "b"
    inner.extra = 3  # type: ignore[attr-defined]
    wrapped["new"] = 1
    batch["more"].move_to_end("a")
    del batch["deep"][0]
    assert handed.put_back()
    assert batch["x"] is x and batch["deep"][0] is inner and batch["deep"][1][1] == {"z": 1}
    assert vars(inner) == {"x": x, "words": ["a"]} and "new" not in wrapped and [*batch["more"]] == ["a", "b"]


def test_what_was_written_into_or_cannot_be_seen_is_loaded_again() -> None:
    x = torch.ones(2)
    handed = Handed({"x": x})
    assert handed.put_back()
    x.mul_(2)
    assert not handed.put_back() and handed.written() == [x]
    slotted = Slotted()
    for strange in (numpy.ones(2), slotted, bytearray(2), iter([1])):
        assert not Handed([strange]).put_back()
    with torch.inference_mode():
        assert not Handed(torch.ones(1)).put_back()
    assert not Handed([[number] for number in range(MOST)]).put_back()
    assert Handed(["a", 1, 2.0, None, b"", torch.float32, torch.nn.Linear(1, 1)]).put_back()


def test_a_loader_without_another_copy_says_so() -> None:
    data = [torch.ones(2), torch.ones(2)]
    feed = Feed(data, 1)
    batch = feed.batch(0)
    assert feed.spoilt() == ""
    batch.mul_(2)
    assert feed.spoilt() == SPOILT
