"""Shared by the API cases: which rank this is, and the list of cases.

guard_apis.py and the modules cases_*.py beside it import this module. It runs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

RANK, SIZE, FOLDER, HOW = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]

CASES: dict[str, Callable[[], None]] = {}
COMPILED: dict[str, Callable[[], None]] = {}
GUARDED: set[str] = set()
"""Names of the cases that test guards, or need something that torch has only for gloo."""


def case(body: Callable[[], None]) -> Callable[[], None]:
    CASES[body.__name__] = body
    return body


def guarded(body: Callable[[], None]) -> Callable[[], None]:
    GUARDED.add(body.__name__)
    return body


def compiled_case(body: Callable[[], None]) -> Callable[[], None]:
    COMPILED[body.__name__] = body
    return body


def equal_everywhere(tensor: torch.Tensor) -> bool:
    all_of_them = [torch.zeros_like(tensor) for _ in range(SIZE)]
    dist.all_gather(all_of_them, tensor)
    return all(torch.equal(one, tensor) for one in all_of_them)


def parameters_of(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
