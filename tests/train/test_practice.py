"""A standby has practised to compile: it can be forked from, and a script sees nothing of the practice.

It runs in processes of its own, because it is about what a process holds.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

RunPython = Callable[..., subprocess.CompletedProcess[str]]
COMMON = """
import contextlib, logging, os, random, sys, warnings
import numpy, torch, torch.distributed as dist, torch.distributed.fsdp, torch._dynamo
from taskd import _native
from taskd.worker import compiling

world = dist.distributed_c10d._world

def seen():
    return {
        "groups": (dist.is_initialized(), dict(world.pg_map), world.group_count, dist.get_debug_level()),
        "torch's generator": hash(torch.get_rng_state().numpy().tobytes()),
        "Python's generator": hash(random.getstate()),
        "numpy's generator": hash(numpy.random.get_state()[1].tobytes()),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "hook": sys.excepthook,
        "logging": logging.root.manager.disable,
        "warnings": list(warnings.filters),
        "files": os.listdir(),
        "mode": (torch.is_grad_enabled(), torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()),
    }
"""
PREPARE = """
logging.disable(5)  # as a preloaded module may
before = seen()
compiling.prepare()
after = seen()
assert before == after, [(name, before[name], after[name]) for name in before if before[name] != after[name]]
assert not torch._dynamo.utils.counters, torch._dynamo.utils.counters
pid = os.fork()  # as a standby does: the threads of OpenBLAS end
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
print("threads", _native.thread_count())
"""
CHILD = """
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

@contextlib.contextmanager
def doubled(x):
    yield x * 2

class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
    def forward(self, x):
        with doubled(x) as twice:
            return torch.dropout(self.layer(twice).relu(), 0.5, True).sum()

torch.manual_seed(3)
model = torch.nn.parallel.DistributedDataParallel(Own())
compiled = torch.compile(model)
compiled(torch.ones(2, 4)).backward()
print("gradient", model.module.layer.weight.grad.flatten().tolist())
print("group", dist.group.WORLD.group_name, dict(torch._dynamo.utils.counters["stats"]))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what torch compiles, empty at first."""
    return tmp_path_factory.mktemp("cache")


def test_a_standby_can_be_forked_from_and_is_as_before(run_python: RunPython, cache: Path) -> None:
    """torch's profile of a job that has a name is on disk. The practice writes nothing into it. A job may have asked
    for torch's checks of all groups."""
    job = {"TORCH_COMPILE_JOB_ID": "named", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    assert "threads 1" in run_python(COMMON + PREPARE, env={"TORCHINDUCTOR_CACHE_DIR": str(cache), **job}).stdout
    assert list(cache.rglob("*.so")) and not list(cache.rglob("code_state*"))


def test_a_practice_that_fails_leaves_nothing(run_python: RunPython, cache: Path) -> None:
    fail = "from taskd.worker import compiled_practice\ncompiled_practice._Model = None\n"
    assert "threads 1" in run_python(COMMON + fail + PREPARE, env={"TORCHINDUCTOR_CACHE_DIR": str(cache)}).stdout


def test_a_newcomer_compiles_what_a_first_process_compiles(run_python: RunPython, cache: Path) -> None:
    """The same bits, graphs and names of groups, with a practice before and without."""
    folder = {"TORCHINDUCTOR_CACHE_DIR": str(cache)}
    first = run_python(COMMON + CHILD, env=folder)
    newcomer = run_python(COMMON + "compiling.prepare()\n" + CHILD, env=folder)
    assert "gradient" in first.stdout and first.stdout == newcomer.stdout


def test_a_session_imports_nothing_that_a_standby_lacks(run_python: RunPython) -> None:
    """A newcomer would wait for it."""
    code = """
import sys, taskd.worker.boot, taskd
before = {*sys.modules}
taskd.session()
print(sorted(name for name in {*sys.modules} - before if name.startswith("taskd.")))
"""
    assert run_python(code).stdout == "[]\n"
