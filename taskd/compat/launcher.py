"""Replaces `mindx_elastic.api` and `taskd.python.adaptor.patch`, which users' launch lines insert into torchrun.

Those lines (`sed -i '/import logging/i import mindx_elastic.api' .../torch/distributed/run.py`) must still work: the
import succeeds, torchrun stays as it is, and one warning names taskd's replacement.
This module does NOT change torch, register anything or start anything.
"""

from __future__ import annotations

import logging

from taskd import log

__all__: list[str] = []

log.once(
    log.get(__name__),
    logging.WARNING,
    "compat.launcher",
    "this import asks for the launcher of the original and does nothing: under torchrun no worker that dies is "
    "replaced; start the job with taskd-run, which takes torchrun's arguments",
)
