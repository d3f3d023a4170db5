"""Tests in which objects nobody can see, by their classes alone."""

from __future__ import annotations

import array
import collections
import ctypes
import datetime
import decimal
import enum
import functools
import hashlib
import io
import itertools
import logging
import mmap
import queue
import random
import re
import signal
import sqlite3
import struct
import threading
import types
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from taskd.state.sealed import sealed_in


class Plain:
    """An object of a script."""


class Slotted:
    """An object without a dict."""

    __slots__ = ("kept",)


class Own(sqlite3.Connection):
    """A class of a script around one in which nobody can see."""


class Color(enum.Enum):
    """An enumeration."""

    RED = 1


class HasOne:
    """An object with an attribute in which nobody can see."""

    def __init__(self) -> None:
        self.packer = zlib.compressobj()


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (lambda: sqlite3.connect(":memory:"), "sqlite3.Connection"),
        (lambda: sqlite3.connect(":memory:").cursor(), "sqlite3.Cursor"),
        (lambda: Own(":memory:"), "tests.train.test_sealed.Own"),
        (HasOne, "zlib.Compress"),
        (hashlib.blake2b, "_blake2.blake2b"),
        (io.BytesIO, "_io.BytesIO"),
        (io.StringIO, "_io.StringIO"),
        (lambda: mmap.mmap(-1, 10), "mmap.mmap"),
        (ctypes.c_int, "ctypes.c_int"),
        (lambda: array.array("i"), "array.array"),
        (Future, "concurrent.futures._base.Future"),
    ],
)
def test_nobody_can_see_in_these(made: Any, name: str) -> None:
    value = made()
    assert {*sealed_in(value).values()} == {name}


@pytest.mark.parametrize(
    "made",
    [
        *(
            Plain,
            Slotted,
            lambda: Color.RED,
            lambda: signal.SIGKILL,
            lambda: Plain,
            lambda: sqlite3,
            lambda: len,
            lambda: Plain.__init__,
        ),
        *(dict, list, set, collections.deque, collections.Counter, lambda: collections.defaultdict(list)),
        *(lambda: bytearray(b"a"), lambda: memoryview(b"a"), lambda: range(3)),
        *(lambda: decimal.Decimal(1), datetime.datetime.now, lambda: re.compile("a"), lambda: struct.Struct("i")),
        *(random.Random, itertools.count, lambda: functools.partial(print), lambda: types.SimpleNamespace(a=1)),
        *(threading.Lock, threading.RLock, threading.Event, threading.local, threading.Thread, queue.Queue),
        *(lambda: logging.getLogger("x"), lambda: ThreadPoolExecutor(1), lambda: ValueError("x")),
        *(lambda: torch.nn.Linear(1, 1), lambda: torch.ones(1), torch.Generator, lambda: torch.amp.GradScaler("cpu")),
        *(lambda: torch.optim.SGD([torch.ones(1)], 0.1), lambda: np.ones(2), np.random.RandomState),
        np.random.default_rng,
    ],
)
def test_others_keep_nothing_or_are_seen(made: Any) -> None:
    assert not sealed_in(made())


def test_a_file_passes_on_what_it_gets(tmp_path: Any) -> None:
    with (tmp_path / "lines").open("w") as file:
        assert not sealed_in(file)
