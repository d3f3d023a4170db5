"""A training process without torch, for tests: it takes steps through the drop-in API and obeys one-word commands.

A test starts it as `python trainer.py`, with RANK and the related variables in the environment. Each line on standard
input is a command. Each answer is one line of JSON on standard output. At the end of standard input the process leaves
in good order.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

from taskd import _native
from taskd.api import destroy_taskd_worker, init_taskd_worker, start_taskd_worker
from taskd.comm import adapter, counters, nic
from taskd.core.types import RailState
from taskd.worker import hooks, presence
from tests.comm.fake_npu import FakeNpu
from tests.ready import readable

STEP_S = 0.02


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def start() -> None:
    began = time.monotonic()
    init = init_taskd_worker(int(os.environ["RANK"]), 5000, os.environ.get("FRAMEWORK", "pt"))
    begun = start_taskd_worker() if init else False
    there = presence.current()
    reason = there.link.registration.reason if there else ""
    say(init=init, start=begun, seconds=time.monotonic() - began, pid=os.getpid(), reason=reason)


def descriptors_of_a_forked_child() -> None:
    """Print what a DataLoader worker would hold open, and whether the API does nothing in it."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        names = {}
        for fd in os.listdir("/proc/self/fd"):
            try:
                names[fd] = os.readlink(f"/proc/self/fd/{fd}")
            except OSError:
                continue  # the descriptor by which we list
        hooks.step_end(10**6)
        found = {"fds": names, "present": presence.current() is not None, "step_shown": False}
        os.write(write, json.dumps(found).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        found = json.load(stream)
    os.waitpid(pid, 0)
    there = presence.current()
    found["step_shown"] = there is not None and there.link.page.read().step == 10**6
    found["mine"] = {
        fd: os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{fd}")
    }
    say(**found)


class Rails:
    """Counters of rails, as a transport in this process would keep them."""

    def __init__(self) -> None:
        self.file: _native.RailCounters | None = None
        self.counters: dict[tuple[str, int], _native.RailCounter] = {}

    def count(self, rail: str, peer: str, node: str, state: str, size: str) -> None:
        """Count this many more bytes sent on a rail to a rank, and set the state of the rail."""
        first = self.file is None
        self.file = self.file or _native.RailCounters()
        key = (rail, int(peer))
        if key not in self.counters:
            self.counters[key] = self.file.open(rail, int(peer), node, 1)
        self.counters[key].set_state(RailState[state], 110 if state == "DOWN" else 0, 1000)
        self.counters[key].count(bytes_out=int(size))
        if first:
            counters.show(self.file.fd)
        say(counted=True)


class Npu:
    """HCCL in this process: a fake torch_npu, and the driver's tool, which prints what each of two NICs has sent."""

    STEP_BYTES = 4 << 20

    def __init__(self) -> None:
        self.fake: FakeNpu | None = None
        self.folder = Path()
        self.sent = {"3": 0, "2": 0}  # by device: its own NIC, and the one beside it

    def join(self, folder: str) -> None:
        """Make a group over HCCL."""
        self.folder, self.fake = Path(folder), FakeNpu()
        self.folder.mkdir()
        self.send()
        tool = self.folder / nic.TOOL
        tool.write_text(f"#!/bin/sh\necho mac_tx_total_oct_num:$(cat {folder}/$2)\n")
        tool.chmod(0o755)
        os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
        rank = int(os.environ["RANK"])
        sys.modules["torch_npu"] = self.fake  # type: ignore[assignment]
        sys.modules["torch"] = SimpleNamespace(distributed=SimpleNamespace(get_rank=lambda: rank))  # type: ignore[assignment]
        inner = adapter.of("hccl")
        inner.make_inner(None, rank, 4, timedelta(1), epoch=0, identity="0", members=[0, 1, 2, 3])
        say(joined=True)

    def be(self, how: str) -> None:
        """Set whether a switch works from now on, does nothing, or is unknown."""
        assert self.fake is not None
        self.fake.no_op = how == "no-op"
        if how == "unsupported":
            del self.fake.npu._comm_switch_nic
        say(npu=how)

    def send(self) -> None:
        """Send the bytes of a step over the NIC in use."""
        if self.fake is None:
            return
        self.sent["2" if self.fake.lent else "3"] += self.STEP_BYTES
        for device, count in self.sent.items():
            fresh = self.folder / f".{device}"
            fresh.write_text(str(count))
            fresh.rename(self.folder / device)


RAILS = Rails()
NPU = Npu()


def obey(words: list[str]) -> None:
    if words[0] == "rail":
        RAILS.count(*words[1:])
    elif words[0] == "npu":
        NPU.join(words[1]) if words[1].startswith("/") else NPU.be(words[1])
    elif words[0] == "exit":
        sys.exit(int(words[1]))
    elif words[0] == "raise":
        raise ValueError("shapes differ\nand a second line")
    elif words[0] == "fork":
        descriptors_of_a_forked_child()
    elif words[0] == "destroy":
        say(destroyed=destroy_taskd_worker())
    elif words[0] == "start":
        start()
    elif words[0] == "state":
        there = presence.current()
        link = there.link if there else None
        say(
            acknowledged=bool(link and link.registration.acknowledged),
            reason=link.registration.reason if link else "",
            incarnation=link.introduction.incarnation if link else 0,
        )


def main() -> None:
    start()
    step = 0
    while True:
        if readable([sys.stdin], STEP_S):
            line = sys.stdin.readline()
            if not line:
                return
            obey(line.split())
        if not os.environ.get("QUIET"):
            hooks.step_end(step)
        NPU.send()
        step += 1


main()
