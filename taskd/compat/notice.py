"""How the stand-ins say that a call has no effect: every one once, the first one loudly.

A training script registers a dozen handlers in every rank; a dozen warnings times the ranks would bury what matters. So
rank 0 warns, once for each name, and the other ranks say the same at info level.
It does NOT raise and knows nothing about the calls themselves.
"""

from __future__ import annotations

import logging
import os

from taskd import log

WHOSE = "mindio_ttp is not installed, taskd answers for it; docs/compatibility.md has every name; rank 0 warns for all"
_logger = log.get("taskd.compat")


def without_effect(name: str, instead: str) -> None:
    """Say once that a function does nothing here, and what taskd does instead."""
    first_rank = os.environ.get("RANK", "0") == "0"
    sentence = f"{name}() has no effect under taskd: {instead}"
    if first_rank and log.once(_logger, logging.WARNING, "compat.first", f"{sentence} ({WHOSE})"):
        log.once(_logger, logging.DEBUG, f"compat.{name}", sentence)
    else:
        log.once(_logger, logging.WARNING if first_rank else logging.INFO, f"compat.{name}", sentence)


def need_callable(name: str, handler: object) -> None:
    """The convention of the family: a handler that cannot be called is a TypeError."""
    if not callable(handler):
        raise TypeError(f"{name}() needs a callable as handler, not {type(handler).__name__}; pass a function")
