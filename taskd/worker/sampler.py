"""A batch sampler whose position is global: it is (epoch, step), and does not depend on this process' own progress.

Each batch of each rank is a function of the seed, the epoch and the number of the step. So a newcomer can start at any
step without loading the earlier batches. Every sample of an epoch is used exactly once, whichever ranks died meanwhile.
It draws from no global generator. Samples that do not fill a last batch on every rank are left out, because all ranks
must take the same number of steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized

import torch
from torch.utils.data import Sampler

from taskd.errors import UsageError


class StepSampler(Sampler[list[int]]):
    """Yields this rank's batches of indices, from `position` on. Give it to a DataLoader as `batch_sampler`."""

    def __init__(
        self,
        data: Sized,
        batch_size: int,
        rank: int | None = None,
        world_size: int | None = None,
        *,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        if batch_size < 1:
            raise UsageError(f"batch_size must be 1 or more, not {batch_size}")
        if rank is None or world_size is None:
            import torch.distributed as dist

            ready = dist.is_available() and dist.is_initialized()
            rank = rank if rank is not None else dist.get_rank() if ready else 0
            world_size = world_size if world_size is not None else dist.get_world_size() if ready else 1
        if not 0 <= rank < world_size:
            raise UsageError(f"rank {rank} is not one of the {world_size} ranks 0 to {world_size - 1}")
        self.batch_size, self.rank, self.world_size = batch_size, rank, world_size
        self.seed, self.shuffle, self.length = seed, shuffle, len(data)
        self.epoch = 0
        self.position = 0
        """The first batch of the next iteration; __iter__ reads it and sets it back to 0."""
        if len(self) == 0:
            needed = batch_size * world_size
            raise UsageError(f"{self.length} samples do not fill one batch on every rank, which takes {needed}")

    def __len__(self) -> int:
        """Return the number of this rank's batches in a whole epoch, wherever an iteration starts."""
        return self.length // (self.batch_size * self.world_size)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration: each epoch has another order of the samples."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        start, self.position = self.position, 0
        if self.shuffle:
            generator = torch.Generator().manual_seed((self.seed << 20) + self.epoch)
            order = torch.randperm(self.length, generator=generator)
        else:
            order = torch.arange(self.length)
        stride = self.batch_size * self.world_size
        for step in range(start, len(self)):
            at = step * stride + self.rank * self.batch_size
            yield order[at : at + self.batch_size].tolist()
