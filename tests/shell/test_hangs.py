"""Hangs: one rank stands still, and so does the job. The rank is named once, with what its process does.

Each test runs a whole job of real processes. A rank stands still until the test lets it go on, and then the job goes
on, so no result depends on time. Every other test that reads a job's output checks that there is no false alarm.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launched import Launched, wait_until
from tests.verdicts import same_bits

pytestmark = pytest.mark.slow

SCRIPT = """
import ctypes, hashlib, os, re, signal, sys, time
import torch, torch.distributed as dist, taskd

STRIKES = 400  # the job's rhythm is known by then, however late the manager comes

class Woken(Exception):
    pass

def wake(*_):
    raise Woken

def stopped(pid):
    return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] == "T"

def stand_still(how):
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "fifo":
        os.read(os.open("fifo", os.O_RDWR), 1)
    elif how == "sleep":
        time.sleep(1e6)
    elif how == "call":
        ctypes.CDLL(None).sleep(1_000_000)
    elif how == "hold":
        ctypes.PyDLL(None).sleep(1_000_000)
    elif how == "match":
        re.match("(a+)+$", "a" * 64 + "b")

signal.signal(signal.SIGUSR1, wake)
dist.init_process_group("gloo")
rank, how = dist.get_rank(), sys.argv[1]
torch.manual_seed(0)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
session = taskd.session()
session.register(model=model, optimizer=optimizer)
pids = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
dist.all_gather(pids, torch.tensor([os.getpid()]))
for step in session.steps([torch.ones(1, 2)] * (STRIKES + 8)):
    with step as batch:
        strikes = step.number == STRIKES and how not in ("inside", "calm") and rank == 1 and not step.rehearsal
        if strikes and not os.path.exists("struck"):
            open("struck", "x").close()
            try:
                stand_still(how)
            except Woken:
                pass
        if step.number == STRIKES and how == "inside":
            if rank == 1:
                work = dist.all_reduce(torch.ones(1), async_op=True)
                os.kill(os.getpid(), signal.SIGSTOP)
                work.wait()
            else:
                while not stopped(int(pids[1])):
                    time.sleep(0.01)  # for the state of another process there is no event
                dist.all_reduce(torch.ones(1))
        optimizer.zero_grad()
        model(batch).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
weights = torch.cat([one.detach().flatten() for one in model.parameters()])
os.write(1, f"weights {rank} {hashlib.sha256(weights.numpy().tobytes()).hexdigest()}\\n".encode())  # in one piece
dist.destroy_process_group()
"""
WAITS = r"rank 1 has not entered allreduce #\d+ of group 0@0-2, for which ranks 0 and 2 wait"
PLACE = r"at still\.py:\d+ in stand_still, still\.py:\d+ in <module>"
WAYS = {
    "stop": (f"{WAITS}; .* is stopped by a signal \\(SIGCONT lets it go on\\)", signal.SIGCONT),
    "inside": (r"allreduce #\d+ of group 0@0-2.*; .* is stopped by a signal \(SIGCONT lets it go on\)", signal.SIGCONT),
    "fifo": (f"{WAITS}; .* sleeps in read of .*/fifo {PLACE}", None),
    "sleep": (f"{WAITS}; .* sleeps in clock_nanosleep {PLACE}", signal.SIGUSR1),
    "call": (f"{WAITS}; .* sleeps in clock_nanosleep {PLACE}", signal.SIGUSR1),
    "hold": (f"{WAITS}; .* lets no other Python thread of it run and sleeps in clock_nanosleep", signal.SIGUSR1),
    "match": (f"{WAITS}; .* lets no other Python thread of it run and works", signal.SIGUSR1),
}
"""What the job says about each way to stand still, and the signal that ends it."""


def of_hangs(launched: Launched) -> list[str]:
    command = [sys.executable, "-m", "taskd", "events", "--json"]
    done = subprocess.run(command, env=launched.environment, capture_output=True, text=True)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    return [event["text"] for event in events if event["kind"] == "hang"]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("how", WAYS)
def test_who_is_waited_for_is_named_once(how: str, tmp_path: Path, free_port: Callable[[], int]) -> None:
    (tmp_path / "still.py").write_text(SCRIPT)
    os.mkfifo(tmp_path / "fifo")
    words, ends = WAYS[how]
    words_of_job = ("--nproc-per-node", "3", "--hang", "warn", "still.py", how)
    with Launched(tmp_path, free_port(), *words_of_job, warm=True) as launched:
        launched.stands = True
        said = launched.wait_for_line("no progress for")
        assert re.search(words, said), said
        hang = launched.ask("status")["hang"]
        assert hang["ranks"] == [1] and hang["text"] in said
        assert of_hangs(launched) == [hang["text"]]
        pid = wait_until(lambda: launched.pids().get(1), "rank 1 alive")
        assert f"process {pid} of rank 1 on node-0" in said
        if ends is not None:
            os.kill(pid, ends)
        else:
            (tmp_path / "fifo").write_text("x")
        launched.wait_for_line("the job goes on after")
        launched.end()
        assert sum("no progress for" in line for line in launched.lines) == 1, launched.text


def test_who_is_stopped_is_replaced(tmp_path: Path, free_port: Callable[[], int]) -> None:
    """The other ranks keep their processes. The weights are those of a job in which no rank stands still."""
    jobs = []
    for way in ("calm", "stop"):
        folder = tmp_path / way
        folder.mkdir()
        (folder / "still.py").write_text(SCRIPT)
        words = ("--nproc-per-node", "3", "still.py", way)
        with Launched(folder, free_port(), *words, job=f"still-{way}", warm=True) as launched:
            launched.stands = way == "stop"
            launched.end()
        jobs.append(launched)
    calm, still = jobs
    assert "rank 1 died (ended after" in still.text and ": healed in" in still.text, still.text
    assert sum("no progress for" in line for line in still.lines) == 1, still.text
    same_bits(sorted(still.said("weights")), sorted(calm.said("weights")), still.text)
