"""How the stand-ins say that a call has no effect: every one once, the first one loudly.

A training script registers a dozen handlers in every rank; a dozen warnings times the ranks would bury what matters. So
the first call without effect in a process is a warning, the others are at info level, each at most once.
It does NOT raise and knows nothing about the calls themselves.
"""

from __future__ import annotations

import logging

from taskd import log

_logger = log.get("taskd.compat")


def without_effect(name: str, instead: str) -> None:
    """Say once that a function does nothing here, and what taskd does instead."""
    sentence = f"{name}() has no effect under taskd: {instead}"
    first = (
        f"{sentence} (mindio_ttp is not installed, taskd answers for it; further such calls are logged at info level)"
    )
    if log.once(_logger, logging.WARNING, "compat.first", first):
        log.once(_logger, logging.DEBUG, f"compat.{name}", sentence)
    else:
        log.once(_logger, logging.INFO, f"compat.{name}", sentence)


def need_callable(name: str, handler: object) -> None:
    """The convention of the family: a handler that cannot be called is a TypeError."""
    if not callable(handler):
        raise TypeError(f"{name}() needs a callable as handler, not {type(handler).__name__}; pass a function")
