"""The collectives that taskd itself makes with all ranks in a healthy job: to meet, to wait, and to tell each other.

All ranks reach each of them at the same place in the order of their collectives, or none does. Each caller says why
this holds. This module moves no state and knows nothing of repairs: while a repair is ordered, a collective raises
StepAbandoned.
"""

from __future__ import annotations

from collections.abc import Callable

from taskd.errors import StepAbandoned


class Together:
    """The version for a process that is never repaired: it waits for no other rank."""

    def has_groups(self) -> bool:
        """Whether the ranks have made process groups besides the default group. The answer is the same on all ranks."""
        return False

    def meet(self) -> None:
        """Wait until all ranks are here. Raises StepAbandoned."""

    def everyone(self, mine: bytes) -> tuple[list[bytes], int]:
        """Return what each rank says at this place, and the number of this rank. Raises StepAbandoned."""
        return [mine], 0

    def all_arrived(self, heal: Callable[[], None]) -> bool:
        """Wait until every rank has ended its loop. Return False if a repair came, so the loop must check again."""
        return True


class LaunchedTogether(Together):
    """The version for a process that taskd's launcher started."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def has_groups(self) -> bool:
        from torch.distributed import distributed_c10d

        return distributed_c10d.is_initialized() and distributed_c10d._world.group_count > 1

    def meet(self) -> None:
        from taskd.comm import ours

        ours.meet()

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
