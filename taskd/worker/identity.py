"""The identity of this training process: job, node, rank, world size, incarnation, as its launcher has set them.

torchrun's variables are read first, then torch.distributed if the script has initialised it (it knows best how many
ranks there are), then the configuration. It does NOT check the rank that a script gives (taskd.api does) and does not
import torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from taskd.config import Config
from taskd.core import limits

INCARNATION_VARIABLE = "_TASKD_INCARNATION"
"""Set by taskd's own launcher, which numbers the incarnations of each rank itself."""
VISIBLE = ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")
"""List the devices that a process may use, by number or id. A process counts its devices in this list."""


@dataclass(frozen=True, slots=True)
class Identity:
    """One incarnation of one rank."""

    job: str
    node: str
    rank: int
    world_size: int
    local_rank: int
    incarnation: int  # 0: restarts are not counted here, and the agent picks the next number


def find(config: Config, rank: int, environ: Mapping[str, str] | None = None) -> Identity:
    """Return the identity of this process; `rank` is the number that its script gives."""
    environ = os.environ if environ is None else environ
    return Identity(
        job=config.job.id,
        node=node_name(config, environ),
        rank=rank,
        world_size=world_size(config, environ),
        local_rank=_number(environ, "LOCAL_RANK", 0, limits.MAX_NODES) or 0,
        incarnation=_incarnation(environ),
    )


def node_name(config: Config, environ: Mapping[str, str] | None = None) -> str:
    """Return the configured name; else a name by torchrun's or the pod's number of this node; else the host's name.

    The number comes before the host's name, because two torchrun nodes on one host are two nodes. TORCHELASTIC_RUN_ID
    is not used for the job's name in this way: a user's manager.py, outside torchrun, could not know it.
    """
    environ = os.environ if environ is None else environ
    if not config.sources.get("job.node", "default").startswith("default"):
        return config.job.node
    for variable in ("GROUP_RANK", "NODE_RANK"):
        number = _number(environ, variable, 0, limits.MAX_NODES)
        if number is not None:
            return f"node-{number}"
    return config.job.node


def world_size(config: Config, environ: Mapping[str, str] | None = None) -> int:
    """Return how many ranks the job has."""
    environ = os.environ if environ is None else environ
    distributed = initialised_distributed()
    if distributed is not None:
        return int(distributed.get_world_size())
    given = _number(environ, "WORLD_SIZE", 1, limits.MAX_RANKS)
    # Without LOCAL_RANK no launcher has started this process: the WORLD_SIZE of a pod counts nodes.
    if given is not None and "LOCAL_RANK" in environ:
        return given
    return max(config.job.node_nums * config.job.proc_per_node, given or 1)


def device_at(environ: Mapping[str, str], local_rank: int) -> str:
    """Return the number or id of the device at a rank's place: under torchrun a script uses the device of its local
    rank. A launcher may also give each rank a list of one. Empty: the rank may use no device, or it is not known."""
    listed = next((environ[name] for name in VISIBLE if name in environ), None)
    if listed is None:
        return str(local_rank)
    names = [name.strip() for name in listed.split(",")]
    name = names[local_rank] if local_rank < len(names) else names[0] if len(names) == 1 else ""
    return "" if name.startswith("-") else name[: limits.MAX_NAME]


def initialised_distributed() -> Any:
    """Return torch.distributed if the script has imported and initialised it, else None. Imports nothing."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not getattr(distributed, "is_initialized", lambda: False)():
        return None
    return distributed


def _incarnation(environ: Mapping[str, str]) -> int:
    given = _number(environ, INCARNATION_VARIABLE, 1, limits.MAX_INCARNATION)
    if given is not None:
        return given
    restarts = _number(environ, "TORCHELASTIC_RESTART_COUNT", 0, limits.MAX_INCARNATION - 1)
    return 0 if restarts is None else restarts + 1


def _number(environ: Mapping[str, str], variable: str, low: int, high: int) -> int | None:
    text = environ.get(variable, "").strip()
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        return None
    value = int(text)
    return value if low <= value <= high else None
