"""A training that a standby compiles and forgets, so that the compiler has done all that it does once in a process.

The compiler imports much of itself at the first use: of a layer, of a loop, of DistributedDataParallel, of a backward.
It also reads sources and asks the machine. This takes as long as the rest of a newcomer's compiling. So the training
has the kinds of layers that most models consist of, in the way in which they are mostly written. Its group of one rank
sends nothing and is gone at the end, and the generators are as before. It compiles nothing of the user's.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

WIDTH, HEADS, LETTERS = 8, 1, 4
"""So small that torch starts no thread for it: a standby with threads could not be forked."""


class _Block(nn.Module):
    """Attention as people write it themselves, and a small network."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.network = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.inner(self.norm(x)).view(batch, length, 3, HEADS, width // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.outer(mixed.transpose(1, 2).reshape(batch, length, width))
        return functional.dropout(x + self.network(x), 0.1, self.training)


class _Model(nn.Module):
    """Some of everything, with a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, WIDTH)
        self.blocks = nn.ModuleList([_Block()])
        self.layer = nn.TransformerEncoderLayer(WIDTH, HEADS, WIDTH, batch_first=True)
        self.last = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, LETTERS))

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        x = self.letters(letters)
        for block in self.blocks:
            x = block(x)
        found = self.last(torch.tanh(self.layer(x)))
        return functional.cross_entropy(found.view(-1, LETTERS), letters.view(-1))


def run() -> None:
    """Run the forward of the training, for which the compiler also makes the backward. Put back what that changes."""
    importlib.import_module("torch.testing._internal.distributed.fake_pg")  # registers the group that sends nothing
    with _unchanged(), _silent(), _alone():
        torch.compile(DistributedDataParallel(_Model()))(torch.tensor([[1]]))


@contextlib.contextmanager
def _unchanged() -> Iterator[None]:
    """Put back what the practice draws and sets, let the compiler forget it, and keep it out of the job's profile."""
    drawn, hook = torch.get_rng_state(), sys.excepthook
    try:
        with torch.compiler.config.patch(job_id=None):  # else the profile of rank 0 on disk would be written over
            yield
    finally:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch.set_rng_state(drawn)
        sys.excepthook = hook


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """What the compiler says about these layers concerns nobody."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Be a group of one rank that sends nothing. torch counts groups to name them, also those that come to nothing."""
    world: Any = distributed_c10d._world
    level, count = dist.get_debug_level(), world.group_count
    dist.set_debug_level(dist.DebugLevel.OFF)  # DETAIL puts a wrapper around each group, but not around this kind
    try:
        dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()
    finally:
        dist.set_debug_level(level)
        world.group_count = count
