"""How long the tests wait for events: so long that only an event that never comes is late.

No verdict depends on a clock. A test waits for an event, and asserts what came, not when. The bounds here only end a
hang, so they are far beyond what a slow and busy machine needs. C++ programs and helper scripts read PATIENCE_S from
their environment. A test uses a short limit only if the limit must expire, for something that can never succeed.

It knows nothing about the events that a test waits for.
"""

from __future__ import annotations

import os
from datetime import timedelta

NAME = "TEST_PATIENCE_S"
"""The environment variable that tells other programs the seconds."""
PATIENCE_S = float(os.environ.get(NAME) or 300)
"""The bound of one wait for an event."""
PATIENCE = timedelta(seconds=PATIENCE_S)
HANG_S = 2 * PATIENCE_S
"""The bound of one part of a test: its set-up, its body or its teardown."""
BUILD_S = 6 * PATIENCE_S
"""The bound of a test that may have to compile, or that runs a whole campaign under a sanitizer."""
LEAVING_S = 0.4 * PATIENCE_S
"""The time for processes that are ending. Only if a process was left behind do the tests wait that long."""
