"""This process' presence in the job: link, follower, progress hooks and exit hooks together, at most one per process.

The drop-in API and taskd's own launcher both use this module, so a script that calls the API under the launcher finds
the existing presence. A forked child has none. This module does NOT check what a user passes in.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from dataclasses import replace

from taskd import log
from taskd.comm import counters
from taskd.config import Config
from taskd.core.messages import Evidence
from taskd.core.types import EvidenceKind
from taskd.core.words import RAISED_AGAIN, cut
from taskd.worker import compiling, gloo_threads, hooks, pausing
from taskd.worker import current as current_session
from taskd.worker.exits import ExitWatch
from taskd.worker.follower import Follower
from taskd.worker.identity import Identity, find
from taskd.worker.link import Link

EXCEPTION_EXIT = 1
"""Python's exit code after an uncaught exception."""


class Presence:
    """The presence of this process, made once: `start`, `wait`, `end`."""

    def __init__(
        self,
        config: Config,
        identity: Identity,
        framework: str = "pt",
        newcomer: bool = False,
        records: tuple[int, ...] = (),
        launched: bool = False,
    ) -> None:
        """`launched`: taskd's launcher started this process; the launcher is the agent and has the key."""
        self.config, self.identity, self.framework, self.launched = config, identity, framework, launched
        self.started = False
        self.link = Link(config, identity, framework, records=records, launched=launched)
        self.follower = Follower(self.link, newcomer)
        self._exits = ExitWatch(self._leave, self._crash)

    def start(self) -> None:
        """Start to beat, connect and follow orders; returns at once."""
        log.identify(f"rank {self.identity.rank}")
        global _lives
        self.started = True
        _lives += 1
        pausing.establish(self.link.pausing)
        self.link.start()
        counters.watch(self.link.counters.show)
        if self.framework == "pt":
            hooks.attach(self.link.page)
            compiling.attach(self.link.page)
        gloo_threads.wait_at_exit()  # registered before the other exit handlers, so it runs after them
        atexit.register(self.link.be_ready_to_end)
        self._exits.install()

    def wait(self, seconds: float) -> bool:
        """Whether the manager has acknowledged this rank, within this time."""
        return self.link.wait(seconds)

    def failed(self, code: object) -> None:
        """Note that the script ends itself with an exit code other than 0, which is no orderly end."""
        self._exits.keep_silent()
        current_session.failed(f"it ended itself with exit code {code}")

    def end(self, reason: str) -> None:
        """Leave the job in good order; training may go on without taskd."""
        self._exits.remove()
        hooks.detach()
        pausing.establish(None)
        compiling.attach(None)
        counters.watch(None)
        if self.started:
            self.link.leave(reason)
            self.link.close()
            atexit.unregister(self.link.be_ready_to_end)

    def _leave(self) -> None:
        hooks.detach()
        compiling.attach(None)
        self.link.leave("the script has ended")

    def _crash(self, sentence: str, show: Callable[[], None]) -> None:
        if current_session.repair().replaces:
            show()  # what follows may not return
        rank = self.identity.rank
        again = RAISED_AGAIN if current_session.was_tried_again() else ""
        text = cut(f"rank {rank} raised {again}{sentence}")
        incarnation = self.link.introduction.incarnation
        current_session.failed(sentence)  # does not return if it is a newcomer that may lack something
        self.link.channel.say(Evidence(EvidenceKind.EXCEPTION, rank, incarnation, rank, EXCEPTION_EXIT, text))


_current: tuple[int, Presence] | None = None
_lives = 0
"""How often this process has become a worker."""


def current() -> Presence | None:
    """Return this process' presence, if it has one."""
    return _current[1] if _current is not None and _current[0] == os.getpid() else None


def establish(presence: Presence | None) -> None:
    """Make this the process' presence (None: it has none any more)."""
    global _current
    _current = None if presence is None else (os.getpid(), presence)


def who(config: Config, rank: int) -> Identity:
    """Return this process' identity as `rank`. A process that was a worker before comes back as a later incarnation;
    the agent picks the next number, whatever number the launcher gave."""
    found = find(config, rank)
    return replace(found, incarnation=0) if _lives else found
