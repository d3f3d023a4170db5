"""What differs, in Python, between the versions of torch that taskd runs with. For C++: csrc/c10d/torch_versions.hpp.

Each difference is one function here, so that the other modules read as if there were one torch.
"""

from __future__ import annotations

from typing import Any

DEFAULT_SHUTDOWN_S = 30


def shutdown_timeout_of(config: Any) -> int:
    """How many seconds a launcher gives its workers to end, by its LaunchConfig, which says nothing in torch 2.11."""
    return int(getattr(config, "shutdown_timeout", DEFAULT_SHUTDOWN_S) or 0)
