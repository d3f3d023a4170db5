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

    def has_groups(self, sharded: bool = False) -> bool:
        """Whether the ranks have made process groups besides the default group, or a model is `sharded`, and a group
        can carry taskd's messages. The answer is the same on all ranks."""
        return False

    def meet(self) -> None:
        """Wait until all ranks are here. Raises StepAbandoned."""

    def settle(self) -> None:
        """Wait until the device has done what was communicated since the last call. What an aborted operation leaves
        behind is garbage, and nobody tells. A step that is not given up after this has true results so far."""

    def everyone(self, mine: bytes) -> tuple[list[bytes], int]:
        """Return what each rank says at this place, and the number of this rank. Raises StepAbandoned."""
        return [mine], 0

    def all_arrived(self, heal: Callable[[], None]) -> bool:
        """Wait until every rank has ended its loop. Return False if a repair came, so the loop must check again."""
        return True

    def numbers(self, mine: list[int]) -> list[list[int]]:
        """Return the numbers of each rank. All have equally many. Raises StepAbandoned."""
        return [mine]


class LaunchedTogether(Together):
    """The version for a process that taskd's launcher started."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._settled = 0  # the number of operations that had been begun

    def has_groups(self, sharded: bool = False) -> bool:
        from torch.distributed import distributed_c10d

        from taskd.comm import ours

        several = distributed_c10d.is_initialized() and (sharded or distributed_c10d._world.group_count > 1)
        return several and ours.can_carry()

    def meet(self) -> None:
        from taskd.comm import ours

        ours.meet()

    def settle(self) -> None:
        import torch

        from taskd.comm import guard

        begun = guard.begun()
        if begun != self._settled and guard.on_devices() and torch.accelerator.is_available() and not _capturing():
            torch.accelerator.synchronize()
        self._settled = begun

    def everyone(self, mine: bytes) -> tuple[list[bytes], int]:
        from taskd.state.restore import everyone

        return everyone(mine), self._rank

    def all_arrived(self, heal: Callable[[], None]) -> bool:
        import torch.distributed as dist

        from taskd.comm import guard, ours

        try:
            if not dist.is_initialized():
                return True
            # A barrier on a device ends like any other operation there: without a word, when it is aborted.
            if guard.on_devices():
                ours.meet()
            else:
                dist.barrier()
            return True
        except StepAbandoned:
            heal()
            return False

    def numbers(self, mine: list[int]) -> list[list[int]]:
        import torch
        import torch.distributed as dist

        from taskd.comm import ours

        if not (dist.is_initialized() and ours.can_carry()):
            return [mine]
        own = torch.tensor(mine, dtype=torch.int64, device="cpu")
        found = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        ours.all_gather(found, own)
        return [one.tolist() for one in found]


def _capturing() -> bool:
    """Whether this thread records a graph of a GPU's work, which must not be waited for."""
    import torch

    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
