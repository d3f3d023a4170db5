"""A process at its limit of descriptors: the error names the cure, and work goes on once there are descriptors."""

from __future__ import annotations

import importlib
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

importlib.import_module("torch")  # loads the libraries that the extension needs
pytestmark = [
    pytest.mark.skipif(
        not hasattr(importlib.import_module("taskd._c10d"), "RailEngine"), reason="the rail backend is not built"
    ),
]
ROOT = Path(__file__).resolve().parents[2]
CURE = "Too many open files in this process: raise its limit (ulimit -n)"

# Two engines in one process with 1,024 descriptors. The script chooses how many of them are left.
POOR = """
import json, os, resource, sys, threading
from datetime import timedelta
import torch
from taskd import _c10d

taken = []
found = {}

def leave(number):
    while True:
        try:
            taken.append(os.dup(0))
        except OSError:
            break
    for _ in range(number):
        os.close(taken.pop())

def engine():
    return _c10d.RailEngine([("a", "127.0.0.2", "", True)], b"k" * 32, node="here")

def join(epoch, seconds):
    def one(rank):
        limit = timedelta(seconds=seconds)
        try:
            group = engines[rank].join(epoch, "g", ends, [0, 1], rank, within=limit, timeout=limit)
            group.barrier().wait()
            texts[rank] = "joined"
        except RuntimeError as error:
            texts[rank] = str(error)
    texts = ["", ""]
    ranks = [threading.Thread(target=one, args=(rank,)) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return texts

resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
engines = [engine(), engine()]
ends = [one.endpoint for one in engines]
found["first"] = join(1, 20)
count = len(os.listdir("/proc/self/fd"))
leave(0)
refused = []
for number in range(4):
    try:
        engine()
        refused.append("made")
    except RuntimeError as error:
        refused.append(str(error))
    os.close(taken.pop())
found["refused"] = refused
while taken:
    os.close(taken.pop())
found["kept"] = len(os.listdir("/proc/self/fd")) - count
leave(0)
found["none"] = join(2, 1)
leave(1)
found["one"] = join(3, 2)
while taken:
    os.close(taken.pop())
found["later"] = [join(epoch, 20) for epoch in (2, 3)]
print(json.dumps(found))
"""


def test_a_process_without_descriptors_says_so_and_goes_on_when_there_are_some() -> None:
    done = subprocess.run([sys.executable, "-c", POOR], capture_output=True, text=True, cwd=ROOT, check=True)
    found = json.loads(done.stdout)
    assert found["first"] == ["joined", "joined"]
    assert all(CURE in text for text in found["refused"]) and found["kept"] == 0, found
    assert "joined" not in found["none"] and any(CURE in text for text in found["none"]), found  # the rank that dials
    assert "joined" not in found["one"], found  # none is left for the end that is dialled
    assert found["later"] == [["joined", "joined"]] * 2


# Many connections that say nothing, and two ranks that join a group meanwhile.
CROWD = """
import json, os, resource, socket, struct, sys, threading
from datetime import timedelta
import torch
from taskd import _c10d

def engine():
    return _c10d.RailEngine([("a", "127.0.0.2", "", True)], b"k" * 32, node="here")

engines = [engine(), engine()]
ends = [one.endpoint for one in engines]
port = struct.unpack("<H", ends[0][ends[0].index(b"127.0.0.2") + 9:][:2])[0]
print(port, flush=True)
sys.stdin.readline()
texts = ["", ""]
def one(rank):
    limit = timedelta(seconds=60)
    try:
        group = engines[rank].join(1, "g", ends, [0, 1], rank, within=limit, timeout=limit)
        group.barrier().wait()
        texts[rank] = "joined"
    except RuntimeError as error:
        texts[rank] = str(error)
ranks = [threading.Thread(target=one, args=(rank,)) for rank in (0, 1)]
for rank in ranks:
    rank.start()
for rank in ranks:
    rank.join()
print(json.dumps({"texts": texts, "open": len(os.listdir("/proc/self/fd"))}), flush=True)
"""
SILENT = 800
PLACES = 64


def test_a_crowd_at_the_door_costs_few_descriptors_and_keeps_nobody_out() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CROWD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        port, crowd = int(process.stdout.readline()), list[socket.socket]()
        for _ in range(SILENT):
            crowd.append(socket.create_connection(("127.0.0.2", port)))
        process.stdin.write("go\n")
        process.stdin.flush()
        found = json.loads(process.stdout.readline())
        for one in crowd:
            one.close()
    assert found["texts"] == ["joined", "joined"], found
    assert found["open"] < 2 * PLACES, found
