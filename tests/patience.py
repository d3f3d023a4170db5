"""How long the tests wait for what must come: so long that only what never comes is late.

No verdict hangs on a clock. A test waits for an event, and asserts what came, not when. The bounds here only end what
hangs, so they are far beyond what a slow and busy machine needs. C++ programs and helper scripts read PATIENCE_S from
their environment. Short limits stay where their very expiry is tested, on what can never succeed.

It knows nothing of what a test waits for.
"""

from __future__ import annotations

import os
from datetime import timedelta

NAME = "TEST_PATIENCE_S"
"""The environment variable by which other programs are told."""
PATIENCE_S = float(os.environ.get(NAME) or 300)
"""One wait for something that must come."""
PATIENCE = timedelta(seconds=PATIENCE_S)
HANG_S = 2 * PATIENCE_S
"""One test: its set-up, its body or its teardown."""
BUILD_S = 6 * PATIENCE_S
"""One test that may have to compile, or runs a whole campaign under a sanitizer."""
LEAVING_S = 0.4 * PATIENCE_S
"""Processes that are on their way out get this long; only one that was left behind waits for all of it."""
