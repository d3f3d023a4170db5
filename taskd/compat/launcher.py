"""Answers for `mindx_elastic.api` and `taskd.python.adaptor.patch`, which users' launch lines put into torchrun.

Those lines (`sed -i '/import logging/i import mindx_elastic.api' .../torch/distributed/run.py`) must go on working: the
import succeeds, torchrun stays as it is, and one sentence at debug level names what taskd offers in its place.
It does NOT change torch, register anything or start anything.
"""

from __future__ import annotations

import logging

from taskd import log

__all__: list[str] = []

log.once(
    log.get(__name__),
    logging.DEBUG,
    "compat.launcher",
    "an import in torchrun asks for the recovery launcher of the original; torchrun itself is left as it is: start the "
    "job with taskd-run, which takes torchrun's arguments and replaces single workers",
)
