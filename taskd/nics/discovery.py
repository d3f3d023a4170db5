"""Which rails this process listens on: those of its node, from the interfaces that the kernel lists now.

The choice itself is in choice.py, which works where taskd._native does not load. The two are separate modules, because
only this one asks the kernel. It opens nothing, and knows nothing of other nodes.
"""

from __future__ import annotations

from taskd import _native, log
from taskd.config import Config
from taskd.nics.choice import Rail, choose

_logger = log.get(__name__)


def find(config: Config, one_host: bool | None = None, again: bool = False) -> tuple[Rail, ...]:
    """The rails of this node, at least one. Raises UsageError for a named rail that is not possible.

    `one_host`: whether all ranks of the job are on this host; None: what configuration and launcher tell. `again`: this
    rank has run before, so a named rail that is impossible now was there then. It is left out as long as one is left.
    """
    try:
        interfaces = _native.list_interfaces()
    except OSError as error:
        _logger.info("the kernel does not list interfaces (%s)", error)
        return choose(config, None, one_host)
    lost: list[str] = []
    found = choose(config, interfaces, one_host, lost if again else None)
    for sentence in lost:
        _logger.warning("%s; this rank ran before, so it goes on over the rails that are left", sentence)
    for rail in found:
        _logger.info("rail %s is %s%s", rail.name, rail.address, f" on {rail.interface}" if rail.interface else "")
    return found
