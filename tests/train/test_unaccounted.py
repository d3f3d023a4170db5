"""Which tensors nobody accounts for, and what they are called (state/unaccounted.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from taskd.state.leftover import memory_of
from taskd.state.unaccounted import Census, name_of, reached


class Holder:
    """Holds anything."""

    def __init__(self, **what: Any) -> None:
        vars(self).update(what)


def found(census: Census, accounted: set[int] = frozenset(), places: set[int] = frozenset()) -> set[int]:  # type: ignore[assignment]
    return {id(one) for one in census.left(places, accounted)}


def test_what_is_as_it_was_is_not_left() -> None:
    census, old = Census(), torch.ones(3)
    census.note(set())
    assert id(old) not in found(census)


def test_what_is_new_or_was_written_into_is_left() -> None:
    census, old, hidden = Census(), torch.ones(3), torch.ones(4)
    census.note(set())
    new = torch.ones(3)
    old.add_(1)
    hidden.data.mul_(2)  # no version tells that
    assert {id(new), id(old), id(hidden)} <= found(census)


def test_what_an_array_has_written_is_left() -> None:
    census, old = Census(), torch.ones(3)
    array = old.numpy()
    census.note(set())
    array[1] = 7.0
    assert id(old) in found(census)


def test_what_the_first_step_has_made_is_not_left_if_it_stays_so() -> None:
    census, moves = Census(), torch.ones(3)
    census.note(set())
    made = torch.ones(3)
    moves.add_(1)
    census.note(set())
    assert id(made) not in found(census)
    assert id(moves) in found(census)  # it is compared with what it was first


def test_what_is_seen_to_is_not_left() -> None:
    census = Census()
    census.note(set())
    one, registered, buffer = torch.ones(3), torch.ones(6), torch.ones(4)
    accounted, places = {id(one)}, {memory_of(registered)}
    assert not {id(one), id(registered)} & found(census, accounted, places)
    view = registered[3:]
    assert id(view) not in found(census, accounted, places)
    census.accept([buffer])
    assert id(buffer) not in found(census)
    buffer.add_(1)
    assert id(buffer) in found(census)


def test_strange_tensors_are_left_alone() -> None:
    census = Census()
    census.note(set())
    several = [torch.ones(3, device="meta"), torch.eye(3).to_sparse(), torch.ones(0), torch.empty(3).as_subclass(Own)]
    several.append(nn.LazyLinear(2).weight)
    assert not {*map(id, several)} & found(census)


class Own(torch.Tensor):
    """A class of its own."""


def generated() -> Iterator[torch.Tensor]:
    for _ in range(2):
        inside = torch.ones(3)
        yield inside


def test_what_is_in_containers_can_be_reached() -> None:
    one, two, three = (torch.ones(3) for _ in range(3))
    held = {"rows": [(one,)], "object": Holder(two=two), "function": lambda: three}
    assert [*map(id, reached([held]))] == [id(one)]
    assert {*map(id, reached([held], (__name__,)))} == {id(one), id(two)}


def test_what_was_freed_for_a_while_is_left_alone() -> None:
    census, freed = Census(), torch.ones(3)
    census.note(set())
    freed.untyped_storage().resize_(0)
    assert id(freed) not in found(census)
    Census().note(set())


def test_torch_may_swap_what_was_noted() -> None:
    census, one = Census(), torch.ones(3)
    census.note(set())
    torch.utils.swap_tensors(one, torch.zeros(3))
    assert one.tolist() == [0.0, 0.0, 0.0]


def test_a_name_says_where_a_tensor_is() -> None:
    holder, net = Holder(mean=torch.ones(3)), nn.Linear(3, 3)
    net.last = torch.ones(3)
    holder.parts = {"a": torch.ones(3)}
    outer = torch.ones(3)
    stream = generated()

    def closure(given: Any, *, more: Any = None) -> Any:
        return outer, given, more

    closure.__defaults__ = (torch.ones(3),)

    assert name_of(holder.mean) == "Holder.mean"
    assert name_of(net.last) == "Linear.last"
    assert name_of(holder.parts["a"]) == "Holder.parts['a']"
    assert "default of" in name_of(closure.__defaults__[0])
    assert "closure" in name_of(outer)
    assert name_of(next(stream)) == "a variable of the generator generated"
