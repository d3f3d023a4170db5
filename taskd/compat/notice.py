"""How the replaced functions say that a call has no effect: each name once, the first one with an explanation.

A training script registers a dozen handlers in every rank. A dozen warnings from each rank would hide what matters. So
rank 0 warns, once for each name, and the other ranks say the same at info level.
`without_effect` does NOT raise. This module knows nothing about the calls themselves.
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
    """Raise TypeError for a handler that cannot be called, as the original does."""
    if not callable(handler):
        raise TypeError(f"{name}() needs a callable as handler, not {type(handler).__name__}; pass a function")
