"""What a job has set and taskd takes without doing it: each such setting is said once, as a warning, by who starts it.

Names of the original are accepted so that unchanged jobs run. A name that is accepted and does nothing is worse than
one that is refused, if nobody says so. docs/compatibility.md has every name with its effect here.
It does NOT decide anything; RecoverConfig.allowed says which repairs a list of strategies leaves.
"""

from __future__ import annotations

import logging

from taskd import log
from taskd.config.tree import REPAIRS, Config

_IDLE_STRATEGIES = {
    "elastic-training": "no job goes on with fewer ranks than it began with",
}
_logger = log.get(__name__)


def without_effect(config: Config) -> list[str]:
    """A sentence for each setting that somebody has made and that does nothing."""
    said = []
    given = config.sources.get("recover.strategies", "default")
    if not given.startswith("default"):
        named = config.recover.strategies
        said += [f"{name} ({given}) does nothing: {what}" for name, what in _IDLE_STRATEGIES.items() if name in named]
        if not REPAIRS & {*named} and REPAIRS & {*config.recover.allowed}:
            said.append(
                f"{', '.join(named)} ({given}) replaces no rank, so recover-in-place and recover may be used besides; "
                "exit alone, or PROCESS_RECOVER=off, switches repairs off"
            )
    return said


def say(config: Config) -> None:
    """Each of these sentences once in this process."""
    for sentence in without_effect(config):
        log.once(_logger, logging.WARNING, f"without effect {sentence}", "%s", sentence)
