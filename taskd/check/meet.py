"""How the nodes of a check meet. It needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from taskd.errors import UsageError

MOST_SECONDS = 3_600
LEAVES = 69
"""The exit code where a node leaves: the system's EX_UNAVAILABLE."""


@dataclass(frozen=True, slots=True)
class Meet:
    """How nodes meet."""

    host: str
    port: int
    nodes: int
    number: int
    """This node's."""
    seconds: float
    """How long nodes may take until each has tested itself."""


def address(text: str, port: int) -> tuple[str, int]:
    """Return the host and the port of an address like 10.0.0.1:29600. `port`: if it has none. Raises UsageError."""
    host, colon, said = text.rpartition(":") if text.count(":") == 1 or "]:" in text else (text, "", "")
    said = said if colon else str(port)
    if not host or not said.isdecimal() or not 0 < int(said) < 1 << 16:
        raise UsageError(f"{text!r} is no address of node 0; allowed: HOST:PORT, like 10.0.0.1:{port}")
    return host.strip("[]"), int(said)


def check_seconds(seconds: float) -> None:
    """Raises UsageError for an impossible --check-timeout."""
    if not 1 <= seconds <= MOST_SECONDS:
        raise UsageError(f"--check-timeout {seconds:g} must be a number from 1 to {MOST_SECONDS} seconds")
