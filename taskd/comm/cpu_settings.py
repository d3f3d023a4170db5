"""What applies to the groups of this process on the CPU: the settings, and where its groups meet.

A launcher's worker is told both before its first group. A process that was not told reads its environment. This is a
module of its own, because every transport reads it and no transport may import another one. It does NOT know what the
settings mean.
"""

from __future__ import annotations

from taskd import config
from taskd.config import Config

_settings: Config | None = None
_ran_before = False
_place: tuple[str | None, str | None] = (None, None)


def configure(settings: Config, ran_before: bool = False) -> None:
    """Use these settings for the groups of this process from now on. `ran_before`: another process was this rank
    before, and made its groups with the same settings."""
    global _settings, _ran_before
    _settings, _ran_before = settings, ran_before


def current() -> Config:
    """The settings of this process' groups: those that were given, else those of the environment."""
    if _settings is None:
        configure(config.load())
    assert _settings is not None
    return _settings


def ran_before() -> bool:
    """Whether another process was this rank before this one."""
    return _ran_before


def meet_at(hostname: str | None, interface: str | None) -> None:
    """Let new groups meet at this address or on this interface from now on. Both None: the transport chooses."""
    global _place
    _place = (hostname, interface)


def place() -> tuple[str | None, str | None]:
    """The address and the interface at which groups meet."""
    return _place
