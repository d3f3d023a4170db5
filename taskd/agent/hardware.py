"""What happens to the hardware of a node, as events for the core: its network interfaces and its devices.

The agent's loop waits for the descriptors of both watches. It does NOT judge what an event means: the core does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from taskd import _native, log
from taskd.agent.devices import DeviceWatch
from taskd.agent.interfaces import InterfaceWatch
from taskd.agent.workers import Workers
from taskd.core import events
from taskd.core.messages import Evidence
from taskd.core.types import EvidenceKind
from taskd.core.words import cut
from taskd.devices.choice import chosen

_logger = log.get(__name__)


class Hardware:
    """The watches of one node."""

    def __init__(self, node: str, devices: str, workers: Workers, post: Callable[[events.AgentEvent], object]) -> None:
        """`devices`: the setting that says whose events are watched. `post` takes an event."""
        self._node, self._post = node, post
        self._interfaces = InterfaceWatch()
        if self._interfaces.fd >= 0:
            _native.close_on_fork(self._interfaces.fd)
        self._devices = DeviceWatch(chosen(devices), lambda: list(workers.by_pid), post)

    def sources(self) -> Mapping[int, Callable[[], None]]:
        """The descriptors to wait for, each with the function to call when it is readable."""
        found = {self._interfaces.fd: self._serve_interfaces, self._devices.fd: self._devices.serve}
        return {fd: serve for fd, serve in found.items() if fd >= 0}

    def tend(self, now: int) -> None:
        """Look after the process of the devices. To be called in each turn of the loop."""
        self._devices.tend(now)

    def next_check_ns(self) -> int | None:
        """When `tend` has to be called next."""
        return self._devices.next_check_ns()

    def close(self) -> None:
        """Close both."""
        self._interfaces.close()
        self._devices.close()

    def _serve_interfaces(self) -> None:
        for name, up in self._interfaces.changes():
            kind = EvidenceKind.LINK_UP if up else EvidenceKind.LINK_DOWN
            reason = f"interface {name} of node {self._node} is {'up' if up else 'down'}"
            _logger.info("%s", reason)
            self._post(events.WorkerSaid(Evidence(kind, -1, 0, -1, 0, cut(reason))))
