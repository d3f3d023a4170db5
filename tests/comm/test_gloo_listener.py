"""The gloo group of one rank that torch's casts get: it opens no listener, it works, and the process ends well."""

from __future__ import annotations

import errno
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from taskd.comm import gloo

SCRIPT = """
import socket, threading
import torch
from taskd.comm import gloo, stand_in
from taskd.worker import gloo_threads

gloo_threads.wait_at_exit()  # as in each worker
own = socket.create_server(("127.0.0.1", 0))  # somebody else's stays
group = stand_in._gloo_of_one()
assert gloo._listening() == [own.getsockname()]
tensor = torch.ones(3)
group.allreduce([tensor]).wait()
assert tensor.tolist() == [1, 1, 1]
del group
print("fine")
"""


# What other threads may do while the group is made.
MEANWHILE = """
import select, socket, sys
import torch.distributed as dist
from taskd.comm import gloo

kind = sys.argv[1]
old, others, poll = socket.create_server(("127.0.0.1", 0)), [], select.epoll()

def open_another(host, polled):
    others.append(socket.create_server((host, 0)))
    if polled:
        poll.register(others[-1])

def make():
    if kind == "a number is used again":
        old.close()
    if kind != "gloo opens none":
        made = dist.ProcessGroupGloo.create_device(hostname="127.0.0.1", lazy_init=True)
    if kind == "others open some":
        open_another("127.0.0.1", False)
        open_another("127.0.0.2", True)
    if kind in ("another is like it", "gloo opens none"):
        open_another("127.0.0.1", kind == "another is like it")
    return made if kind != "gloo opens none" else object()

kept = gloo.without_listener(make)
known = [one.getsockname() for one in (old, *others) if one.fileno() >= 0]
left = [address for address in gloo._listening() if address not in known]
assert all(address in gloo._listening() for address in known)
beside = object()
assert sys.getrefcount(kept) == sys.getrefcount(beside) + 1, "it lives as long as the process"
print(len(left))
"""


def test_nothing_listens_for_a_group_of_one() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


def test_a_host_that_shows_no_polls_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(errno.EACCES, "hidden")

    with select.epoll() as poll, socket.create_server(("127.0.0.1", 0)) as one:
        poll.register(one)
        assert one.fileno() in {fd for fd, _ in gloo._watched()}
        monkeypatch.setattr(Path, "read_text", refuse)
        assert list(gloo._watched()) == []


@pytest.mark.parametrize(
    ("kind", "left"),
    [
        ("nothing", 0),
        ("a number is used again", 0),
        ("others open some", 0),
        ("another is like it", 1),  # nobody knows which of the two is gloo's, so both stay
        ("gloo opens none", 0),
    ],
)
def test_only_the_listener_of_gloo_is_closed(kind: str, left: int) -> None:
    done = subprocess.run([sys.executable, "-c", MEANWHILE, kind], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{left}\n"), done.stderr
