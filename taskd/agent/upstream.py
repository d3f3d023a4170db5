"""This node's link to the manager: the connection ("line"), its key, and the node's relay to the job's store.

Messages from the line become events for the core. A launcher's workers meet in the job's store, so the store is served
here, with the line's key. For an agent that is no launcher, the workers bring the key: a key in the run directory may
belong to an older job. It does NOT know what the manager's messages mean: the core does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from taskd import log
from taskd.agent.store import StoreRelay
from taskd.config import Config
from taskd.core import events
from taskd.core.messages import Stop
from taskd.errors import UsageError
from taskd.wire import keys
from taskd.wire.uplink import Uplink

_logger = log.get(__name__)


class Upstream:
    """The link of one node's agent to the manager."""

    def __init__(self, config: Config, node: str, launches: bool, on_stop: Callable[[Stop], None] | None) -> None:
        """`launches`: the agent is a launcher. `on_stop` is called once when the manager ends the job."""
        place = config.manager.host, config.manager.port
        self.line = Uplink(*place, config.job.id, node)
        self._store = StoreRelay(config.job.id, node, *place) if launches else None
        self._config = config
        self._launches = launches
        self._on_stop = on_stop

    def find_key(self) -> None:
        """Use the key that the user has given, or, in a launcher, the key in the run directory."""
        manager = self._config.manager
        if manager.key or manager.key_file or self._launches:
            try:
                found = keys.find(self._config)
            except UsageError as error:
                _logger.warning("%s", error)
                return
            if found is not None:
                self.line.use(found)

    def start(self) -> None:
        """Serve the store from now on."""
        if self._store is not None:
            self._store.start()

    def events(self) -> Iterator[events.Connected | events.Disconnected | events.Heard]:
        """What has happened on the line since the last call."""
        if self.line.key is not None and self._store is not None:
            self._store.use(self.line.key)
        for came in self.line.changes():
            yield events.Connected() if came else events.Disconnected()
        for message in self.line.messages():
            yield events.Heard(message)
            if isinstance(message, Stop) and self._on_stop is not None:
                on_stop, self._on_stop = self._on_stop, None
                on_stop(message)
        self.line.tick()

    def close(self) -> None:
        """Send the last messages, and close everything."""
        self.line.close()
        if self._store is not None:
            self._store.stop()
