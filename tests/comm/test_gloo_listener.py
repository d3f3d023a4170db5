"""The gloo group of one rank that torch's casts get: it opens no listener, it works, and the process ends well."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import socket, threading
import torch
from taskd.comm import sockets, stand_in

own = socket.create_server(("127.0.0.1", 0))  # somebody else's stays
group = stand_in._gloo_of_one()
assert [one.address for one in sockets.listeners()] == [own.getsockname()]
tensor = torch.ones(3)
group.allreduce([tensor]).wait()
assert tensor.tolist() == [1, 1, 1]
del group
print("fine")
"""


def test_nothing_listens_for_a_group_of_one() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
