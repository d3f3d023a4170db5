"""What all ranks do together in a healthy job, by collectives of taskd's own: meet, wait, tell each other.

All ranks come to each of these at the same place in the order of their collectives, or none does; whoever asks for one
says why that is so. It moves no state and knows nothing of repairs: while one is ordered, a collective raises
StepAbandoned.
"""

from __future__ import annotations

from collections.abc import Callable

from taskd.errors import StepAbandoned


class Together:
    """Of a process that nobody repairs, and that need not wait for anybody."""

    def has_groups(self) -> bool:
        """Whether the ranks have made process groups besides that of all, which can carry words of taskd's. Alike on
        all of them."""
        return False

    def meet(self) -> None:
        """Wait until all ranks are here. Raises StepAbandoned."""

    def everyone(self, mine: bytes) -> tuple[list[bytes], int]:
        """What each rank says where all of them are, and which one this is. Raises StepAbandoned."""
        return [mine], 0

    def all_arrived(self, heal: Callable[[], None]) -> bool:
        """Wait until every rank has ended its loop; False when a repair came instead, and the loop must look again."""
        return True


class LaunchedTogether(Together):
    """Of one that taskd's launcher started."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def has_groups(self) -> bool:
        from torch.distributed import distributed_c10d

        if not distributed_c10d.is_initialized() or distributed_c10d._world.group_count < 2:
            return False
        return any(device.type == "cpu" for device in distributed_c10d._get_default_group()._device_types)

    def meet(self) -> None:
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.zeros(1))

    def everyone(self, mine: bytes) -> tuple[list[bytes], int]:
        from taskd.state.restore import everyone

        return everyone(mine), self._rank

    def all_arrived(self, heal: Callable[[], None]) -> bool:
        import torch.distributed as dist

        try:
            if dist.is_initialized():
                dist.barrier()
            return True
        except StepAbandoned:
            heal()
            return False
