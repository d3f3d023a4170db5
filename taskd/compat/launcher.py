"""Replaces `mindx_elastic.api` and `taskd.python.adaptor.patch`, which users' launch lines insert into torchrun.

Those lines (`sed -i '/import logging/i import mindx_elastic.api' .../torch/distributed/run.py`) must still work: the
import succeeds. Where PROCESS_RECOVER is on, torchrun starts the job as taskd-run does anyway (torchrun.py). Elsewhere
torchrun stays as it is, and one warning says so.
This module does NOT change torch, register anything or start anything.
"""

from __future__ import annotations

import logging

from taskd import log
from taskd.compat import recovers

__all__: list[str] = []

if not recovers():
    log.once(
        log.get(__name__),
        logging.WARNING,
        "compat.launcher",
        "this import asks for the launcher of the original and does nothing: no worker that dies is replaced; set "
        "PROCESS_RECOVER=on, or start the job with taskd-run, which takes torchrun's arguments",
    )
