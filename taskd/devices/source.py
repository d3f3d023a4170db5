"""The interface of all sources of device events.

There are three sources: NVIDIA's library, Ascend's tool, and none (choice.py). A source may load code of a vendor that
hangs or crashes. So it runs in a process of its own (`python -m taskd.devices`), and never in an agent.
It does NOT decide what follows from an event: the core does.
"""

from __future__ import annotations

from typing import Protocol

from taskd.core.events import DeviceSeen


class Unusable(Exception):
    """The library or the tool is missing, or does not work; the text is a sentence."""


class Source(Protocol):
    """The events of one kind of devices."""

    def look(self, wait_s: float) -> list[DeviceSeen]:
        """Return the events since the last call. If there are none, wait for this long at most.

        It raises nothing: what a library does not answer is not known."""

    def close(self) -> None:
        """Let go of the library."""
