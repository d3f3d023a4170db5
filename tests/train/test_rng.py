"""Tests the generators of a process: their state is captured however they were moved, and it can be put back."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from taskd.errors import PeerError
from taskd.state import rng, rng_global

MOVES: dict[str, Callable[[], Any]] = {
    "python": random.random,
    "python's normal": lambda: random.gauss(0, 1),
    "python's seed": lambda: random.seed(3),
    "python's state": lambda: random.setstate(random.Random(4).getstate()),
    "numpy": np.random.rand,
    "numpy's normal": np.random.randn,
    "numpy's seed": lambda: np.random.seed(3),
    "numpy's other seed": lambda: np.random.seed(5),
    "numpy's state": lambda: np.random.set_state(np.random.RandomState(4).get_state()),
    "torch": lambda: torch.rand(1),
}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before, own = rng.capture(), np.random.get_bit_generator()
    yield
    np.random.set_bit_generator(own)
    rng.forget(rng.OF_NUMPY, rng._followed.get(rng.OF_NUMPY, []))
    rng.restore(before)


def told() -> tuple[Any, ...]:
    """Return the states that the generators themselves report."""
    numpy = np.random.get_state(legacy=False)
    words = bytes(numpy["state"]["key"])
    rest = (numpy["state"]["pos"], numpy["has_gauss"], numpy["gauss"]) if "has_gauss" in numpy else ()
    return random.getstate(), words, rest, bytes(torch.get_rng_state().numpy())


def drawn() -> tuple[float, ...]:
    """Return the next numbers of each generator."""
    python, numpy = (random.gauss(0, 1), random.random()), (np.random.randn(), np.random.rand())
    return (*python, *numpy, float(torch.rand(1)), float(torch.randn(1)))


def test_however_they_are_moved() -> None:
    chosen, places = random.Random(1), list[tuple[bytes, tuple[Any, ...]]]()
    for _ in range(400):
        for name in chosen.sample([*MOVES], chosen.randint(0, 2)):
            MOVES[name]()
        places.append((rng.capture(), told()))
    for state, there in chosen.sample(places, 100):
        rng.restore(state)
        assert told() == there and rng.capture() == state


@pytest.mark.parametrize("name", MOVES)
def test_each_move_is_seen(name: str) -> None:
    random.gauss(0, 1)
    np.random.randn()  # now each generator has a spare normal number left
    for _ in range(2):
        before = rng.capture()
        assert rng.capture() == before
        MOVES[name]()
        assert rng.capture() != before or "seed" in name or "state" in name
    rng.restore(before)
    assert rng.capture() == before


def test_what_comes_next_is_what_came() -> None:
    for _ in range(3):
        state = rng.capture()
        first = drawn()
        rng.restore(state)
        assert drawn() == first
        random.gauss(0, 1)
        np.random.randn()


def test_a_spare_normal_that_comes_back_is_seen() -> None:
    np.random.seed(1)
    np.random.randn()  # the second normal of a pair does not change the words
    state = rng.capture()
    np.random.randn()
    rng.capture()
    rng.restore(state)
    assert rng.capture() == state


def test_another_kind_of_numpy_s_is_followed() -> None:
    np.random.set_bit_generator(np.random.PCG64(3))
    state = rng.capture()
    first = np.random.rand(3)
    rng.forget(rng.OF_NUMPY, rng._followed[rng.OF_NUMPY])  # as in a newcomer
    rng.restore(state)
    assert (np.random.rand(3) == first).all()


def test_a_memory_that_is_something_else_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = rng_global._Memory
    monkeypatch.setattr(rng_global, "_Memory", lambda at, size: memory(at + 8 if at else 0, size - 8))
    python, numpy = rng_global.Python(), rng_global.Numpy()
    for name in ("python", "numpy"):
        before = python.capture(), numpy.capture()
        MOVES[name]()
        assert (python.capture(), numpy.capture()) != before
    assert not python._memory.unchanged() and not numpy._memory.unchanged()


def test_bytes_that_are_none() -> None:
    state = rng.capture()
    for wrong in (b"", state[:-1], b"\xff" + state[1:]):
        with pytest.raises(PeerError):
            rng.restore(wrong)
