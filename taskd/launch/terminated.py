"""What a launcher does when a scheduler tells it to end: it has its ranks moved, or the last checkpoint written first.

Kubernetes sends SIGTERM and kills what is left after a grace period. In that time the launcher asks the job's manager
for what operators can ask for: `taskd drain-node` for its own node and, if no other node has room, `taskd stop --dump`.
Then the manager ends this launcher. If another launcher or an operator was first, this one waits for that errand.
Failure modes, and what follows:

- *It is refused for good* (no rank can write a checkpoint, nobody holds a rank here), *or fails*: the launcher ends as
  it would have ended at once.
- *It takes too long*, the manager hangs, or there is a mistake here: the launcher ends when the time is over.
- *Something else is under way* (a repair, another errand): it asks again.
- *The job ends meanwhile*: the launcher ends with the job, and not because of the signal.

It asks in a thread of its own, since the launcher is its node's agent meanwhile: the errand needs that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import chain, repeat
from typing import Any

from taskd import log
from taskd.client import Client, NoManager
from taskd.config import Config
from taskd.errors import TaskdError, UsageError

LOOK_SECONDS = (0.1, 0.2, 0.4, 1.0)
"""The times between looks at an errand; the last one stays. All launchers of a large job may look at the same time."""
RETRY_SECONDS = 0.1
MANAGER_SECONDS = 5.0
"""How long it is tried to reach a manager, which may be started again at that moment."""
_log = log.get(__name__)


class Terminated:
    """One launcher that was told to end."""

    def __init__(self, settings: Config, node: str, run: str, end: Callable[[], None]) -> None:
        """`run`: the name of this run; `end` ends this launcher, unless the job ends it. Any thread may call it."""
        self._settings, self._node, self._run, self._end = settings, node, run, end
        self._asked, self._refused = 0, ""
        self._until = 0.0
        self._over = threading.Event()

    def begin(self) -> None:
        """Ask in a thread of its own, and end this launcher when the time is over, whatever that thread does."""
        seconds = self._settings.recover.term_wait_ms / 1000
        self._until = time.monotonic() + seconds
        threading.Thread(target=self._watch, args=(seconds,), name="end of the grace period", daemon=True).start()
        threading.Thread(target=self._ask, name="last checkpoint", daemon=True).start()

    def _watch(self, seconds: float) -> None:
        if not self._over.wait(seconds):
            _log.warning("what SIGTERM has begun takes longer than %.0f s: this launcher ends now", seconds)
        self._end()

    def _ask(self) -> None:
        try:
            with Client(config=self._settings) as client:
                why = self._settle(client)
        except TaskdError as error:
            why = str(error)
        except Exception as error:  # the launcher must end, whatever is wrong here
            _log.exception("a mistake of taskd's")
            why = f"{type(error).__name__}: {error}"
        if why is not None:
            _log.warning("this launcher got SIGTERM and ends now: %s", why)
            self._over.set()

    def _settle(self, client: Client) -> str | None:
        """Return why this launcher is to end by itself. None: the manager ends it. Raises UsageError if nothing can be
        done, and NoManager."""
        known, own = "", True
        while time.monotonic() < self._until:
            facts, own = self._begin(client)
            if facts["over"]:
                return None
            if (errand := facts["errand"]) is None or errand["over"]:
                self._over.wait(RETRY_SECONDS)  # a repair, a rank that is not heard, or to make sure
                continue
            if errand["request"] != known:
                known = errand["request"]
                left = max(self._until - time.monotonic(), 0)
                words = "this launcher got SIGTERM, and waits for this first, %.0f s at most: %s; %s"
                _log.warning(words, left, errand["what"], "another signal ends it at once")
            facts = self._wait(client, known)
            if facts["over"]:
                return None
            if (errand := facts["errand"]) is None or not (own or errand["stops"]):
                continue
            if errand["done"]:
                return None
            if own and errand["stops"] and errand["over"]:
                return str(errand["words"])
        return None

    def _begin(self, client: Client) -> tuple[dict[str, Any], bool]:
        """Ask for the move of this node's ranks, or else for the last checkpoint. Return how that stands, or another
        errand, and whether it is this launcher's own. Raises UsageError if it is refused for good."""
        by, refusal = f"the launcher of node {self._node} (SIGTERM)", ""
        for topic in ("drain-node", "save-and-stop"):
            self._asked += 1
            request = f"SIGTERM {self._run} {self._node} {self._asked}"
            try:
                return self._patiently(client, topic, f"{request}\n{by}\n{self._node}"), True
            except UsageError as error:
                refusal = str(error)
                _log.info("%s is refused: %s", topic, refusal)
                facts = self._patiently(client, "errand")
            if facts["errand"] is not None or facts["over"] or not facts["settled"]:
                return facts, False
        if refusal == self._refused:
            raise UsageError(refusal)
        self._refused = refusal  # what is settled now may not have been so when it was refused
        return facts, False

    def _wait(self, client: Client, request: str) -> dict[str, Any]:
        """Return how an errand has ended, or how it stands when the time is over."""
        for seconds in chain(LOOK_SECONDS, repeat(LOOK_SECONDS[-1])):
            facts = self._patiently(client, "errand", request)
            errand = facts["errand"]
            if errand is None or errand["over"] or facts["over"] or time.monotonic() >= self._until:
                break
            self._over.wait(seconds)
        return facts

    def _patiently(self, client: Client, topic: str, argument: str = "") -> dict[str, Any]:
        """Ask the manager, which may be started again at this moment. Raises NoManager."""
        until = min(self._until, time.monotonic() + MANAGER_SECONDS)
        while True:
            try:
                return client.ask(topic, argument)
            except NoManager:
                if time.monotonic() >= until:
                    raise
                self._over.wait(RETRY_SECONDS)
