"""The lines that the process of the devices writes for its agent: one event each, or a sign of life.

A line is a JSON object. What a library of a vendor has put into it is cut to the bounds of a message, or refused. This
module is shared by the two processes and does NOT read or write anything itself.
"""

from __future__ import annotations

import json
from typing import Any

from taskd.core import limits
from taskd.core.events import DeviceSeen
from taskd.core.types import DeviceKind, Harm
from taskd.core.words import cut

LINE_BYTES_MAX = 64 * 1024
BEAT = b"{}\n"
"""A sign of life."""


def unusable(why: str) -> bytes:
    """The line that says why there are no events."""
    return json.dumps({"unusable": cut(why)}).encode() + b"\n"


def line_of(event: DeviceSeen) -> bytes:
    """An event as a line."""
    row: dict[str, Any] = {
        "device": event.device if -1 <= event.device < limits.MAX_DEVICES else -1,
        "uuid": cut(event.uuid, limits.MAX_NAME),
        "kind": int(event.kind),
        "code": max(event.code, 0) % (1 << 62),
        "text": cut(event.text),
        "harm": int(event.harm),
        "pids": list(event.pids[: limits.MAX_DEVICE_PIDS]),
    }
    return json.dumps(row).encode() + b"\n"


def read(line: bytes) -> DeviceSeen | str | None:
    """The event in a line; a text: there are no events, for this reason; None: a sign of life. Raises ValueError."""
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError(f"{cut(repr(row), 80)} is no line of the process of the devices")
    if "unusable" in row:
        return str(row["unusable"])
    if not row:
        return None
    try:
        what = (int(row["device"]), str(row["uuid"]), DeviceKind(row["kind"]), int(row["code"]))
        return DeviceSeen(*what, str(row["text"]), Harm(row["harm"]), tuple(map(int, row["pids"])))
    except (KeyError, TypeError) as error:
        raise ValueError(f"a line without {error}") from None
