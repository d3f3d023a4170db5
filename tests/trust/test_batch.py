"""How a batch was when it was handed out: what is put back in place, and what has to be loaded once more."""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy
import pytest
import torch

from taskd.state.batch import MOST, Handed, digest
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


# ---- the digest of a batch


def jagged() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"x": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])},
        lambda: {"x": jagged(), "y": 1},
        lambda: [torch.ones(2).to_sparse(), torch.empty(3, device="meta")],
        lambda: (torch.arange(6).reshape(2, 3), ["a", "b"], b"c", 1.5, None),
        lambda: Sample(torch.ones(2), ["a"]),
    ],
)
def test_batches_that_are_made_alike_have_one_digest(make: Callable[[], Any]) -> None:
    assert digest(make()) == digest(make()) >= 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["a", "b"], ["a\nb"]),
        ([5], ["int 5"]),
        ([torch.ones(2)], [torch.ones(2, dtype=torch.float64)]),
        ([torch.ones(2)], [torch.zeros(2)]),
        ([torch.ones(2, 1)], [torch.ones(1, 2)]),
        ({"a": 1}, {"b": 1}),
        ([1], [True]),
        ((1,), [1]),
    ],
)
def test_other_batches_have_another_one(one: Any, other: Any) -> None:
    assert digest(one) != digest(other)
