"""Which source of device events a node has: known from the files of its drivers in /dev, or set by the user.

So a node without devices loads nothing and starts nothing. Where /dev shows devices of both vendors, NVIDIA's count.
It does NOT ask a library: a source does, in a process of its own.
"""

from __future__ import annotations

import os
import re

from taskd.core.events import DeviceSeen
from taskd.devices.source import Source

FILES = {"nvidia": re.compile(r"nvidia\d+"), "ascend": re.compile(r"davinci\d+")}
"""The files of a driver's devices in /dev, by the name of their source."""


class Nothing:
    """The source of a node without devices."""

    def look(self, wait_s: float) -> list[DeviceSeen]:
        """There are no events."""
        return []

    def close(self) -> None:
        """There is nothing to let go of."""


def present(folder: str = "/dev") -> str:
    """The name of the source that this node has; empty: it has no devices."""
    try:
        names = os.listdir(folder)
    except OSError:
        return ""
    return next((kind for kind, files in FILES.items() if any(map(files.fullmatch, names))), "")


def chosen(setting: str) -> str:
    """The name of the source that a setting asks for: `auto`, `off`, or a name. Empty: none."""
    return present() if setting == "auto" else "" if setting == "off" else setting


def opened(kind: str) -> Source:
    """The source with this name. Raises Unusable."""
    if kind == "nvidia":
        from taskd.devices.nvidia import Nvidia

        return Nvidia()
    if kind == "ascend":
        from taskd.devices.ascend import Ascend

        return Ascend()
    return Nothing()
