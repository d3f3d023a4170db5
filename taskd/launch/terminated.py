"""What a launcher does when a scheduler tells it to end: it has the script's last checkpoint written first.

Slurm and Kubernetes send SIGTERM and kill what is left after a grace period. In that time the launcher asks the job's
manager for what `taskd stop --dump` asks for. All launchers of a run ask by the same request, so it is one errand
however many of them are told. If the manager refuses (no script's function, another node has room, a repair is under
way), if the checkpoint fails, or if the time is over, the launcher ends as it would have ended at once.

It asks in a thread of its own, since the launcher is its node's agent meanwhile: the errand needs that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from taskd import log
from taskd.client import LOOK_SECONDS, Client, NoManager
from taskd.config import Config
from taskd.errors import TaskdError, UsageError

TOPIC = "save-and-stop"
_log = log.get(__name__)


class Saving:
    """One launcher's wish for a last checkpoint."""

    def __init__(self, settings: Config, node: str, run: str, end: Callable[[], None]) -> None:
        """`run`: the name of this run; `end` ends this launcher, and may be called by any thread."""
        self._settings, self._node, self._end = settings, node, end
        self._request = f"SIGTERM {run}"

    def begin(self) -> None:
        """Ask for it in a thread of its own."""
        threading.Thread(target=self._run, name="last checkpoint", daemon=True).start()

    def _run(self) -> None:
        until = time.monotonic() + self._settings.recover.term_wait_ms / 1000
        try:
            if (why := self._ask(until)) is not None:
                _log.warning("the last checkpoint is not written: %s", why)
        except TaskdError as error:  # nobody can write one, or nobody answers
            _log.info("this launcher got SIGTERM and ends at once: %s", error)
        self._end()

    def _ask(self, until: float) -> str | None:
        """Return why it is not written, or None if it is. Raises UsageError if it is refused."""
        with Client(config=self._settings) as client:
            facts = self._wish(client)
            request = facts["errand"]["request"]
            _log.warning(
                "this launcher got SIGTERM: the script's last checkpoint is written first, for %.0f s at most; another "
                "signal ends the job at once",
                until - time.monotonic(),
            )
            while (errand := facts["errand"]) is not None and not errand["over"] and time.monotonic() < until:
                threading.Event().wait(LOOK_SECONDS)
                facts = _look(client, request) or facts
            if errand is None:
                return "the manager knows nothing of it any more"
            if not errand["over"]:
                return f"it has taken longer than {self._settings.recover.term_wait_ms / 1000:.0f} s"
            if not errand["done"]:
                return str(errand["words"])
            threading.Event().wait(max(0.0, until - time.monotonic()))  # the manager ends this launcher meanwhile
            return None

    def _wish(self, client: Client) -> dict[str, Any]:
        """Ask the manager for it, unless an operator's wish to stop the job is under way. Return how that stands."""
        by = f"the launcher of node {self._node}, which got SIGTERM"
        try:
            return client.ask(TOPIC, f"{self._request}\n{by}\n{self._node}")
        except UsageError:
            facts = client.ask("pauses")
            if facts["errand"] is None or not facts["errand"]["stops"]:
                raise
            return facts


def _look(client: Client, request: str) -> dict[str, Any] | None:
    """Return how it stands. None: the manager is being started again, or the job is over."""
    try:
        return client.ask("pauses", request)
    except NoManager:
        return None
