"""What holds for the groups of this process on the CPU: the settings, and where its groups meet.

A launcher's worker is told both before its first group; a process that nobody has told reads its environment. Alone,
since every transport reads it and none may import another one. It does NOT know what the settings mean.
"""

from __future__ import annotations

from taskd import config
from taskd.config import Config

_settings: Config | None = None
_ran_before = False
_place: tuple[str | None, str | None] = (None, None)


def configure(settings: Config, ran_before: bool = False) -> None:
    """These settings hold for the groups of this process from now on. `ran_before`: another process was this rank, and
    had its groups with the same settings."""
    global _settings, _ran_before
    _settings, _ran_before = settings, ran_before


def current() -> Config:
    """What holds for the groups of this process: what was given, else what the environment says."""
    if _settings is None:
        configure(config.load())
    assert _settings is not None
    return _settings


def ran_before() -> bool:
    """Whether this rank is not the first process of its name."""
    return _ran_before


def meet_at(hostname: str | None, interface: str | None) -> None:
    """Groups made from now on meet at this address or on this interface; both None: where the transport puts them."""
    global _place
    _place = (hostname, interface)


def place() -> tuple[str | None, str | None]:
    """The address and the interface at which groups meet."""
    return _place
