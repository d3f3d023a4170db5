"""Devices that are lost, and the ranks at whose place they are. A module of its own, as all that seats ranks reads it.

A rank that is started again on its node gets the same place, and so the same device. It counts only what it is told
(repair/devices.py); it does NOT decide where a rank goes (repair/placement.py).
"""

from __future__ import annotations

from collections.abc import Iterable


class LostDevices:
    """By node: each lost device, and the ranks that used it."""

    def __init__(self) -> None:
        self._by_node: dict[str, dict[int, list[int]]] = {}

    def add(self, node: str, device: int, ranks: Iterable[int]) -> None:
        """This device is lost. A device that no rank uses takes no place away."""
        if known := sorted(ranks):
            self._by_node.setdefault(node, {})[device] = known

    def forget(self, node: str) -> None:
        """The node's agent is another one, which will report what it finds."""
        self._by_node.pop(node, None)

    def count(self, node: str) -> int:
        """How many places of this node have no device any more."""
        return len(self._by_node.get(node, ()))

    def at(self, rank: int, node: str) -> int | None:
        """The lost device at a rank's place on this node. None: it has none there."""
        devices = self._by_node.get(node)
        if not devices:
            return None
        return next((device for device, ranks in devices.items() if rank in ranks), None)
