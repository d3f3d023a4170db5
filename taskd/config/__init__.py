"""Configuration: one typed tree from keyword arguments, environment and a YAML file, in that order of strength.

`load(**overrides)` makes a Config, `explain(config)` says where each value came from. The options themselves stand in
tree.py. What taskd itself hands to its child processes is no configuration and travels in variables named `_TASKD_*`,
which nothing here reads.
"""

from __future__ import annotations

from taskd.config.sources import explain, load, value_at
from taskd.config.tree import (
    RETRY_LEVELS,
    STRATEGIES,
    AgentConfig,
    Config,
    JobConfig,
    Leaf,
    LogConfig,
    ManagerConfig,
    PauseConfig,
    ProxyConfig,
    RailConfig,
    RecoverConfig,
    RetryConfig,
    WorkerConfig,
    leaves,
)

__all__ = [
    "RETRY_LEVELS",
    "STRATEGIES",
    "AgentConfig",
    "Config",
    "JobConfig",
    "Leaf",
    "LogConfig",
    "ManagerConfig",
    "PauseConfig",
    "ProxyConfig",
    "RailConfig",
    "RecoverConfig",
    "RetryConfig",
    "WorkerConfig",
    "explain",
    "leaves",
    "load",
    "value_at",
]
